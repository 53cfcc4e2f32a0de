"""Care: what the agent writes in the project and the host would run stays out of the host's reach.

Directories are covered, in the cage, by private copies (`coverings`). Single files are compared
twice a second and put back. The rest of the project is walked through (`walks`).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Sequence

from cagewrap.errors import SessionError
from cagewrap.holding import directory, hostgit, places, tree
from cagewrap.holding.directory import locked
from cagewrap.holding.names import DIRECTORIES
from cagewrap.holding.places import Place
from cagewrap.holding.provider import look_at_all
from cagewrap.holding.shelf import refresh
from cagewrap.holding.walk import Findings, Walk
from cagewrap.holding.watch import LINKS, Watch
from cagewrap.keeper import powers
from cagewrap.keeper.care import Care, Keep, Note
from cagewrap.keeper.container import Container
from cagewrap.keeper.coverings import Coverings
from cagewrap.keeper.covers import Cover, Identity
from cagewrap.keeper.guard import Guard
from cagewrap.keeper.inheritance import Known
from cagewrap.keeper.insistence import Insistence
from cagewrap.keeper.loop import Loop
from cagewrap.keeper.powers import Powers
from cagewrap.keeper.request import Request
from cagewrap.keeper.rootwatch import RootWatch
from cagewrap.keeper.walks import Walks
from cagewrap.paths import Paths
from cagewrap.sessions import Record

_TOLD = 5
"""So many paths are named to a message; `cagewrap review` has all."""
_CODEX = {b"codex", b"codex.js"}
_TOO_LARGE = (
    "this project has more files than could be looked through: below its root, git and other "
    "programs of this machine may run what the agent wrote"
)


class HeldBack(Care):
    """Of one cage."""

    name = "held back"

    def __init__(
        self,
        loop: Loop,
        record: Record,
        paths: Paths,
        container: Container,
        log: Callable[[str], None],
    ) -> None:
        """Looks at nothing yet."""
        self._record, self._paths, self._log = record, paths, log
        self._container = container
        self._store = store = directory.store_dir(paths.cage_dir(record.name))
        self._place = Place(paths, record.project)
        self._root = tree.open_project(record.project)
        self._powers = Powers()
        self._watch = Watch(record.project, self._place.dir, store)
        self._coverings = Coverings(record, self._place, store, self._root, container)
        self._insistence = Insistence()
        self._root_watch = RootWatch(loop, self._root, self._look, self._insistence)
        self._walks = Walks(loop, container, self._powers, self._walk, log)
        self._walks.walked, self._walks.settled = self._walked, self._settle
        self._walks.last = lambda: look_at_all(store)
        self._guard = Guard(loop, container, self._walk, log)
        self._guard.told = self._told
        self._foreign: tuple[str, ...] = ()
        self._git: hostgit.NamedByGit | None = None
        self._is_active = False
        self._is_too_large = False
        self._held: list[str] = []
        self._noted: set[str] = set()

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

    def hand_on(self, keep: Keep) -> Known:
        """What is covered, and what nobody was told. The rest is written down."""
        self._look()
        return {
            "is_active": self._is_active,
            "coverings": self._coverings.hand_on(keep),
            "held": self._held,
        }

    def go_on(self, known: Known) -> None:
        """Compare and cover everything, as before a message, while something runs."""
        self._coverings.go_on(known.get("coverings", {}))
        self._held += known.get("held", ())
        if known.get("is_active", True):
            self._begin()

    def before(self, request: Request, note: Note, ready: Callable[[], None]) -> None:
        """Everything is covered and compared before the agent starts."""
        programs = {os.path.basename(word) for word in request.argv[:2]}
        if programs & _CODEX:  # its sandbox fails when it cannot remove what it made
            self._coverings.asked.add(".codex")
        self._begin()
        self._tell(note)
        ready()

    def _begin(self) -> None:
        self._open_powers()
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
            self._with_root(lambda: self._hold(self._coverings.renew(is_suspect=is_suspect)))
        self._walks.begin_message()
        self._guard.start()

    def _open_powers(self) -> None:
        """The container runs by now."""
        if not self._foreign:
            init_pid, paths = self._container.init_pid, self._paths
            self._powers.open(init_pid)
            self._foreign = powers.written_by_agents(init_pid, paths.state_dir, paths.home)

    def astray(self) -> str:
        """What is put back is there for a moment; one who insists makes many of these."""
        if not self._insistence.why:
            return ""
        return (
            f"{self._insistence.why}: everything in the cage was ended, since this machine may run "
            "it; the next message starts it anew"
        )

    def mend(self) -> None:
        """Put back a last time."""
        self._look()

    def poll(self) -> None:
        """Put back what has changed, and look further from time to time."""
        self._look()
        self._walks.poll(is_guarded=self._guard.is_whole)

    def after(self, request: Request, note: Note) -> None:  # noqa: ARG002
        """Put back what has changed, and say so."""
        self._look()
        self._walks.after()
        self._tell(note)

    def idle(self) -> None:
        """Nothing of an agent's runs: after one more walk, the project is the owner's again."""
        self._walks.settle()

    def close(self) -> None:
        """The container is gone."""
        try:
            if self._is_active:
                self._look()
                if self._walks.close():  # else the next start goes on from here
                    self._settle()
            with locked(self._place.dir):
                self._place.clear(self._record.name)
            if self._record.rm:
                places.forget(self._paths, self._record.project, self._record.name)
        except OSError as error:
            self._log(f"held back: {error}")
        self._walks.stop()
        self._guard.stop()
        self._root_watch.stop()
        self._coverings.close()
        self._powers.close()
        os.close(self._root)

    # -- at the root of the project ----------------------------------------------------------------

    def _look(self) -> None:
        """Compare the files, and cover what has lost its cover or has none."""
        try:
            with locked(self._place.dir):
                self._compare()
                if self._coverings.must_renew():
                    self._with_root(lambda: self._hold(self._coverings.renew(is_suspect=True)))
                self._hold(self._hold_late())
                refresh(self._watch.files_dir)
        except (OSError, SessionError) as error:
            self._log(f"held back: {error}")

    def _compare(self) -> None:
        self._hold(self._watch.compare(self._root))
        self._hold(self._regain(self._watch.denied))
        for path in self._watch.written:
            self._insistence.put_back(path, is_near=True)

    def _regain(self, denied: list[str]) -> list[str]:
        """Put back what an agent has left us no right to: it gave a directory away, or closed
        it. What cannot be put back even so is there to stay: the agent insists."""
        if not denied:
            return []

        def again() -> bytes:
            powers.give_back(self._root)
            taken = self._watch.compare(self._root, denied)
            return json.dumps([taken, self._watch.denied]).encode()

        try:
            taken, left = json.loads(self._powers.run(again))
        except OSError as error:
            self._log(f"held back: {error}")
            taken, left = [], denied
        for path in left:
            self._insistence.put_back(path, is_near=True)
        return list(taken)

    def _hold_late(self) -> list[str]:
        """An agent that has such a directory open may close it to us."""
        if not self._coverings.is_late:
            return []
        files = self._watch.files_dir
        held = self._powers.run(lambda: json.dumps(self._coverings.hold_late(files)).encode())
        return list(json.loads(held))

    def _with_root(self, work: Callable[[], None]) -> None:
        """Do what needs the right to write in the root, which an agent may have taken away."""
        try:
            work()
        except PermissionError:
            self._powers.run(lambda: powers.give_back(self._root))
            work()

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

    def _hold(self, paths: list[str], *, is_near: bool = True) -> None:
        self._held += paths
        for path in paths:
            self._insistence.put_back(path.partition(": ")[0], is_near=is_near)
            self._log(f"held back: {path!r}")

    def _tell(self, note: Note) -> None:
        see = "it goes with this cage" if self._record.rm else "see cagewrap review"
        for path in self._held[:_TOLD]:
            note(f"the agent's {path!r} is held back, because this machine may run it; {see}")
        if len(self._held) > _TOLD:
            note(f"and {len(self._held) - _TOLD} more")
        self._held.clear()
        for text in (self._is_too_large and _TOO_LARGE, self._guard.lacks):
            if text and text not in self._noted:
                self._noted.add(text)
                note(text)

    # -- the rest of the project -------------------------------------------------------------------

    def _walk(self, limit_s: float) -> Walk:
        known = {path for path, one in self._watch.known.items() if one.digest != tree.MISSING}
        return Walk(
            self._record.project,
            self._place.since_ns(),
            self._foreign,
            self._watch.files_dir,
            known=known,
            limit_s=limit_s,
        )

    def _told(self, found: Findings, since_ns: int) -> None:
        """What the guard has found, a part of the project."""
        found.is_whole = not self._is_too_large
        self._walked(found, since_ns)

    def _walked(self, found: Findings, since_ns: int) -> None:
        with contextlib.suppress(OSError), locked(self._place.dir):
            self._watch.trust_old(self._root, found.old, since_ns)
            suspects = self._watch.suspects(found.new)
            if suspects:
                self._hold(self._watch.compare(self._root, suspects), is_near=False)
                self._hold(self._regain(self._watch.denied), is_near=False)
        self._hold(found.tamed, is_near=False)
        self._is_too_large = not found.is_whole
        if not found.is_whole:
            self._log("the project is too large to be looked through")

    def _settle(self) -> None:
        with contextlib.suppress(OSError), locked(self._place.dir):
            self._compare()
            refresh(self._watch.files_dir, is_last=True)
            self._place.unmark(self._record.name)
            self._coverings.settle()
        self._root_watch.stop()
        self._guard.stop()
        self._is_active = False
