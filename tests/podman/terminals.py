"""A terminal of a test's own: a program runs on it and is driven from outside, as by a person.

ptyprocess is untyped; nothing else in the tests touches it.
"""

from __future__ import annotations

import os
import select
import signal
import termios
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ptyprocess import PtyProcess

from .cages import Cage, Word, is_alive, read_bytes, wait_until

WAIT_S = 20.0
PROMPT = b"PROMPT> "
CTRL_C, CTRL_D, CTRL_Z, CTRL_BACKSLASH = b"\x03", b"\x04", b"\x1a", b"\x1c"


class Terminal:
    """A program on a new terminal that controls it."""

    def __init__(
        self,
        argv: Sequence[Word],
        *,
        env: dict[str, str],
        cwd: Path,
        size: tuple[int, int] = (24, 80),
    ) -> None:
        words = [os.fspath(word) for word in argv]
        self._process: Any = PtyProcess.spawn(
            words, cwd=str(cwd), env=env | {"TERM": "xterm"}, dimensions=size
        )
        self.pid: int = self._process.pid
        self.seen = b""
        self._fd: int = self._process.fd
        os.set_blocking(self._fd, False)

    # -- what a person does ------------------------------------------------------------------------

    def type(self, data: bytes) -> None:
        """Type or paste; what appears meanwhile is kept."""
        deadline = time.monotonic() + WAIT_S
        while data:
            assert time.monotonic() < deadline, f"{len(data)} bytes do not go in"
            _, writable, _ = select.select([], [self._fd], [], 0.05)
            self._look()
            if writable:
                data = data[os.write(self._fd, data[:4096]) :]

    def resize(self, rows: int, columns: int) -> None:
        self._process.setwinsize(rows, columns)

    def close(self) -> None:
        """Close the window: the terminal hangs up."""
        self._process.fileobj.close()
        self._process.closed = True

    # -- what a person sees ------------------------------------------------------------------------

    def until(self, text: bytes, within_s: float = WAIT_S) -> bytes:
        """Everything up to and with `text`, which is then forgotten."""
        deadline = time.monotonic() + within_s
        while text not in self.seen:
            assert time.monotonic() < deadline, f"no {text!r} in {self.seen[-2000:]!r}"
            assert self._look(0.05) or text in self.seen, (
                f"the end came before {text!r}: {self.seen[-2000:]!r}"
            )
        before, _, self.seen = self.seen.partition(text)
        return before + text

    def rest(self, within_s: float = WAIT_S) -> bytes:
        """Everything up to the end of the program."""
        deadline = time.monotonic() + within_s
        while self._look(0.05):
            assert time.monotonic() < deadline, f"no end after {self.seen[-2000:]!r}"
        rest, self.seen = self.seen, b""
        return rest

    def shows_nothing(self, for_s: float) -> bool:
        time.sleep(for_s)
        self._look()
        return self.seen == b""

    def attributes(self) -> list[Any]:
        return termios.tcgetattr(self._fd)

    def _look(self, wait_s: float = 0.0) -> bool:
        """Read what is there; False at the end."""
        while select.select([self._fd], [], [], wait_s)[0]:
            try:
                data = os.read(self._fd, 65536)
            except OSError:
                return False
            if not data:
                return False
            self.seen += data
            wait_s = 0.0
        return True

    # -- the end -----------------------------------------------------------------------------------

    def code(self, within_s: float = WAIT_S) -> int:
        """How the program ended: its code, or -N for signal N."""
        if not self._process.closed:
            self.seen = self.rest(within_s)
        assert wait_until(lambda: not self._process.isalive(), within_s), "it does not end"
        number = self._process.signalstatus
        code: int = self._process.exitstatus if number is None else -number
        return code

    def remove(self) -> None:
        """End whatever still runs."""
        if is_alive(self.pid):
            os.kill(self.pid, signal.SIGKILL)
        if not self._process.closed:
            self.close()
        wait_until(lambda: not self._process.isalive(), 5)


class Terminals:
    """Opens terminals on a cage's project; a test's are gone when it is."""

    def __init__(self, cage: Cage) -> None:
        self.cage = cage
        self.opened: list[Terminal] = []

    def cagewrap(self, *argv: Word, flags: tuple[str, ...] = (), **options: Any) -> Terminal:
        """`cagewrap -- ARGV` on a terminal."""
        return self.program(*self.cage.command(*flags), *argv, **options)

    def shell(self) -> Terminal:
        """An interactive shell with job control, and `$CAGEWRAP` as the words before a command."""
        shell = self.program("bash", "--norc", "--noprofile", "--noediting", "-i")
        shell.until(b"$ ")
        words = " ".join(str(word) for word in self.cage.command())
        shell.type(b"PS1='PROMPT''> '; cage() { %s \"$@\"; }\n" % words.encode())
        shell.until(PROMPT)
        return shell

    def script(self, text: str) -> Terminal:
        """A shell that runs `text`; `"$@"` are the words before a command."""
        return self.program("bash", "-c", text, "bash", *self.cage.command())

    def program(self, *argv: Word, **options: Any) -> Terminal:
        terminal = Terminal(argv, env=self.cage.env, cwd=self.cage.project, **options)
        self.opened.append(terminal)
        return terminal

    def remove(self) -> None:
        for terminal in self.opened:
            terminal.remove()


def children(pid: int) -> list[int]:
    return [int(word) for word in read_bytes(f"/proc/{pid}/task/{pid}/children").split()]


def runs(cage: Cage, *argv: str) -> bool:
    """Whether a command has become just that: neither the runtime nor what waits in front of it."""
    wanted = b"".join(word.encode() + b"\0" for word in argv)
    return wait_until(
        lambda: any(read_bytes(f"/proc/{pid}/cmdline") == wanted for pid in cage.inside_pids()), 10
    )
