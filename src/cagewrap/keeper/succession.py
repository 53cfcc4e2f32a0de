"""A keeper goes on as another build of cagewrap, when a shim of that build has asked.

It executes that build's program in its own place, as soon as no message runs: the container, what
agents left in the background, ports and brokers' sockets stay. Before that a process of the other
build is tried. Who knocks meanwhile waits, unread, and is heard by the next.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable, Sequence

from cagewrap import ahead
from cagewrap.builds import Build, own_build
from cagewrap.childenv import child_environment
from cagewrap.keeper import cgroups, spawn
from cagewrap.keeper.inheritance import (
    FORMATS,
    QUESTION,
    Inheritance,
    keep_from_children,
    write_inheritance,
)
from cagewrap.keeper.loop import Loop, Timer
from cagewrap.keeper.ownprogram import spawn_own

TRY_S = 10.0
"""How long a process of the other build may take to say that it is well."""
AGAIN_S = 10.0
"""After a failure, that build is not tried again for so long: it may be half installed."""
_FREEZE_S = 0.5
_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Succession:
    """Of one keeper."""

    def __init__(
        self,
        loop: Loop,
        may: Callable[[], bool],
        leave: Callable[[], Inheritance],
        stay: Callable[[], None],
        log: Callable[[str], None],
    ) -> None:
        """This process's build is noted now: its files may be replaced later.

        may: whether nothing is under way at this moment. leave: makes what is left to the other
        build. stay: called when one was tried, and the keeper stays what it is.
        """
        self.build = own_build()
        self._loop, self._may, self._leave, self._stay, self._log = loop, may, leave, stay, log
        self._wanted: Build | None = None
        self._trial: socket.socket | None = None
        self._pid = 0
        self._timer: Timer | None = None
        self._failed = b""
        self._failed_at = 0.0

    @property
    def program(self) -> Build:
        """Whose programs to start: ours, or, where ours are gone, those of who asked last."""
        root = self.build.root
        is_there = os.path.exists(root + b"/cagewrap/entry.py" if root else self.build.executable)
        return self.build if is_there or self._wanted is None else self._wanted

    @property
    def is_trying(self) -> bool:
        """Whether another build is being tried."""
        return self._trial is not None

    def asked_by(self, build: Build) -> bool:
        """A message of that build has come; whether it must wait for what comes of it."""
        if build.id == self.build.id:
            if not self.is_trying:
                self._wanted = None
            return False
        self._wanted = build
        return self.is_trying or self.begin()

    def begin(self) -> bool:
        """Try the build that is wanted, if one is and we can go; whether it is tried now."""
        if self._wanted is None or self.is_trying or self._has_failed(self._wanted):
            return False
        if not self._may():
            return False
        try:
            self._try(self._wanted)
        except OSError as error:
            self._fail(self._wanted, str(error))
        return self.is_trying

    def _has_failed(self, build: Build) -> bool:
        is_same = build.id == self._failed
        return not build.executable or (is_same and time.monotonic() - self._failed_at < AGAIN_S)

    # -- trying --------------------------------------------------------------------------------

    def _try(self, build: Build) -> None:
        """Have a keeper of the other build say what it can go on from: so it starts at all."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        env = child_environment(os.environ)
        with theirs:
            high = fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD_CLOEXEC, spawn.HIGH_FD)
            try:
                self._pid = spawn_own(build, ("keeper", "3"), env, ((high, 3),))
            except OSError:
                ours.close()
                raise
            finally:
                os.close(high)
        self._trial = ours
        self._timer = self._loop.later(TRY_S, self._give_up)
        self._loop.on_end(self._pid, lambda _status: None)
        self._loop.watch(ours.fileno(), 1, lambda _mask: self._tried(build))
        with contextlib.suppress(OSError):
            ours.send(QUESTION)

    def _give_up(self) -> None:
        with contextlib.suppress(OSError):
            os.kill(self._pid, signal.SIGKILL)

    def _tried(self, build: Build) -> None:
        assert self._trial is not None  # noqa: S101
        try:
            answer = json.loads(self._trial.recv(1 << 16) or b"{}")
        except (OSError, ValueError):
            answer = {}
        formats = answer.get("formats", ()) if isinstance(answer, dict) else ()
        if FORMATS[-1] in formats:
            if self._may():
                self._go(build)  # comes back only if it fails
        else:
            self._fail(build, f"it can go on from {formats or 'nothing'}, see the lines before")
        self._end_trial()
        self._stay()

    def _end_trial(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._trial is not None:
            self._loop.unwatch(self._trial.fileno())
            self._trial.close()
            self._trial = None

    def _fail(self, build: Build, why: str) -> None:
        self._failed, self._failed_at = build.id, time.monotonic()
        self._log(f"cannot go on as {_text(build)}: {why}")

    # -- going ---------------------------------------------------------------------------------

    def _go(self, build: Build) -> None:
        """Execute it. A signal to stop is heard by the one or the other."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
        left: Inheritance | None = None
        try:
            left = self._leave()
            if freeze(left.lingering):
                self._execute(build, left)
            else:
                self._fail(build, "what agents left in the background cannot be held up")
        except Exception as error:  # noqa: BLE001 - whatever it is, this keeper goes on
            self._fail(build, repr(error))
        finally:
            if left is not None:
                thaw(left.lingering)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)

    def _execute(self, build: Build, left: Inheritance) -> None:
        self._log(f"goes on as {_text(build)}")
        fd = write_inheritance(left)
        try:
            argv = ahead.self_command("keeper", str(fd), build=build)
            os.execve(argv[0], argv, child_environment(os.environ))  # noqa: S606
        finally:
            keep_from_children(left, fd)


def freeze(paths: Sequence[str]) -> bool:
    """Hold up all that runs in some cgroups, since nobody will look after it for a moment; whether
    all of it is."""
    is_told = all(cgroups.freeze(path, is_frozen=True) for path in paths)
    return is_told and cgroups.wait_until_frozen(paths, _FREEZE_S)


def thaw(paths: Iterable[str]) -> None:
    """Let it go on."""
    for path in paths:
        cgroups.freeze(path, is_frozen=False)


def _text(build: Build) -> str:
    return f"cagewrap {build.version} of {os.fsdecode(build.root or build.executable)}"
