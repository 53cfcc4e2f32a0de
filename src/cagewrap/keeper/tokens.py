"""Tokens that a command of the owner's prints."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from cagewrap.keeper import spawn
from cagewrap.keeper.loop import Loop, Timer

_KEEP_S = 300.0
_RUN_S = 30.0
"""A keyring may ask its owner for a password meanwhile."""
_MOST_BYTES = 4096


class TokenCommand:
    """What one command printed, for some minutes. Nothing of it is ever shown or logged."""

    def __init__(self, loop: Loop, argv: tuple[str, ...]) -> None:
        """Runs nothing yet."""
        self._loop = loop
        self._argv = argv
        self._value = ""
        self._fetched_at = -_KEEP_S
        self._waiting: list[Callable[[], None]] = []
        self._output = -1
        self._timer: Timer | None = None
        self.problem = ""
        """Why there is no value: a sentence without what the command said."""

    @property
    def value(self) -> str:
        """The token; "" when there is none (yet)."""
        return self._value if time.monotonic() - self._fetched_at < _KEEP_S else ""

    def fetch(self, done: Callable[[], None]) -> None:
        """Call `done` when `value` or `problem` says how it went."""
        if self.value:
            done()
            return
        self._waiting.append(done)
        if self._output < 0:
            self._start()

    def _start(self) -> None:
        self._output = os.memfd_create("cagewrap-token", os.MFD_CLOEXEC)
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        try:
            program = spawn.Program(self._argv[0], os.environ.get("PATH", ""))
            pid = spawn.spawn(program, self._argv, os.environ, ((self._output, 1), (null, 2)))
        except OSError as error:
            reason = error.strerror or str(error)
            self._loop.later(0, lambda: self._finish("", f"cannot be started: {reason}"))
            return
        finally:
            os.close(null)
        self._timer = self._loop.later(_RUN_S, lambda: _kill(pid))
        self._loop.on_end(pid, self._ended)

    def _ended(self, status: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        code = os.waitstatus_to_exitcode(status)
        text = os.pread(self._output, _MOST_BYTES, 0).decode(errors="replace").strip()
        if code:
            self._finish("", f"ended with {code}" if code > 0 else f"was ended by signal {-code}")
        elif not text or not text.isprintable() or " " in text:
            self._finish("", "did not print one token")
        else:
            self._finish(text, "")

    def _finish(self, value: str, problem: str) -> None:
        os.close(self._output)
        self._output = -1
        self._value, self._fetched_at = value, time.monotonic()
        self.problem = problem and f"the token command {os.path.basename(self._argv[0])} {problem}"
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done()


def _kill(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except OSError:
        return
