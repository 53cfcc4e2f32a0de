"""A piece of work in a child process, beside the keeper's loop."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable

from cagewrap.keeper.loop import Loop

_ANSWER_BYTES = 64 << 20
_MOST_S = 300
"""How long a child may take: longer than any honest repository, and what waits for it goes on."""


class Job:
    """One child. It is let finish even when the keeper ends: it may hold locks of git's."""

    def __init__(
        self, loop: Loop, work: Callable[[], bytes], ended: Callable[[bytes], None]
    ) -> None:
        """Begin. ended: called once with what `work` returned; b"" if it failed or died."""
        self._loop = loop
        self._ended = ended
        self._answer = b""
        self._is_over = False
        self._reader, writer = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            _be_child(work, writer)
        os.close(writer)
        loop.on_end(pid, lambda _status: None)
        loop.watch(self._reader, 1, lambda _mask: self._read())

    def wait(self, seconds: float) -> bool:
        """Wait for its end; whether it has come."""
        deadline = time.monotonic() + seconds
        while not self._is_over:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._reader], [], [], left)[0]:
                return False
            self._read()
        return True

    def _read(self) -> None:
        chunk = os.read(self._reader, 1 << 16)
        self._answer += chunk
        if chunk and len(self._answer) <= _ANSWER_BYTES:
            return
        self._is_over = True
        self._loop.unwatch(self._reader)
        os.close(self._reader)
        self._ended(self._answer)


def _be_child(work: Callable[[], bytes], writer: int) -> None:
    """Keep no copy of a message's descriptors: it would hide from a harness that the agent closed
    its own."""
    try:
        os.dup2(writer, 3)
        os.closerange(4, os.sysconf("SC_OPEN_MAX"))
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGALRM, _give_up)
        signal.alarm(_MOST_S)
        answer = memoryview(work())
        while answer:
            answer = answer[os.write(3, answer) :]
    except BaseException as error:  # noqa: BLE001 - nothing may escape into the parent's code
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
    finally:
        os._exit(0)


class _TooLongError(Exception):
    """No OSError: of those, many are an answer to what an agent did, and the work goes on."""


def _give_up(*_: object) -> None:
    """An exception, so that locks are given back."""
    raise _TooLongError
