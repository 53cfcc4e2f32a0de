"""The shim on a terminal: it relays, so that the owner's terminal never enters a cage.

With all three descriptors on a terminal the agent gets a pty made in the cage; its master is
relayed with the outer terminal set raw. With some of them (`cagewrap -- claude | tee log`) the
others cross as they are and the terminal ones become pipes, relayed as they are, cooked.
"""

from __future__ import annotations

import array
import fcntl
import os
import select
import signal
import socket
import termios

from cagewrap import protocol
from cagewrap.wrap import Shim, end_by_signal

_CHUNK_BYTES = 65536
_Attributes = list[int | list[bytes | int]]


def run(shim: Shim, command: list[str], cwd: bytes) -> None:
    """Hand over and relay. Returns only when this keeper never began."""
    relay = _PtyRelay(shim) if shim.is_terminal else _MixedRelay(shim)
    relay.run(command, cwd)


class _Relay:
    """The loop both have: packets of the keeper, signals, and bytes."""

    def __init__(self, shim: Shim) -> None:
        self.shim = shim
        self.wake_read, self.wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.signals: list[int] = []
        self.poll = select.poll()

    def loop(self) -> None:
        connection = self.shim.connection.fileno()
        self.poll.register(connection, select.POLLIN)
        self.poll.register(self.wake_read, select.POLLIN)
        while True:
            for fd, _ in self.poll.poll():
                if fd == connection:
                    if not self.packet():
                        return
                elif fd == self.wake_read:
                    os.read(self.wake_read, 4096)
                    self.deliver_signals()
                else:
                    self.ready(fd)

    def packet(self) -> bool:
        packet = self.shim.receive()
        self.before(packet)
        return self.shim.handle(packet)

    def got_signal(self, number: int, _frame: object) -> None:
        self.signals.append(number)
        try:
            os.write(self.wake_write, b"!")
        except BlockingIOError:
            return

    def deliver_signals(self) -> None:
        while self.signals:
            self.signal(self.signals.pop(0))

    def signal(self, number: int) -> None:
        raise NotImplementedError

    def ready(self, fd: int) -> None:
        raise NotImplementedError

    def before(self, packet: bytes) -> None:
        raise NotImplementedError


class _PtyRelay(_Relay):
    """All three descriptors are the terminal."""

    def __init__(self, shim: Shim) -> None:
        super().__init__(shim)
        self.saved: _Attributes | None = None
        self.master = -1
        self.agent = 0

    def run(self, command: list[str], cwd: bytes) -> None:
        self.shim.forward_signals(self.got_signal)
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        self.shim.send_request(command, cwd, protocol.MODE_TERMINAL, [])
        try:
            self.loop()
        finally:
            self.restore()

    def packet(self) -> bool:
        """As above, but a packet may carry the master."""
        connection = socket.socket(fileno=os.dup(self.shim.connection.fileno()))
        with connection:
            try:
                packet, fds, _, _ = socket.recv_fds(connection, protocol.PACKET_BYTES, 1)
            except OSError:
                packet, fds = b"", []
        if packet[:1] == protocol.TERMINAL:
            self.begin(fds[0])
            return True
        self.before(packet)
        return self.shim.handle(packet)

    def begin(self, master: int) -> None:
        """Set the outer terminal raw and relay."""
        self.master = master
        os.set_inheritable(master, False)
        self.saved = termios.tcgetattr(0)
        self.make_raw()
        self.resize()
        self.poll.register(0, select.POLLIN)
        self.poll.register(master, select.POLLIN)

    def make_raw(self) -> None:
        """Raw, keeping what was typed ahead (TCSANOW; tty.setraw would throw it away)."""
        raw = termios.tcgetattr(0)
        raw[0] &= ~(
            termios.BRKINT | termios.ICRNL | termios.INLCR | termios.IGNCR | termios.INPCK
            | termios.ISTRIP | termios.IXON | termios.PARMRK
        )  # fmt: skip
        raw[1] &= ~termios.OPOST
        raw[2] = (raw[2] & ~(termios.CSIZE | termios.PARENB)) | termios.CS8
        raw[3] &= ~(
            termios.ECHO | termios.ECHONL | termios.ICANON | termios.IEXTEN | termios.ISIG
        )
        raw[6][termios.VMIN], raw[6][termios.VTIME] = 1, 0
        termios.tcsetattr(0, termios.TCSANOW, raw)

    def restore(self) -> None:
        """Give the terminal back as it was."""
        if self.saved is not None:
            try:
                termios.tcsetattr(0, termios.TCSADRAIN, self.saved)
            except termios.error:
                return

    def resize(self) -> None:
        """Give the pty the outer window's size."""
        size = array.array("H", [0, 0, 0, 0])
        try:
            fcntl.ioctl(0, termios.TIOCGWINSZ, size)
            fcntl.ioctl(self.master, termios.TIOCSWINSZ, size)
        except OSError:
            return

    def ready(self, fd: int) -> None:
        if fd == 0:
            self.typed()
        else:
            self.show()

    def typed(self) -> None:
        try:
            data = os.read(0, _CHUNK_BYTES)
        except OSError:
            data = b""
        if not data:
            self.poll.unregister(0)
            return
        _write_all(self.master, data)
        if self.suspends(data):
            self.shim.send(protocol.GROUP_SIGNAL + b"%d" % signal.SIGTSTP)

    def suspends(self, data: bytes) -> bool:
        """Whether this was ctrl-z for the agent itself.

        The pty stops the foreground group, but the kernel drops that stop when the group is
        orphaned, as the agent's is: it has no parent in its own session.
        """
        try:
            attributes = termios.tcgetattr(self.master)
            foreground = os.tcgetpgrp(self.master)
        except (termios.error, OSError):
            return False
        is_on = bool(attributes[3] & termios.ISIG)
        return is_on and attributes[6][termios.VSUSP] in data and foreground == self.agent

    def show(self) -> bool:
        try:
            data = os.read(self.master, _CHUNK_BYTES)
        except OSError:
            data = b""
        if not data:
            self.poll.unregister(self.master)
            return False
        _write_all(1, data)
        return True

    def drain(self) -> None:
        """Show what the agent wrote before it ended."""
        left = select.poll()
        left.register(self.master, select.POLLIN)
        while any(mask & select.POLLIN for _, mask in left.poll(0)):
            try:
                data = os.read(self.master, _CHUNK_BYTES)
            except OSError:
                return
            if not data:
                return
            _write_all(1, data)

    def before(self, packet: bytes) -> None:
        kind = packet[:1]
        if kind == protocol.STARTED:
            self.agent = int(packet[1:])
        elif kind == protocol.STOPPED:
            self.restore()
        elif kind in (protocol.EXITED, protocol.KILLED, protocol.ERROR, b""):
            if self.master >= 0:
                self.drain()
            self.restore()

    def signal(self, number: int) -> None:
        if number == signal.SIGWINCH:
            if self.master >= 0:
                self.resize()
            return
        if number == signal.SIGCONT and self.saved is not None:
            self.make_raw()
            self.resize()
        self.shim.send_signal(number)
        if number == signal.SIGHUP:
            self.shim.connection.close()
            self.restore()
            end_by_signal(number)


class _MixedRelay(_Relay):
    """Some descriptors are the terminal, others are not."""

    def __init__(self, shim: Shim) -> None:
        super().__init__(shim)
        self.sink = -1
        self.sources: dict[int, int] = {}

    def run(self, command: list[str], cwd: bytes) -> None:
        self.shim.forward_signals(self.got_signal)
        handed = [0, 1, 2]
        for fd in self.shim.relayed:
            reader, writer = os.pipe2(os.O_CLOEXEC)
            if fd == 0:
                handed[0], self.sink = reader, writer
            else:
                handed[fd] = writer
                self.sources[reader] = fd
        self.shim.send_request(command, cwd, protocol.MODE_STREAMS, handed)
        for fd in set(handed) - {0, 1, 2}:
            os.close(fd)
        for fd in (*self.sources, *((0,) if self.sink >= 0 else ())):
            self.poll.register(fd, select.POLLIN)
        self.loop()

    def ready(self, fd: int) -> None:
        source, target = (0, self.sink) if fd == 0 else (fd, self.sources[fd])
        try:
            data = os.read(source, _CHUNK_BYTES)
        except OSError:
            data = b""
        try:
            if data:
                _write_all(target, data)
                return
        except BrokenPipeError:
            pass
        self.poll.unregister(fd)
        if fd == 0:
            os.close(self.sink)
        else:
            os.close(fd)
            del self.sources[fd]

    def before(self, packet: bytes) -> None:
        if packet[:1] in (protocol.EXITED, protocol.KILLED, b""):
            for source, target in self.sources.items():
                _drain(source, target)

    def signal(self, number: int) -> None:
        if number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP):
            # Typed on the terminal, these go to a whole process group; so here.
            self.shim.send(protocol.GROUP_SIGNAL + b"%d" % number)
        else:
            self.shim.send_signal(number)


def _drain(source: int, target: int) -> None:
    try:
        os.set_blocking(source, False)
        while data := os.read(source, _CHUNK_BYTES):
            _write_all(target, data)
    except OSError:
        return


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            select.select([], [fd], [], 1.0)
