"""Which directories of the project are covered in the cage by private copies."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from cagewrap import beneath
from cagewrap.errors import SessionError
from cagewrap.holding import directory, tree
from cagewrap.holding.directory import HeldDirectory
from cagewrap.holding.names import DIRECTORIES, PLACEHOLDERS
from cagewrap.holding.places import Place
from cagewrap.holding.shelf import hold
from cagewrap.keeper import covers
from cagewrap.keeper.care import Keep
from cagewrap.keeper.container import Container
from cagewrap.keeper.covers import Cover, Identity
from cagewrap.keeper.exchange import exchanged
from cagewrap.keeper.inheritance import Known
from cagewrap.sessions import Record

_NOTHING: Identity = (0, 0)
_AT_ONCE = 50
"""So many files are taken out of a directory at a time; the rest half a second later."""


class Coverings:
    """Of one running container. Callers hold the project's lock."""

    def __init__(
        self, record: Record, place: Place, store: str, root: int, container: Container
    ) -> None:
        """root: descriptor of the project. store: the session's."""
        self._record, self._place, self._root = record, place, root
        self._container = container
        self._store = store
        self.hooks = ""
        """A directory that git runs hooks of, beside the usual ones."""
        self.asked: set[str] = set()
        """Directories that an agent makes and removes again: it finds them made."""
        held = directory.held_directories(store)
        self._copies = {one.path: one for one in held if not _is_empty(one.copy_dir)}
        self._covered: dict[str, Identity] = {}
        self._kept: dict[str, int] = {}
        """Descriptors of what is covered, so that its number is not given to another."""
        self.is_late: set[str] = set()
        """Those that were covered while an agent worked: it may have had one open."""
        self._linked: tuple[str, ...] = ()
        self._is_suspect = False
        self._planned: list[tuple[str, Cover]] = []

    def hand_on(self, keep: Keep) -> Known:
        """What is covered, by descriptors that stay open."""
        covered = {
            path: (*found, keep(self._kept[path]))
            for path, found in self._covered.items()
            if path in self._kept
        }
        return {"covered": covered, "late": sorted(self.is_late), "asked": sorted(self.asked)}

    def go_on(self, known: Known) -> None:
        """From there: what is another directory by now is not the owner's."""
        for path, (device, inode, fd) in known.get("covered", {}).items():
            self._covered[path] = (device, inode)
            self._kept[path] = fd
            self._copies.setdefault(path, HeldDirectory(self._store, path))
        self.is_late.update(known.get("late", ()))
        self.asked.update(known.get("asked", ()))

    def must_renew(self) -> bool:
        """Whether there is a directory that is not covered."""
        return any(
            self._identity(path) != self._covered.get(path, _NOTHING) for path in self._names()
        )

    def plan(self) -> list[Cover]:
        """Make the private copies for a cage that does not run yet, while no agent works in the
        project; how they are to be mounted. What is not among them is `renew`'s. Raises OSError."""
        planned: list[tuple[str, Cover]] = []
        for path in DIRECTORIES:
            if any(f"/{path}/" in word for word in self._record.run_args):
                continue  # something is mounted in it: to be seen once the container runs
            found = self._identity(path)
            if found == _NOTHING and self._is_needed(path):
                found = self._make(path)
            if found == _NOTHING:
                continue
            copy = self._copies.setdefault(path, HeldDirectory(self._store, path))
            self._bring_up_to_date(path, copy)
            over = self._keep(path)
            planned += [
                (path, Cover(copy.copy_dir, target, over)) for target in self._targets(path)
            ]
        self._planned = planned
        return [cover for _, cover in planned]

    def planned(self, seen: Sequence[Identity]) -> None:
        """What is seen where they were to be mounted."""
        bare = set()
        for (path, cover), found in zip(self._planned, seen, strict=True):
            if found != covers.identity(cover.source):  # perhaps the owner's mount: `renew` sees
                bare.add(path)
            self._covered[path] = cover.over
        for path in bare:
            self._forget(path)
        self._place.learn(self._covered)

    def renew(self, *, is_suspect: bool) -> list[str]:
        """Cover what is not covered, and carry the host's changes into the copies; the
        directories of an agent's that were moved out of the project.

        is_suspect: an agent of the project may have made what is new. Raises OSError, or
        SessionError when something cannot be covered.
        """
        self._is_suspect = is_suspect
        self._linked = tuple(self._find_linked())
        taken: list[str] = []
        new: list[tuple[str, Identity]] = []
        for path in self._names():
            found = self._identity(path)
            if found == _NOTHING and self._is_needed(path):
                found = self._make(path)
            if found == _NOTHING:
                self._forget(path)
            elif self._covered.get(path) == found:
                self._sync(path)
            else:
                taken += self._prepare(path)
                new.append((path, self._keep(path)))
        self._attach(new)
        self._place.learn(self._covered)
        return taken

    def hold_late(self, files: str) -> list[str]:
        """Take out what came into a directory that was covered late, not by way of the copy."""
        held: list[str] = []
        for path in self.is_late:
            for name in self._find_late(path):
                with contextlib.suppress(OSError):
                    hold(self._root, f"{path}/{name}", files)
                    held.append(f"{path}/{name}")
        return held

    def _find_late(self, path: str) -> list[str]:
        base, since_ns = self._copies[path].base, self._place.since_ns()
        try:
            with self._opened(path) as host:
                late = [
                    name
                    for name, stamp in tree.scan(host).files.items()
                    if stamp[4] >= since_ns
                    and (name not in base or base[name][0] != tree.digest(host, name))
                ]
        except OSError:
            return []
        return late[:_AT_ONCE]

    def settle(self) -> None:
        """No agent has anything open any more."""
        self.is_late.clear()

    def _names(self) -> list[str]:
        """Directories in the project that are or may be to be covered."""
        more = (self.hooks,) if self.hooks else ()
        return list(dict.fromkeys((*DIRECTORIES, *more, *self._linked, *self._copies)))

    def _find_linked(self) -> Iterator[str]:
        """Where symlinks in the place of directories lead, in the project."""
        project = self._record.project
        for name in DIRECTORIES:
            found = tree.stat_below(self._root, name)
            if found is not None and stat.S_ISLNK(found.st_mode):
                real = beneath.real_path(os.path.join(project, name))
                if real.startswith(project + "/"):
                    yield real[len(project) + 1 :]

    def _is_needed(self, path: str) -> bool:
        """Whether a directory must be there for the agent to have a private one."""
        return path in PLACEHOLDERS or path in self.asked or path in self._copies

    def _identity(self, path: str) -> Identity:
        found = tree.stat_below(self._root, path)
        if found is None or not stat.S_ISDIR(found.st_mode):
            return _NOTHING
        return (found.st_dev, found.st_ino)

    def _make(self, path: str) -> Identity:
        """An empty directory, unless something else is there or the project cannot be written."""
        try:
            self._place.make(path, self._root)
        except OSError:
            return _NOTHING
        return self._identity(path)

    def _prepare(self, path: str) -> list[str]:
        """See that there is a copy; what an agent made while it works becomes the copy."""
        copy = self._copies.setdefault(path, HeldDirectory(self._store, path))
        copy.leave_out(self._mounted_in(path))
        is_agents = self._is_suspect and self._is_new(path) and not self._is_owners(path)
        if is_agents:
            self.is_late.add(path)
        if is_agents and copy.exists:
            return []
        if not is_agents or path in self._place.made():
            self._bring_up_to_date(path, copy)
            return []
        self._take(path, copy)
        return [path]

    def _bring_up_to_date(self, path: str, copy: HeldDirectory) -> None:
        if copy.exists:
            self._sync(path)
            return
        with self._opened(path) as host:
            copy.create(host)

    def _take(self, path: str, copy: HeldDirectory) -> None:
        """Move an agent's directory out of the project; an empty one takes its place."""
        own = self._identity(path)

        def cover() -> None:
            """On another file system the copy is another directory than the agent's."""
            empty = self._identity(path)
            wanted = [
                Cover(copy.copy_dir, target, empty, instead_of=own)
                for target in self._targets(path)
            ]
            covers.attach(self._container.init_pid, wanted)

        project = self._record.project
        with exchanged(self._root, project, path, self._container.init_pid, self._targets) as place:
            self._place.note_made(path)
            directory.take(self._root, place, copy, cover)

    def _is_owners(self, path: str) -> bool:
        """Whether another session of the project, or a keeper before us, has covered it."""
        return path not in self._covered and path in self._place.known()

    def _is_new(self, path: str) -> bool:
        """Whether a directory came to be, or was moved here, while an agent worked."""
        found = tree.stat_below(self._root, path)
        return found is not None and found.st_ctime_ns >= self._place.since_ns()

    def _sync(self, path: str) -> None:
        if path in self.is_late:
            return
        with tree.unless_full(), self._opened(path) as host:
            self._copies[path].sync(host)

    @contextmanager
    def _opened(self, path: str) -> Iterator[int]:
        host = beneath.open_dir(self._root, path.split("/"))
        try:
            yield host
        finally:
            os.close(host)

    def _attach(self, new: list[tuple[str, Identity]]) -> None:
        wanted = [
            (path, Cover(self._copies[path].copy_dir, target, over))
            for path, over in new
            for target in self._targets(path)
        ]
        if not wanted:
            return
        try:
            seen = covers.attach(self._container.init_pid, [cover for _, cover in wanted])
        except OSError as error:
            raise SessionError(
                f"The private copy of a directory cannot be mounted in the cage: {error}.",
                f"cagewrap stop {self._record.name}, then send the message again",
            ) from error
        for (path, cover), found in zip(wanted, seen, strict=True):
            if found in (_NOTHING, cover.over):
                raise SessionError(
                    f"{cover.target} in the cage is not covered by its private copy: something "
                    "was moved, inside or on the host.",
                    f"cagewrap stop {self._record.name}, then send the message again",
                )
            self._covered[path] = cover.over

    def _keep(self, path: str) -> Identity:
        """Hold on to the directory that is covered next."""
        self._forget(path)
        fd = beneath.reach_dir(self._root, path.split("/"))
        self._kept[path] = fd
        status = os.fstat(fd)
        return (status.st_dev, status.st_ino)

    def _forget(self, path: str) -> None:
        self._covered.pop(path, None)
        fd = self._kept.pop(path, -1)
        if fd >= 0:
            os.close(fd)

    def close(self) -> None:
        """Let go of what was held on to."""
        for path in list(self._kept):
            self._forget(path)

    def _mounted_in(self, path: str) -> set[str]:
        """Where in a directory something is mounted in the cage: hidden, or the owner's wish."""
        points = covers.mount_points(self._container.init_pid)
        return {
            point[len(target) + 1 :]
            for target in self._targets(path)
            for point in points
            if point.startswith(target + "/")
        }

    def _targets(self, path: str) -> list[str]:
        """Where in the cage a directory of the project is to be seen."""
        full = os.path.join(self._record.project, path)
        return [
            target + full[len(source) :]
            for source, target in self._record.binds
            if full.startswith(source.rstrip("/") + "/")
        ] or [full]


def _is_empty(directory: str) -> bool:
    try:
        return not os.listdir(directory)
    except OSError:  # an agent has taken our rights to it: it has one
        return False
