"""One run of carrying, over all of a pair: what changed on either side reaches the other."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from cagewrap import beneath
from cagewrap.gitsync.carryconfig import carry_config, has_files_of_refs, oid_length_of
from cagewrap.gitsync.carryfiles import carry_index, carry_mirrored, carry_state_files
from cagewrap.gitsync.carryhead import carry_head
from cagewrap.gitsync.carryrefs import carry_logs, carry_refs
from cagewrap.gitsync.context import Context, Place
from cagewrap.gitsync.fill import copy_file, empty, fill
from cagewrap.gitsync.firstrefs import fill_refs
from cagewrap.gitsync.large import bring_large, lend_large
from cagewrap.gitsync.newrepository import begin_on_host
from cagewrap.gitsync.objects import IndexPack, bring_objects, lend_objects, name_borrowed
from cagewrap.gitsync.pair import (
    Pair,
    ReplacedError,
    is_begun,
    is_git_dir,
    opened,
    read_base,
    read_stamps,
    watched,
    write_base,
)
from cagewrap.gitsync.refs import TooManyError, read_refs
from cagewrap.gitsync.side import Side, Stamp
from cagewrap.gitsync.store import Store
from cagewrap.gitsync.worktrees import adopt_work_trees, work_tree_places

ROUNDS = 4
"""At most so many until it is known what to look at; an agent may change that all the time."""
_RACY_NS = 20_000_000
"""Two changes within a kernel's clock tick may have one time stamp."""


class Outcome:
    """How a run went. notes, states: see Context.

    paths, stamps: what to look at to see whether another one is needed. is_at_rest: nothing was
    left to carry. is_settled: and a change from here on is seen in the stamps. is_busy: somebody
    was at work on what was to be carried. is_full: a disk has no space left.
    """

    def __init__(
        self,
        notes: list[str] | None = None,
        states: list[str] | None = None,
        paths: list[str] | None = None,
        stamps: list[Stamp | None] | None = None,
        *,
        is_at_rest: bool = False,
        is_settled: bool = False,
        is_busy: bool = False,
        is_full: bool = False,
    ) -> None:
        """Empty, unless it is said."""
        self.notes: list[str] = [] if notes is None else notes
        self.states: list[str] = [] if states is None else states
        self.paths: list[str] = [] if paths is None else paths
        self.stamps: list[Stamp | None] = [] if stamps is None else stamps
        self.is_at_rest = is_at_rest
        self.is_settled = is_settled
        self.is_busy = is_busy
        self.is_full = is_full


def carry(pair: Pair, index_pack: IndexPack, *, may_refill: bool = False) -> Outcome:
    """Carry everything. What changes meanwhile is for another run, if `is_settled` is not true.

    may_refill: give the cage a git directory again that the agent has removed. Raises OSError
    when a side cannot be used at all, ReplacedError when the host's directory is another one. What
    goes wrong with a part is a note.
    """
    outcome = Outcome()
    with opened(pair.host, pair.mark) as host, opened(pair.copy, pair.mark) as cage:
        base = _base_of(pair, host, cage)
        for _ in range(ROUNDS):
            run = _Run(pair, host, cage, base, index_pack, may_refill=may_refill)
            context = run.carry()
            outcome.notes += [note for note in context.notes if note not in outcome.notes]
            outcome.states = context.states
            outcome.is_busy, outcome.is_full = context.is_busy, context.is_full
            outcome.paths, outcome.stamps = run.paths, run.stamps
            is_moving = context.is_busy or context.has_written or context.is_refillable
            outcome.is_at_rest = not is_moving
            outcome.is_settled = outcome.is_at_rest and not run.is_racy
            if not run.has_new_paths:
                break
        write_base(pair, base)
    return outcome


def _base_of(pair: Pair, host: Side, cage: Side) -> dict[str, Any]:
    """What was written down, after the first filling if need be."""
    found = os.fstat(host.fd)
    identity = [found.st_dev, found.st_ino]
    base = read_base(pair)
    if base.get("host") == identity:
        return base
    if base:
        raise ReplacedError(pair.host)
    fill(host.fd, cage.fd)
    fill_refs(host, cage)
    return {"host": identity, "places": {}}


def start_anew(pair: Pair) -> None:
    """Forget a copy whose original the host has replaced. Only while the cage does not run."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(pair.base_file)
    with opened(pair.copy) as cage:
        empty(cage.fd)


class _Run:
    """One look at everything."""

    def __init__(
        self,
        pair: Pair,
        host: Side,
        cage: Side,
        base: dict[str, Any],
        index_pack: IndexPack,
        *,
        may_refill: bool,
    ) -> None:
        self.index_pack = index_pack
        self.may_refill = may_refill
        self.pair = pair
        self.host = host
        self.cage = cage
        self.base = base
        self.paths: list[str] = []
        self.stamps: list[Stamp | None] = []
        self.is_racy = False
        self.has_new_paths = False

    def carry(self) -> Context:
        context = Context(
            session=self.pair.session,
            oid_length=oid_length_of(self.host),
            owner_ids=(os.getuid(), os.getgid()),
            inside_ids=self.pair.inside_ids,
            may_refill=self.may_refill,
        )
        places = self.base["places"]
        self.paths = self.base.get("watched") or [self.pair.host, self.pair.copy]
        self._take_stamps()
        directories: dict[str, list[str]] = {}
        if not is_git_dir(self.host) and not begin_on_host(
            self.pair, self.host, self.cage, self.base, context
        ):
            if os.listdir(self.host.fd):
                context.state(f"git does not work in the cage: {self.pair.host} is no repository")
            self._watch([""], {"": ["refs", "objects"]})
            return context
        if not has_files_of_refs(self.host):
            context.state(f"git's state is not carried: {self.pair.host} has a reftable")
            self._watch([""], {})
            return context
        names = ["", *self.pair.modules]
        for name in names:
            self._carry_place(name, context, directories)
        adopt_work_trees(self.pair, self.host, self.cage, places, context)
        for name, leads in work_tree_places(self.pair, self.host):
            names.append(name)
            with contextlib.suppress(OSError), contextlib.closing(self.host.below(name)) as host:
                base = places.setdefault(name, {})
                place = Place(name, host, self.cage, base, has_refs=False, leads=leads)
                self._carry_work_tree(place, context, directories)
        for gone in [name for name in places if name not in names]:
            del places[gone]
        self._watch(names, directories)
        return context

    def _carry_place(self, name: str, context: Context, directories: dict[str, list[str]]) -> None:
        """The project's own repository, or a submodule's."""
        base = self.base["places"].setdefault(name, {})
        try:
            host = self.host.below(name)
        except OSError:
            return  # the host has removed it
        store = Store(host)
        with contextlib.closing(host), contextlib.closing(store):
            try:
                cage = self._cage_below(name)
            except OSError as error:
                context.state(f"git in {name or self.pair.host} is not carried: {error.strerror}")
                return
            with contextlib.closing(cage):
                if not has_files_of_refs(host):
                    context.state(f"git's state is not carried: {name} has a reftable")
                    return
                if not self._is_usable(cage, host, name, base, context):
                    return
                place = Place(name, host, cage, base)
                place.leads = not (name == "" and self.pair.work_tree)
                known = bool(base.get("refs"))
                place.has_history = known or _has_history(host, context.oid_length)
                place.bring = lambda: self._bring(place)
                place.has_object = store.has
                if not self.pair.borrows:
                    lend_objects(host, cage, copy_file)
                directories[name] = carry_place(place, context)

    def _carry_work_tree(
        self, place: Place, context: Context, directories: dict[str, list[str]]
    ) -> None:
        """A linked work tree's part, whose objects are the repository's."""
        store = Store(self.host)
        root = Place("", self.host, self.cage, {})
        with contextlib.closing(store), contextlib.closing(self._cage_below(place.path)) as cage:
            place.cage, place.main = cage, self.host
            place.bring = lambda: self._bring(root)
            place.has_object = store.has
            directories[place.path] = carry_place(place, context)

    def _is_usable(
        self, cage: Side, host: Side, name: str, base: dict[str, Any], context: Context
    ) -> bool:
        """Whether the cage's side is a git directory that knows where the host's objects are.

        One that does not is not the one that was filled: the agent has made it anew, and what it
        lacks was not taken away by it.
        """
        if base.get("refs") and not is_begun(cage):
            if not self.may_refill:
                context.state("the agent has removed its git directory: yours stays as it is")
                context.is_refillable = True
                return False
            empty(cage.fd, name)
            fill(host.fd, cage.fd, name)
            fill_refs(host, cage)
            base.clear()
            context.note("the agent had removed its git directory: it has got a new one of yours")
        if self.pair.borrows:
            seen_at = os.path.join(self.pair.seen_at, name) if name else self.pair.seen_at
            if not name_borrowed(cage, seen_at):
                base.clear()
        return True

    def _bring(self, place: Place) -> OSError | None:
        """Move the agent's objects to the host; the error if not all could be written there."""
        path = os.path.join(self.pair.host, place.path) if place.path else self.pair.host
        keep = not self.pair.borrows
        try:
            bring_objects(place.cage, place.host, path, self.index_pack, keep=keep)
            bring_large(place.cage, place.host)
        except OSError as error:
            return error
        return None

    def _cage_below(self, name: str) -> Side:
        """The cage's place; one that is new on the host is filled."""
        try:
            return self.cage.below(name)
        except FileNotFoundError:
            source = beneath.open_dir(self.host.fd, name.split("/"))
            target = beneath.open_dir(self.cage.fd, name.split("/"), make=True)
            try:
                fill(source, target, name)
            finally:
                os.close(source)
                os.close(target)
            cage = self.cage.below(name)
            if not name.startswith("worktrees/"):
                with contextlib.closing(self.host.below(name)) as host:
                    fill_refs(host, cage)
            return cage

    def _take_stamps(self) -> None:
        self.stamps = read_stamps(self.paths)
        newest = max((stamp[1] for stamp in self.stamps if stamp), default=0)
        self.is_racy = newest > time.time_ns() - _RACY_NS

    def _watch(self, places: list[str], directories: dict[str, list[str]]) -> None:
        paths = watched(self.pair, places, directories)
        if paths != self.paths:  # other places than were looked at before this run began
            self.is_racy = self.has_new_paths = True
            self.base["watched"] = self.paths = paths
            self.stamps = []


def carry_place(place: Place, context: Context) -> list[str]:
    """Carry all of one place; the directories of refs on either side."""
    directories: list[str] = []
    if place.has_refs:
        found = carry_refs(place, context)
        directories = sorted({d for refs in found or () for d in refs.directories})
    carry_head(place, context)
    carry_logs(place, context)
    carry_state_files(place, context)
    carry_index(place, context)
    if place.has_refs:
        carry_config(place, context)
        if context.has_written or "large" not in place.base:
            with contextlib.suppress(OSError):
                lend_large(place.host, place.cage)
            place.base["large"] = True
    carry_mirrored(place, context)
    return directories


def _has_history(host: Side, oid_length: int) -> bool:
    """Whether there is a ref, so that something can be lost."""
    try:
        return bool(read_refs(host, oid_length).values)
    except (OSError, TooManyError):
        return True
