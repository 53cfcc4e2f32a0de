"""Care: a cage has a git directory of its own, and what is safe of it is the host's too."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import time
from collections.abc import Callable, Sequence

from cagewrap.errors import SessionError
from cagewrap.gitcarry import carry_once, clear_after
from cagewrap.gitlayout import Layout, find_layout, git_store, pair_of
from cagewrap.gitsync.killed import clear_locks
from cagewrap.gitsync.pair import Pair, opened, read_stamps
from cagewrap.gitsync.sync import Outcome
from cagewrap.holding.directory import locked, store_dir
from cagewrap.holding.places import Place
from cagewrap.keeper.care import Care, Keep, Note
from cagewrap.keeper.container import Container
from cagewrap.keeper.covers import Cover, Identity, identity
from cagewrap.keeper.gitcovers import GitCovers
from cagewrap.keeper.gitlate import (
    is_led_astray,
    make_harmless,
    make_submodules_harmless,
    put_aside,
)
from cagewrap.keeper.gitlink import GitLink
from cagewrap.keeper.inheritance import Known
from cagewrap.keeper.loop import Loop
from cagewrap.keeper.namewatch import ANY_CHANGE, NameWatch
from cagewrap.keeper.powers import Powers
from cagewrap.keeper.request import Request
from cagewrap.keeper.worker import Job
from cagewrap.paths import Paths
from cagewrap.sessions import Record

AFTER_S = 10.0
"""How long the end of a message is held up until the host has what the agent did."""
BUSY_S = 1.0
"""And of that, how long for somebody who is at work on the same, such as a git of the host's: what
is not carried then is carried later."""
CLOSE_S = 15.0
"""The same when the cage stops; what takes longer goes on without a keeper."""
AGAIN_S = (0.025, 30.0)
"""When a run could not carry all, or not see whether it did, another is made after this; then
after twice the time, and so on up to the second."""
_ROOT_PAUSE_S = 0.005
"""After something happened in the project's root, the next is looked at so much later: an agent may
write there for ever."""


class GitCare(Care):
    """Of one cage."""

    name = "git"

    def __init__(
        self,
        loop: Loop,
        record: Record,
        paths: Paths,
        container: Container,
        log: Callable[[str], None],
    ) -> None:
        """Looks at nothing yet."""
        self._loop, self._record, self._log = loop, record, log
        self._container = container
        self._covers = GitCovers(record, container, git_store(paths, record.name))
        self._place = Place(paths, record.project)
        self._link = GitLink(record.project)
        self._index_watch = NameWatch(loop, self._index_written)
        self._git_watch = NameWatch(loop, self._git_changed, mask=ANY_CHANGE, pause_s=_ROOT_PAUSE_S)
        self._ask: Callable[[], None] = lambda: None
        self._is_working = False
        self._files_dir = os.path.join(store_dir(paths.cage_dir(record.name)), "files")
        self._git: Identity = (0, 0)
        self._git_path = os.path.join(record.project, ".git")
        self._covered_ns = 0
        self._layout = Layout()
        self._has_begun = False
        self._planned: list[Cover] = []
        self._is_new = False
        self._outcome = Outcome()
        self._job: Job | None = None
        self._waiting: list[Callable[[], None]] = []
        self._late: list[Callable[[], None]] = []
        self._notes_file = os.path.join(self._covers.directory, "notes.json")
        self._notes: list[str] = []
        self._again_s = AGAIN_S[0]
        self._is_closed = False

    def prepare(self) -> Sequence[Cover]:
        """Fill the copy while podman is at work."""
        try:
            self._planned = self._begin_cover()
        except (OSError, SessionError) as error:
            self._log(f"git: {error}")
            return ()
        if self._layout.git_dir:
            self._is_new = True
            self._begin(may_refill=True)
        return self._planned

    def mounted(self, seen: Sequence[Identity]) -> None:
        """With anything else to be seen, all is covered anew before the first message."""
        sources = [identity(cover.source) for cover in self._planned]
        if list(seen) != sources or self.astray():
            self._has_begun = False

    def before(self, request: Request, note: Note, ready: Callable[[], None]) -> None:  # noqa: ARG002
        """All is covered, and what the host did is carried, before an agent starts."""
        self._cover()
        self._begin_work()
        if why := self.astray():
            raise SessionError(f"{why}.", "send the message again")

        def tell() -> None:
            self._is_new = False
            self._tell(note)
            ready()

        if self._is_current():
            tell()
        elif self._job is None:
            self._waiting.append(tell)
            self._begin()
        else:  # it may have looked at the host too early
            self._late.append(tell)

    def can_ask(self, ask: Callable[[], None]) -> None:
        """For what git on the host does next."""
        self._ask = ask

    def _begin_work(self) -> None:
        if not self._is_working:
            self._is_working = True
            self._covers.begin_work()
            self._index_watch.start(self._covers.index)
            self._git_watch.start(self._git_path)

    def _end_work(self) -> None:
        self._is_working = False
        self._index_watch.stop()
        self._git_watch.stop()

    def _git_changed(self) -> None:
        """git on the host may be asked a few milliseconds from now."""
        if self._is_replaced():
            self._ask()

    def _index_written(self) -> None:
        """git on the host may go into a submodule a few milliseconds from now."""
        if not self._is_replaced() and self._covers.late_submodules():
            self._ask()

    def astray(self) -> str:
        """A `.git` that was removed or replaced, or is a new submodule's, is not covered where an
        agent can have looked at it: in a mount namespace made before, by a directory held open."""
        if not self._has_begun:
            return ""
        if self._is_replaced():
            return (
                ".git of the project was removed or replaced on the host: everything in the cage "
                "was ended, and the next message starts it anew"
            )
        late = self._covers.late_submodules() if self._is_working else []
        if not late:
            return ""
        more = f" and {len(late) - 1} more" if late[1:] else ""
        return (
            f"git's index on the host has got the submodule {late[0]!r}{more} while an agent "
            "worked, and git on the host runs what that one's configuration says: everything in "
            "the cage was ended, and the next message starts it anew"
        )

    def _is_replaced(self) -> bool:
        """Whether `.git` is another one: nothing in it may be opened then."""
        return not self._link.is_kept and identity(self._git_path) != self._git

    def poll(self) -> None:
        """Carry what has changed, while it happens."""
        try:
            self._cover()
        except (OSError, SessionError) as error:
            self._log(f"git: {error}")
            return
        if not self.astray() and not self._is_current():
            self._begin()

    def after(self, request: Request, note: Note) -> None:  # noqa: ARG002
        """The host has what the agent did before anybody is told that it ended."""
        if self.astray():
            self._ask()  # before its harness knows that it ended, and the owner uses git
        else:
            self._finish(AFTER_S)
        self._tell(note)

    def idle(self) -> None:
        """The agents are dead: an agent's git that was killed has let go of no lock."""
        self._end_work()
        self._clear_locks()

    def close(self) -> None:
        """Carry a last time."""
        if not self.astray():
            self._finish(CLOSE_S)
        if self._record.rm and self._job is None and self._layout.git_dir:
            clear_after(self._pair())
        self._is_closed = True
        self._end_work()
        with contextlib.suppress(OSError):
            self._write_notes()
        self._covers.close()

    def mend(self) -> None:
        """Undo what an agent did to a `.git` that was not covered."""
        if not self._is_replaced():
            self._mend_submodules()
        project = self._record.project
        with contextlib.suppress(OSError):
            if is_led_astray(project, find_layout(project)):
                self._notes.append(put_aside(project))
            self._notes += make_harmless(project, self._covered_ns, self._files_dir)

    def hand_on(self, keep: Keep) -> Known:
        """What is covered, by descriptors that stay open."""
        if not self._has_begun:
            return {}
        return {
            "git": self._git,
            "covered_ns": self._covered_ns,
            "link": self._link.hand_on(),
            "covers": self._covers.hand_on(keep),
            "notes": self._notes,
            "submodules": self._covers.known_submodules() if self._is_working else None,
        }

    def go_on(self, known: Known) -> None:
        """What is not covered any more was exchanged while an agent's process was there."""
        if not known:
            return
        device, inode = known["git"]
        self._git, self._has_begun = (device, inode), True
        self._covered_ns = known["covered_ns"]
        self._link.go_on(*known["link"])
        self._notes += known["notes"]
        self._covers.go_on(known["covers"])
        if self._is_replaced():  # all is ended at the first poll
            return
        layout = self._find_layout()
        self._covers.renew(layout, self._record.project)
        self._is_covered(layout)
        submodules = known.get("submodules", ())
        if submodules is not None:
            self._begin_work()
            self._covers.work_began_with(submodules)

    def _mend_submodules(self) -> None:
        """As fast as can be: git on the host is on its way. Then with the rights that an agent
        can have taken from us."""
        paths = self._covers.late_submodules()
        if not paths:
            return
        project, since_ns = self._record.project, self._place.since_ns()

        def mend() -> bytes:
            return json.dumps(
                make_submodules_harmless(project, paths, since_ns, self._files_dir)
            ).encode()

        self._notes += json.loads(mend())
        powers = Powers()
        with contextlib.suppress(OSError):
            powers.open(self._container.init_pid)
            self._notes += json.loads(powers.run(mend))
        powers.close()

    # -- covering ----------------------------------------------------------------------------------

    def _cover(self) -> None:
        """Cover what is not covered; nothing in a cage that is astray, and about to be ended."""
        project = self._record.project
        self._link.keep(self._notes)
        if self.astray():
            return
        if self._has_begun and not self._covers.must_renew(project):
            self._covered_ns = time.time_ns()
            return
        layout = self._find_layout()
        self._covers.renew(layout, project)
        self._is_covered(layout)

    def _begin_cover(self) -> list[Cover]:
        """What to cover of a cage that does not run yet."""
        self._link.keep(self._notes)
        layout = self._find_layout()
        planned = self._covers.plan(layout, self._record.project)
        self._is_covered(layout)
        return planned

    def _find_layout(self) -> Layout:
        layout = find_layout(self._record.project)
        if not self._has_begun and not os.path.lexists(self._git_path):
            with contextlib.suppress(OSError), locked(self._place.dir):
                self._place.make(".git")
            layout = find_layout(self._record.project)
        if not self._covers.targets(layout.git_dir):
            layout = Layout(file=layout.file)  # it lies where no cage may write
        return layout

    def _is_covered(self, layout: Layout) -> None:
        if not self._has_begun:
            self._read_notes()
            self._clear_locks()
        self._layout, self._git = layout, identity(self._git_path)
        self._outcome, self._has_begun = Outcome(), True
        self._covered_ns = time.time_ns()

    def _clear_locks(self) -> None:
        """Let the next agent's git do its work."""
        with contextlib.suppress(OSError), opened(self._covers.copy_dir) as copy:
            clear_locks(copy)

    def _write_notes(self) -> None:
        """What nobody was told is told by the next keeper."""
        if self._notes:
            with open(self._notes_file, "w", encoding="utf-8") as file:
                json.dump(self._notes, file)

    def _read_notes(self) -> None:
        """What the last keeper could tell nobody."""
        with contextlib.suppress(OSError, ValueError):
            with open(self._notes_file, encoding="utf-8") as file:
                self._notes += [str(text) for text in json.load(file)]
            os.unlink(self._notes_file)

    def _pair(self) -> Pair:
        return pair_of(self._record, self._layout, self._covers.directory)

    # -- carrying ----------------------------------------------------------------------------------

    def _is_current(self) -> bool:
        """Whether neither side has changed since all was carried."""
        if not self._layout.git_dir:
            return True
        # While no agent has run, the copy has changed by our hand alone; and what the host did
        # in the very moment of the run is looked at once more in a moment (see `_carried`).
        is_enough = self._outcome.is_at_rest if self._is_new else self._outcome.is_settled
        return is_enough and self._is_unchanged()

    def _is_unchanged(self) -> bool:
        return read_stamps(self._outcome.paths) == self._outcome.stamps

    def _begin(self, *, may_refill: bool = False) -> None:
        if self._job is None:
            may_refill = may_refill or bool(self._waiting)
            work = functools.partial(_work, self._pair(), may_refill=may_refill)
            self._job = Job(self._loop, work, self._carried)

    def _carried(self, answer: bytes) -> None:
        self._job = None
        outcome = Outcome(states=["git's state could not be carried; see cagewrap logs"])
        if answer:
            found = json.loads(answer)
            found["stamps"] = [tuple(one) if one else None for one in found["stamps"]]
            outcome = Outcome(**found)
        before, self._outcome = self._outcome, outcome
        for text in (*outcome.notes, *outcome.states):
            if text not in self._notes and text not in before.states:
                self._log(f"git: {text}")
                self._notes.append(text)
        waiting, self._waiting, self._late = self._waiting, self._late, []
        if self._waiting:
            self._begin()
        for ready in waiting:
            ready()
        if outcome.is_settled:
            self._again_s = AGAIN_S[0]
        else:
            self._loop.later(self._again_s, self._again)
            self._again_s = min(2 * self._again_s, AGAIN_S[1])

    def _again(self) -> None:
        """Once more, if nothing else has made it meanwhile."""
        if not self._is_closed and not self._outcome.is_settled:
            self._begin()

    def _finish(self, seconds: float) -> None:
        """Carry what an agent did until now, waiting for it."""
        if not self._has_begun or not self._layout.git_dir:
            return
        if self._job is not None and not self._job.wait(seconds):
            return
        deadline = time.monotonic() + BUSY_S
        while not self._is_current():
            self._begin()
            job = self._job
            is_done = job is None or job.wait(seconds)
            is_busy = self._outcome.is_busy and not self._outcome.is_full
            if not is_done or not is_busy or time.monotonic() > deadline:
                return
            time.sleep(AGAIN_S[0])

    def _tell(self, note: Note) -> None:
        for text in self._notes:
            note(text)
        self._notes.clear()


def _work(pair: Pair, *, may_refill: bool) -> bytes:
    """One run, in a process of its own."""
    return json.dumps(vars(carry_once(pair, may_refill=may_refill))).encode()
