"""Having cagewrap's own login renewed, without waiting for it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from cagewrap.childenv import child_environment
from cagewrap.hostclaude import PASSED_ON
from cagewrap.keeper.loop import Loop
from cagewrap.keeper.ownprogram import Whose, spawn_own
from cagewrap.loginstore import LoginStore

_PAUSE_S = 30.0
"""How long after one renewal the next may begin."""


class Refresher:
    """Starts the renewing process, at most one at a time. It outlives the keeper if need be."""

    def __init__(
        self,
        loop: Loop,
        store: LoginStore,
        log: Callable[[str], None],
        whose: Whose,
    ) -> None:
        """Begins nothing."""
        self._whose = whose
        self._loop = loop
        self._store = store
        self._log = log
        self._waiting: list[Callable[[], None]] = []
        self._is_running = False
        self._last = -_PAUSE_S

    @property
    def may_begin(self) -> bool:
        """Whether a renewal is under way, or would not be too soon after the last."""
        return self._is_running or time.monotonic() - self._last >= _PAUSE_S

    def begin(self, claude: str, env: Mapping[bytes, bytes]) -> None:
        """Renew the login unless that is under way. claude: the owner's choice, or "".

        env: of the message that needs it, for proxies and certificates. Raises nothing.
        """
        if not self.may_begin or self._is_running:
            return
        self._start(claude, env, tries=2)

    def _start(self, claude: str, env: Mapping[bytes, bytes], tries: int) -> None:
        names = [name for name in PASSED_ON if name.encode() in env]
        passed = {name: os.fsdecode(env[name.encode()]) for name in names}
        child_env = child_environment(os.environ) | passed
        try:
            pid = spawn_own(self._whose(), ("refresh", claude), child_env)
        except OSError as error:
            self._log(f"the login cannot be renewed: {error}")
            return
        self._is_running = True

        def ended(status: int) -> None:
            self._is_running = False
            if os.WIFSIGNALED(status) and tries > 1:  # its claude goes on; the next waits for that
                self._start(claude, env, tries - 1)
            if not self._is_running:
                self._ended(status)

        self._loop.on_end(pid, ended)

    def when_done(self, done: Callable[[], None]) -> None:
        """Call `done` once the renewal under way has ended, or soon if there is none."""
        if self._is_running:
            self._waiting.append(done)
        else:
            self._loop.later(0, done)

    def _ended(self, status: int) -> None:
        self._last = time.monotonic()
        found = self._store.read_status()
        self._log(f"login: renewing ended with {os.waitstatus_to_exitcode(status)} {found.detail}")
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done()
