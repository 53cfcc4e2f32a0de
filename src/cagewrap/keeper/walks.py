"""Walks through a project, each by a process of its own: one at a time, and not too often."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable

from cagewrap.holding.walk import WALK_S, Findings, Walk, load
from cagewrap.keeper import namespaces
from cagewrap.keeper.container import Container
from cagewrap.keeper.loop import Loop
from cagewrap.keeper.powers import Powers

_REST = 30.0
"""A walk is followed by a pause of so many times what it took, and at least of…"""
_REST_S = 1.0
_GUARDED = 10
"""The pause is so many times as long where a guard watches."""
_CLOSE_S = 4.0
"""How long a cage that stops may take to be looked after."""
_WALK_S = 90.0
"""A walk that takes longer is given up; it looks no further after `walk.WALK_S` by itself."""
_SHORT_S = 0.005
"""A walk that takes no longer is made without another process, also before a message's end is
told."""


class Walks:
    """Of one session."""

    def __init__(
        self,
        loop: Loop,
        container: Container,
        powers: Powers,
        make: Callable[[float], Walk],
        log: Callable[[str], None],
    ) -> None:
        """make: a walk that takes so many seconds at most."""
        self._loop, self._container, self._powers, self._log = loop, container, powers, log
        self._make = make
        self.walked: Callable[[Findings, int], None] = lambda _found, _since_ns: None
        """Told what was found, and since when it was looked for."""
        self.settled: Callable[[], None] = lambda: None
        """Told when all was looked through and no agent works any more."""
        self.last: Callable[[], None] = lambda: None
        """Done by the last walk's process."""
        self._pid = 0
        self._looked_at = -math.inf
        self._pause_s = 0.0
        self._seconds = 1.0
        self._must_settle = False
        self._messages = 0
        self._is_closed = False

    def begin_message(self) -> None:
        """An agent is about to work; the first time, look at once."""
        self._messages += 1
        self._must_settle = False
        if self._messages == 1:
            self._loop.later(0, self._look_first)  # nothing of it is for this message

    def _look_first(self) -> None:
        if not self._is_closed and not self._pid:
            self._try()

    def poll(self, *, is_guarded: bool) -> None:
        """Look, if the pause is over. is_guarded: what is made is looked at anyhow."""
        pause_s = self._pause_s * (_GUARDED if is_guarded else 1)
        if self._pid or time.monotonic() < self._looked_at + pause_s:
            return
        if self._seconds <= _SHORT_S:
            self._walk_here(WALK_S)
        else:
            self._try()

    def after(self) -> None:
        """A message's agent has ended: look, if that is quick."""
        if self._seconds <= _SHORT_S and not self._pid:
            self._walk_here(WALK_S)

    def settle(self) -> None:
        """No agent works: look a last time."""
        self._must_settle = True
        if not self._pid:
            self._try()

    def close(self) -> bool:
        """The container is gone: look a last time, at once; whether that was all."""
        end = time.monotonic() + _CLOSE_S
        while (left := end - time.monotonic()) > 0:
            found = self._walk_here(left)
            if found is None or not found.has_more:
                return found is not None and found.is_whole
        return False

    def stop(self) -> None:
        """Tell nobody any more."""
        self._is_closed = True

    def _walk_here(self, limit_s: float) -> Findings | None:
        walk = self._make(limit_s)
        try:
            found = walk.run()
            if found.denied:
                again = load(self._powers.run(lambda: self._make(limit_s).run().dump()))
                again.tamed += found.tamed
                found = again
        except OSError as error:
            self._log(f"held back: {error}")
            return None
        self._note(found, walk.since_ns)
        return found

    def _note(self, found: Findings, since_ns: int) -> None:
        self._seconds = found.seconds or self._seconds
        self._looked_at = time.monotonic()
        self._pause_s = max(found.seconds * _REST, _REST_S)
        self.walked(found, since_ns)

    def _try(self) -> None:
        try:
            self._begin()
        except OSError as error:
            self._log(f"held back: {error}")

    def _begin(self) -> None:
        result = os.memfd_create("walk")
        walk, is_last, messages = self._make(WALK_S), self._must_settle, self._messages

        def look() -> None:
            os.nice(10)
            with contextlib.suppress(OSError):  # of a container that has just ended
                namespaces.enter(namespaces.podman_user_namespace(self._container.init_pid))
            os.write(result, walk.run().dump())
            if is_last:
                self.last()

        def ended(_status: int) -> None:
            self._pid = 0
            deadline.cancel()
            with open(result, "rb") as file:
                file.seek(0)
                data = file.read()
            if self._is_closed:
                return
            found = load(data) if data else Findings(is_whole=False)
            self._note(found, walk.since_ns)
            if not data:  # it failed: nothing is settled, and the next one looks at all of it
                self._log("held back: the project could not be looked through")
                self._must_settle = False
            elif found.has_more:
                self._try()
            elif self._must_settle and is_last and messages == self._messages:
                self._must_settle = False
                self.settled()
            elif self._must_settle:  # it began while an agent was at work
                self._try()

        pid = self._pid = namespaces.spawn_inside(self._container.init_pid, (), result, look)
        deadline = self._loop.later(_WALK_S, lambda: os.kill(pid, signal.SIGKILL))
        self._loop.on_end(pid, ended)
