"""A broker's process, as its keeper sees it.

Its listening sockets are kept here too: while one that died is started again, who connects waits.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence

from cagewrap import upstream
from cagewrap.keeper import spawn
from cagewrap.keeper.care import Keep
from cagewrap.keeper.inheritance import Known
from cagewrap.keeper.loop import Loop
from cagewrap.keeper.ownprogram import Whose, spawn_own
from cagewrap.upstream import Upstream

_FIRST_FD = 3  # egress.broker.FIRST_FD, which is not imported here
DRAIN = b"d"
"""On the pipe that ends with the keeper: take nothing new, and end when all is done."""
_PATIENCE_S = (0.1, 5.0)
"""Before a broker that died is started again: at first, and at most."""


class Broker:
    """One process, for as long as the cage runs or its settings hold."""

    def __init__(
        self,
        loop: Loop,
        upstreams: tuple[Upstream, ...],
        listeners: Sequence[socket.socket],
        directory: str,
        env: Mapping[str, str],
        log: Callable[[str], None],
        whose: Whose,
    ) -> None:
        """Owns the listeners, one of each upstream. directory: where it counts, or "".

        whose: of which build the program is.
        """
        self._whose = whose
        self.upstreams = upstreams
        self._loop = loop
        self._listeners = [_high(listener) for listener in listeners]
        self._directory = directory
        self._env = dict(env)
        self._log = log
        self._life = -1
        self._pid = 0
        self._patience_s = _PATIENCE_S[0]
        self._started_at = 0.0
        self._is_closed = False
        self._start()

    def hand_on(self, keep: Keep) -> Known:
        """For the keeper that goes on as another build: its own process will have the listeners."""
        return {
            "life": keep(self._life) if self._life >= 0 else -1,
            "pid": self._pid,
            "upstreams": upstream.render_upstreams(self.upstreams),
            "listeners": [keep(listener.fileno()) for listener in self._listeners],
            "directory": self._directory,
            "env": self._env,
        }

    @property
    def is_failing(self) -> bool:
        """Whether it has ended again and again."""
        return self._life < 0 and self._patience_s >= _PATIENCE_S[1] / 2

    def variables(self) -> list[tuple[str, str]]:
        """What an agent is told."""
        return [
            (name, upstream.fill(value, f"http://127.0.0.1:{listener.getsockname()[1]}"))
            for one, listener in zip(self.upstreams, self._listeners, strict=True)
            for name, value in one.env
        ]

    def close(self) -> None:
        """End it."""
        self._is_closed = True
        if self._life >= 0:
            os.close(self._life)
            self._life = -1
        for listener in self._listeners:
            listener.close()

    def _start(self) -> None:
        """Start the process. Whatever fails is tried again: without a broker there is no API."""
        if self._is_closed:
            return
        self._started_at = time.monotonic()
        orders = _memory(
            {
                "upstreams": json.loads(upstream.render_upstreams(self.upstreams)),
                "directory": self._directory,
            }
        )
        reader, self._life = os.pipe2(os.O_CLOEXEC)
        given = [_high_fd(orders), _high_fd(reader), *(one.fileno() for one in self._listeners)]
        fds = [(fd, _FIRST_FD + at) for at, fd in enumerate(given)]
        try:
            self._pid = spawn_own(self._whose(), ("broker", "-"), self._env, fds, with_site=True)
        except OSError as error:
            self._log(f"broker: cannot be started: {error}")
            self._again()
            return
        finally:
            os.close(given[0])
            os.close(given[1])
        self._loop.on_end(self._pid, self._ended)

    def _ended(self, status: int) -> None:
        if not self._is_closed:
            self._log(f"broker: ended with {os.waitstatus_to_exitcode(status)}")
            self._again()

    def _again(self) -> None:
        os.close(self._life)
        self._life = -1
        if time.monotonic() - self._started_at > 2 * _PATIENCE_S[1]:
            self._patience_s = _PATIENCE_S[0]
        self._loop.later(self._patience_s, self._start)
        self._patience_s = min(2 * self._patience_s, _PATIENCE_S[1])


def let_end(loop: Loop, life: int, pid: int) -> None:
    """Have the process of the build before end, once what is under way with it has."""
    if life < 0:
        return
    with contextlib.suppress(OSError):
        os.write(life, DRAIN)
    loop.on_end(pid, lambda _status: os.close(life))


def _memory(value: object) -> int:
    fd = os.memfd_create("cagewrap-broker", os.MFD_CLOEXEC)
    os.write(fd, json.dumps(value).encode())
    return fd


def _high(listener: socket.socket) -> socket.socket:
    """The same socket with a number that is not one of the broker's own."""
    with listener:
        return socket.socket(
            fileno=fcntl.fcntl(listener.fileno(), fcntl.F_DUPFD_CLOEXEC, spawn.HIGH_FD)
        )


def _high_fd(fd: int) -> int:
    high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, spawn.HIGH_FD)
    os.close(fd)
    return high
