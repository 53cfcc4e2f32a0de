"""Renewing cagewrap's own login: a process that a keeper starts, one at a time for all keepers.

The host's claude does it, in a copy of the login: it asks for a new token when it is about to
start, and the only sign that it has is that the file changes. A token that was asked for and not
stored is lost, and with it the login, since each refresh token works once. So claude is not
signalled and its stdin is held open until then, by a process that outlives this one; and what a
killed renewal has left is taken over by the next.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import time
from collections.abc import Callable, Mapping

from cagewrap import proc, sessions
from cagewrap.agentnames import ON_HOST
from cagewrap.hostclaude import PASSED_ON, find_claude, find_ours, ours_in_words
from cagewrap.loginstore import (
    CREDENTIALS,
    EARLY_S,
    Credentials,
    LoginStore,
    Status,
    parse_credentials,
    read_private,
    replace_file,
)
from cagewrap.paths import Paths, paths_from_env

DONE, NO_LOGIN, DEAD, FAILED = 0, 10, 11, 12
"""Exit codes. DONE: the login is good, whoever renewed it."""

_ARGUMENTS = (
    "-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose",
    "--setting-sources", "", "--strict-mcp-config", "--no-session-persistence",
)  # fmt: skip
_POLL_S = 0.1
_RENEWAL_S = 75.0
"""How long claude may take: 30 s for the request, 10 s for the profile, 8 s for a lock, and as
much again."""
_QUIET_S = 5.0
_CLAUDES_LOCK = ".oauth_refresh.lock"
_HOLD_S = 100.0
_LEAVE_S = 30.0
_LOCK_S = 120.0
_AGAIN_S = 20.0
"""A renewal that failed is not tried again within this, whoever asks."""
_JUST_NOW_S = 60.0
"""Nor is a login renewed twice within this, unless it has ended."""


def main(claude: str) -> int:
    """Renew the login if it must be. claude: the one the owner names, or ""."""
    os.umask(0o077)
    return Renewal(paths_from_env(os.environ, os.getuid()), os.environ, claude).run()


class Renewal:
    """One renewal, perhaps after waiting for another."""

    def __init__(self, paths: Paths, env: Mapping[str, str], claude: str) -> None:
        """Does nothing yet."""
        self.paths = paths
        self.env = env
        self.told = claude
        self.store = LoginStore(paths)
        self._place = os.path.join(self.store.directory, "renewal")
        self._login = os.path.join(self._place, "login")
        self._copy = os.path.join(self._login, CREDENTIALS)
        self._begun_with = os.path.join(self._place, "begun-with")

    def run(self) -> int:
        """Returns an exit code."""
        if self.store.read() is None:
            return NO_LOGIN
        fd = os.open(self.store.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            return self._run_locked() if self._lock(fd) else DONE
        except TimeoutError:
            return FAILED
        finally:
            os.close(fd)

    def _lock(self, fd: int) -> bool:
        """Take the lock; False when the login has become good meanwhile."""
        deadline = time.monotonic() + _LOCK_S
        while time.monotonic() < deadline:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._take_over()
                if self._is_good():
                    return False
                time.sleep(_POLL_S)
            else:
                return True
        raise TimeoutError

    def _is_good(self) -> bool:
        found, now = self.store.read(), time.time()
        if found is None or found.expires_at <= now:
            return False
        return (
            found.expires_at - now > EARLY_S
            or now - self.store.read_status().refreshed_at < _JUST_NOW_S
        )

    def _run_locked(self) -> int:
        self._take_over()
        found = self.store.read()
        if found is None:
            return NO_LOGIN
        status = self.store.read_status()
        if self._is_good():
            return DONE
        if self.store.is_dead(found):
            return DEAD
        is_same = status.outcome == "failed" and status.digest == found.digest
        if is_same and 0 <= time.time() - status.tried_at < _AGAIN_S:
            return FAILED
        projects = sessions.written_by_cages(self.paths)
        claude = find_claude(self.env.get("PATH", ""), self.paths.home, projects, self.told)
        if not claude:
            ours = find_ours(self.env.get("PATH", ""), self.paths.home, self.told)
            why = f"there is no claude on this machine to do it{ours_in_words(ours)}"
            return self._failed(found, status, why)
        return self._renew(claude, found, status)

    def _renew(self, claude: str, found: Credentials, status: Status) -> int:
        self._prepare(found)
        self._run_claude(claude, found)
        if self._take_over():
            return DONE
        if self._was_refused():
            self._clear()
            self._note(status, found, "dead", "it was refused")
            return DEAD
        self._clear()
        return self._failed(found, status, "claude did not get a new token")

    def _failed(self, found: Credentials, status: Status, detail: str) -> int:
        self._note(status, found, "failed", detail)
        return FAILED

    def _note(self, status: Status, found: Credentials, outcome: str, detail: str) -> None:
        now = time.time()
        self.store.write_status(
            status._replace(tried_at=now, outcome=outcome, digest=found.digest, detail=detail)
        )

    def _prepare(self, found: Credentials) -> None:
        """A copy of the login that says it has ended, and a home for claude with nothing in it."""
        self._clear()
        for name in ("login", "home", "cwd"):
            sessions.make_private(os.path.join(self._place, name))
        replace_file(self._begun_with, found.digest.encode())
        ended = Credentials({**found.values, "expiresAt": 1})
        replace_file(self._copy, ended.whole())

    def _clear(self) -> None:
        shutil.rmtree(self._place, ignore_errors=True)

    def _run_claude(self, claude: str, found: Credentials) -> None:
        home = os.path.join(self._place, "home")
        env = {name: self.env[name] for name in PASSED_ON if name in self.env} | {
            "PATH": self.env.get("PATH", ""),
            "HOME": home,
            "CLAUDE_CONFIG_DIR": os.path.join(home, "cfg"),
            "CLAUDE_SECURESTORAGE_CONFIG_DIR": self._login,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            ON_HOST: claude,
        }
        reading, writing = os.pipe2(os.O_CLOEXEC)
        cwd = os.path.join(self._place, "cwd")
        child = proc.start((claude, *_ARGUMENTS), env=env, cwd=cwd, stdin=reading)
        os.close(reading)
        holder = _hold_open(child.pid)
        try:
            self._wait_for_token(child.poll, found)
        finally:
            os.close(writing)
            os.kill(holder, signal.SIGKILL)
            os.waitpid(holder, 0)
        deadline = time.monotonic() + _LEAVE_S
        while child.poll() is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        if child.poll() is None:
            child.kill()
            child.wait()

    def _wait_for_token(self, ended: Callable[[], int | None], found: Credentials) -> None:
        """Until there is one, or claude has given up: it holds its lock while it asks, and making
        and removing that shows on the directory. It is not to be stopped while it asks."""
        lock = os.path.join(self._login, _CLAUDES_LOCK)
        untouched = os.stat(self._login).st_mtime_ns
        deadline = time.monotonic() + _RENEWAL_S
        quiet_since = 0.0
        while time.monotonic() < deadline and ended() is None:
            if self._copied_token() not in (None, found.access_token):
                return
            has_begun = os.stat(self._login).st_mtime_ns != untouched
            if not has_begun or os.path.lexists(lock):
                quiet_since = 0.0
            elif not quiet_since:
                quiet_since = time.monotonic()
            elif time.monotonic() - quiet_since > _QUIET_S:
                return
            time.sleep(_POLL_S)

    def _copied_token(self) -> str | None:
        """None when it cannot be read at this moment."""
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return str(json.loads(read_private(self._copy) or b"")["claudeAiOauth"]["accessToken"])
        return None

    def _take_over(self) -> bool:
        """Take what a renewal of this very login has brought, this one or one that was killed."""
        found, now = self.store.read(), time.time()
        begun_with = (read_private(self._begun_with) or b"").decode()
        if found is None or begun_with != found.digest:
            return False
        new = parse_credentials(read_private(self._copy) or b"")
        if new is None or not new.refresh_token or new.access_token == found.access_token:
            return False
        self.store.write(new)
        self.store.write_status(
            Status(tried_at=now, refreshed_at=now, outcome="ok", digest=new.digest)
        )
        self._clear()
        return True

    def _was_refused(self) -> bool:
        """Whether claude has blanked the copy, as it does with a login that has ended."""
        with contextlib.suppress(ValueError, KeyError, TypeError):
            values = json.loads(read_private(self._copy) or b"")["claudeAiOauth"]
            return not values["refreshToken"] and not values["accessToken"]
        return False


def _hold_open(pid: int) -> int:
    """A process that keeps claude's stdin open and the lock held when we are killed, until claude
    has ended or has had time enough; returns its pid. A fork has both descriptors."""
    pidfd = os.pidfd_open(pid)
    holder = os.fork()
    if holder == 0:
        try:
            os.setsid()
            select.select([pidfd], [], [], _HOLD_S)
        finally:
            os._exit(0)
    os.close(pidfd)
    return holder
