"""The pty of one launch: taken from the runtime, made ready, and only then the command goes on.

crun sets a pty's size while the command may already run (`stty size` as the command said "0 0" in
a third of 100 starts; runc sets it before). So a command on a terminal is started behind a shell
that waits for a line from us, where the image has one; the shell becomes the command.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import termios
from collections.abc import Callable
from typing import NamedTuple

from cagewrap.keeper import namespaces, rights, spawn
from cagewrap.keeper.loop import Loop

HOLD = (b"/bin/sh", b"-c", b'read -r cagewrap_go <&3 && exec 3<&- && exec "$@"', b"sh")
"""What runs in front of the command; it inherits the descriptor it reads as its fd 3."""
_FLAGS = 6
"""c_iflag, c_oflag, c_cflag, c_lflag, ispeed and ospeed; what follows is c_cc."""
_RECEIVE_S = 1.0


class Terminal(NamedTuple):
    """What a shim says of its terminal. attributes: as `termios.tcgetattr` has them, flattened."""

    rows: int
    columns: int
    attributes: tuple[int, ...]


def parse_terminal(words: list[bytes]) -> Terminal:
    """Read what follows MODE_TERMINAL in a request. Raises ValueError."""
    rows, columns, *attributes = (int(word) for word in words)
    return Terminal(rows, columns, tuple(attributes))


class Console:
    """Waits for the pty's master on a socket of the runtime's."""

    def __init__(
        self, loop: Loop, path: str, terminal: Terminal, ready: Callable[[int], None]
    ) -> None:
        """`ready` is called with the master, its to close, if the runtime gets that far."""
        self.path = path
        self._loop = loop
        self._terminal = terminal
        self._ready = ready
        hold, self._go = os.pipe2(os.O_CLOEXEC)
        self.hold = fcntl.fcntl(hold, fcntl.F_DUPFD_CLOEXEC, spawn.HIGH_FD)
        os.close(hold)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen(1)
        self._listener.settimeout(0)
        loop.watch(self._listener.fileno(), 1, self._accept)

    def runtime_ended(self, status: int) -> None:
        """Take what is still to be taken; after that a command that is held never runs."""
        if status == 0:
            self._accept()
        self.close()

    def close(self) -> None:
        """Wait no longer."""
        if self._listener.fileno() >= 0:
            self._loop.unwatch(self._listener.fileno())
            self._listener.close()
            os.unlink(self.path)
            os.close(self.hold)
            os.close(self._go)

    def _accept(self, _mask: int = 0) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # closed, the master has been taken
            return
        with connection:
            connection.settimeout(_RECEIVE_S)
            try:
                _, fds = rights.receive(connection, 4096, 1)
            except OSError:
                fds = []
        if fds:
            _prepare(fds[0], self._terminal)
            os.write(self._go, b"\n")
            self._ready(fds[0])
        self.close()


def can_hold(init_pid: int, argv: tuple[bytes, ...], env: tuple[bytes, ...], cwd: bytes) -> bool:
    """Whether the image has a shell to wait with, and the command is there at all.

    A command that is not there is left to the runtime, which says so.
    """
    paths = [entry[5:] for entry in env if entry.startswith(b"PATH=")]

    def look() -> bytes:
        os.chdir(cwd)
        return b"yes" if _can_run(b"/bin/sh", []) and _can_run(argv[0], paths) else b"no"

    try:
        return namespaces.run_inside(init_pid, ("mnt",), look) == b"yes"
    except OSError:
        return False


def _can_run(name: bytes, paths: list[bytes]) -> bool:
    directories = [b""] if b"/" in name else [word for path in paths for word in path.split(b":")]
    found = (os.path.join(directory, name) for directory in directories)
    return any(os.path.isfile(path) and os.access(path, os.X_OK) for path in found)


def _prepare(master: int, terminal: Terminal) -> None:
    """Give a pty the size and attributes of the owner's terminal."""
    size = struct.pack("=HHHH", terminal.rows, terminal.columns, 0, 0)  # struct winsize
    fcntl.ioctl(master, termios.TIOCSWINSZ, size)
    attributes = termios.tcgetattr(master)
    attributes[:_FLAGS] = terminal.attributes[:_FLAGS]
    attributes[_FLAGS] = [bytes([code]) for code in terminal.attributes[_FLAGS:]]
    termios.tcsetattr(master, termios.TCSANOW, attributes)
