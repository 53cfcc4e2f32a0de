"""Care: what the agent writes in the project and the host would run stays out of the host's reach.

Directories are covered, in the cage, by private copies (`coverings`). Single files are compared
twice a second and put back. The rest of the project is walked through by another process, at the
first message and when nothing of an agent's runs any more, and from time to time in between.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence

from cagewrap.errors import SessionError
from cagewrap.holding import directory, hostgit, places, tree
from cagewrap.holding.directory import locked
from cagewrap.holding.names import DIRECTORIES
from cagewrap.holding.places import Place
from cagewrap.holding.provider import write_count
from cagewrap.holding.shelf import refresh
from cagewrap.holding.walk import WALK_S, Findings, Walk, load
from cagewrap.holding.watch import LINKS, Watch
from cagewrap.keeper import namespaces
from cagewrap.keeper.care import Care, Note
from cagewrap.keeper.container import Container
from cagewrap.keeper.coverings import Coverings
from cagewrap.keeper.covers import Cover, Identity
from cagewrap.keeper.loop import Loop
from cagewrap.keeper.request import Request
from cagewrap.keeper.rootwatch import RootWatch
from cagewrap.paths import Paths
from cagewrap.sessions import Record

_REST = 30.0
"""A walk is followed by a pause of so many times what it took, and at least of…"""
_REST_S = 1.0
_CLOSE_S = 5.0
"""How long a cage that stops may take to be looked after."""
_WALK_S = 90.0
"""A walk that takes longer is given up; it looks no further after `walk.WALK_S` by itself."""
_SHORT_S = 0.005
"""A walk that takes no longer is made without another process, also before a message's end is
told."""
_TOLD = 5
"""So many paths are named to a message; `cagewrap review` has all."""
_CODEX = {b"codex", b"codex.js"}
INSISTED, INSISTED_S = 8, 10.0
"""An agent whose file is put back so often within so many seconds means to have it there."""


class HeldBack(Care):
    """Of one cage."""

    def __init__(
        self,
        loop: Loop,
        record: Record,
        paths: Paths,
        container: Container,
        log: Callable[[str], None],
    ) -> None:
        """Looks at nothing yet."""
        self._loop, self._record, self._paths, self._log = loop, record, paths, log
        self._container = container
        self._store = store = directory.store_dir(paths.cage_dir(record.name))
        self._place = Place(paths, record.project)
        self._root = tree.open_project(record.project)
        self._watch = Watch(record.project, self._place.dir, store)
        self._coverings = Coverings(record, self._place, store, self._root, container)
        self._root_watch = RootWatch(loop, self._root, self._look)
        self._git: hostgit.NamedByGit | None = None
        self._walk_pid = 0
        self._walks_at = 0.0
        self._walk_s = 1.0
        self._is_active = False
        self._must_settle = False
        self._messages = 0
        self._has_looked = False
        self._held: list[str] = []
        self._times: dict[str, list[float]] = {}
        self._insisted_on = ""

    def prepare(self) -> Sequence[Cover]:
        """Make the private copies, unless an agent of another session works in the project."""
        try:
            with locked(self._place.dir):
                self._ask_git()
                return () if self._place.marks() else self._coverings.plan()
        except (OSError, SessionError) as error:
            self._log(f"held back: {error}")
            return ()

    def mounted(self, seen: Sequence[Identity]) -> None:
        """What is bare is covered before the first message."""
        try:
            with locked(self._place.dir):
                self._coverings.planned(seen)
        except OSError as error:
            self._log(f"held back: {error}")

    def before(self, request: Request, note: Note, ready: Callable[[], None]) -> None:
        """Everything is covered and compared before the agent starts."""
        programs = {os.path.basename(word) for word in request.argv[:2]}
        if programs & _CODEX:  # its sandbox fails when it cannot remove what it made
            self._coverings.asked.add(".codex")
        self._messages += 1
        self._must_settle = False
        self._root_watch.start()
        with locked(self._place.dir):
            self._ask_git()
            is_suspect = bool(self._place.marks())
            if is_suspect:
                self._compare()
            else:
                self._watch.snapshot(self._root)
            self._place.mark(self._record.name)
            self._is_active = True
            self._hold(self._coverings.renew(is_suspect=is_suspect))
        self._tell(note)
        if not self._has_looked:
            self._has_looked = True
            self._loop.later(0, self._look_first)  # nothing of it is for this message
        ready()

    def astray(self) -> str:
        """What is put back is there for a moment; one who insists makes many of these."""
        if not self._insisted_on:
            return ""
        return (
            f"{self._insisted_on!r} was put back {INSISTED} times in {INSISTED_S:.0f} s, and comes "
            "again: everything in the cage was ended, since this machine may run it; the next "
            "message starts it anew"
        )

    def mend(self) -> None:
        """Put back a last time."""
        self._look()

    def poll(self) -> None:
        """Put back what has changed, and look further from time to time."""
        self._look()
        if self._walk_pid or time.monotonic() < self._walks_at:
            return
        if self._walk_s <= _SHORT_S:
            self._walk_here()
        else:
            self._try_walk()

    def after(self, request: Request, note: Note) -> None:  # noqa: ARG002
        """Put back what has changed, and say so."""
        self._look()
        if self._walk_s <= _SHORT_S and not self._walk_pid:
            self._walk_here()
        self._tell(note)

    def idle(self) -> None:
        """Nothing of an agent's runs: after one more walk, the project is the owner's again."""
        self._must_settle = True
        if not self._walk_pid:
            self._try_walk()

    def close(self) -> None:
        """The container is gone."""
        try:
            if self._is_active:
                self._look()
                if self._walk_here(_CLOSE_S):  # else the next start goes on from here
                    self._settle()
            with locked(self._place.dir):
                self._place.clear(self._record.name)
            if self._record.rm:
                places.forget(self._paths, self._record.project, self._record.name)
        except OSError as error:
            self._log(f"held back: {error}")
        self._root_watch.stop()
        self._coverings.close()
        os.close(self._root)
        self._root = -1

    # -- at the root of the project ----------------------------------------------------------------

    def _look(self) -> None:
        """Compare the files, and cover what has lost its cover or has none."""
        try:
            with locked(self._place.dir):
                self._compare()
                if self._coverings.must_renew():
                    self._hold(self._coverings.renew(is_suspect=True))
                self._hold(self._coverings.hold_late(self._watch.files_dir))
                refresh(self._watch.files_dir)
        except (OSError, SessionError) as error:
            self._log(f"held back: {error}")

    def _compare(self) -> None:
        self._hold(self._watch.compare(self._root))

    def _ask_git(self) -> None:
        """Which files and which directory of the project the owner's git obeys."""
        found = hostgit.named_by_git(self._record.project, self._paths.home, self._git)
        if found is self._git:
            return
        self._git = found
        named = (*found.files, *((found.hooks,) if found.hooks else ()))
        self._watch.extra = found.files
        self._watch.links = (*LINKS, *hostgit.parents(named))
        is_covered = found.hooks.split("/")[0] in DIRECTORIES
        self._coverings.hooks = "" if is_covered else found.hooks
        self._root_watch.names = {os.fsencode(path.split("/")[0]) for path in self._watch.paths}

    def _hold(self, paths: list[str]) -> None:
        self._held += paths
        now = time.monotonic()
        for path in paths:
            times = [at for at in self._times.get(path, ()) if at > now - INSISTED_S]
            self._times[path] = [*times, now]
            if len(times) + 1 >= INSISTED:
                self._insisted_on = path
            self._log(f"held back: {path!r}")

    def _tell(self, note: Note) -> None:
        see = "it goes with this cage" if self._record.rm else "see cagewrap review"
        for path in self._held[:_TOLD]:
            note(f"the agent's {path!r} is held back, because this machine may run it; {see}")
        if len(self._held) > _TOLD:
            note(f"and {len(self._held) - _TOLD} more")
        self._held.clear()

    # -- the rest of the project -------------------------------------------------------------------

    def _walk(self, limit_s: float = WALK_S) -> Walk:
        return Walk(
            self._record.project,
            self._place.since_ns(),
            self._paths.state_dir,
            self._watch.files_dir,
            limit_s,
        )

    def _walk_here(self, limit_s: float = WALK_S) -> bool:
        """Whether all was looked at."""
        walk = self._walk(limit_s)
        try:
            found = walk.run()
        except OSError as error:
            self._log(f"held back: {error}")
            return False
        self._walked(found, walk.since_ns)
        return found.is_whole

    def _look_first(self) -> None:
        if self._root >= 0 and not self._walk_pid:
            self._try_walk()

    def _try_walk(self) -> None:
        try:
            self._begin_walk()
        except OSError as error:
            self._log(f"held back: {error}")

    def _begin_walk(self) -> None:
        """In a process of its own."""
        result = os.memfd_create("walk")
        walk, is_last, messages = self._walk(), self._must_settle, self._messages

        def look() -> None:
            os.nice(10)
            os.write(result, walk.run().dump())
            if is_last:
                write_count(self._store)

        def ended(_status: int) -> None:
            self._walk_pid = 0
            deadline.cancel()
            if self._root < 0:  # closed
                os.close(result)
                return
            with open(result, "rb") as file:
                file.seek(0)
                data = file.read()
            self._walked(load(data) if data else Findings(is_whole=False), walk.since_ns)
            if self._must_settle and is_last and messages == self._messages:
                self._must_settle = False
                self._settle()
            elif self._must_settle:  # it began while an agent was at work
                self._try_walk()

        pid = self._walk_pid = namespaces.spawn_inside(self._container.init_pid, (), result, look)
        deadline = self._loop.later(_WALK_S, lambda: os.kill(pid, signal.SIGKILL))
        self._loop.on_end(pid, ended)

    def _walked(self, found: Findings, since_ns: int) -> None:
        self._walk_s = found.seconds or self._walk_s
        self._walks_at = time.monotonic() + max(found.seconds * _REST, _REST_S)
        with contextlib.suppress(OSError), locked(self._place.dir):
            self._watch.trust_old(self._root, found.old, since_ns)
            suspects = self._watch.suspects(found.new)
            if suspects:
                self._hold(self._watch.compare(self._root, suspects))
        self._hold(found.tamed)
        if not found.is_whole:
            self._log("the project is too large to be looked through")

    def _settle(self) -> None:
        with contextlib.suppress(OSError), locked(self._place.dir):
            self._compare()
            refresh(self._watch.files_dir, is_last=True)
            self._place.unmark(self._record.name)
            self._coverings.settle()
        self._root_watch.stop()
        self._is_active = False
