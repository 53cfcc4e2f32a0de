"""A cage's git directory: a private copy over the host's, with the host's stores in it."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence

from cagewrap import beneath
from cagewrap.errors import SessionError
from cagewrap.gitlayout import Layout, copy_dir
from cagewrap.gitsync.fill import place_of
from cagewrap.gitsync.objects import BORROWED
from cagewrap.gitsync.side import Side
from cagewrap.keeper import covers
from cagewrap.keeper.care import Keep
from cagewrap.keeper.container import Container
from cagewrap.keeper.covers import Cover, Identity, identity
from cagewrap.keeper.gitmodules import Submodules
from cagewrap.keeper.inheritance import Known
from cagewrap.sessions import Record, make_private

_FILE_BYTES = 8192


class GitCovers:
    """Of one running container."""

    def __init__(self, record: Record, container: Container, directory: str) -> None:
        """directory: the session's, for the copy and what belongs to it."""
        self._record = record
        self._container = container
        self.directory = directory
        self.copy_dir = copy_dir(directory)
        self._covered: dict[str, tuple[Identity, int]] = {}
        self._submodules = Submodules(record.project, directory)
        self._index = ""

    def hand_on(self, keep: Keep) -> Known:
        """What is covered, by descriptors that stay open."""
        return {path: (*found, keep(fd)) for path, (found, fd) in self._covered.items()}

    def go_on(self, known: Known) -> None:
        """Hold on to that, until all is covered anew."""
        self._covered = {path: ((device, inode), fd) for path, (device, inode, fd) in known.items()}

    def must_renew(self, project: str) -> bool:
        """Whether something of the host's that was covered is another one now, or not there."""
        git = os.path.join(project, ".git")
        if git not in self._covered and identity(git) != (0, 0):
            return True
        if self._submodules.look(self._index):
            return True
        return any(identity(path) != found for path, (found, _) in self._covered.items())

    @property
    def index(self) -> str:
        """The path of the host's index; "" for none."""
        return self._index

    def begin_work(self) -> None:
        """All is covered, and an agent is about to work."""
        self._submodules.begin_work()

    def known_submodules(self) -> list[str]:
        """Those that were known when an agent began to work."""
        return self._submodules.known

    def work_began_with(self, submodules: Sequence[str]) -> None:
        """An agent works already, since these were known."""
        self._submodules.known = list(submodules)

    def late_submodules(self) -> list[str]:
        """Paths of submodules that the host's index has got since."""
        return self._submodules.late(self._index) if self._index else []

    def renew(self, layout: Layout, project: str) -> None:
        """Cover what is to be covered. Raises SessionError or OSError."""
        self._attach(self.plan(layout, project))

    def plan(self, layout: Layout, project: str) -> list[Cover]:
        """What is to be covered, from here on looked after by `must_renew`. Raises OSError."""
        self._forget()
        wanted: list[Cover] = []
        if layout.git_dir:
            make_private(self.copy_dir)
            os.chmod(self.copy_dir, 0o755)  # noqa: S103 - for users inside; its parents are 0700
            wanted += self._over(self.copy_dir, layout.git_dir)
            for path in layout.repositories:
                wanted += self._inner(
                    layout.git_dir,
                    os.path.join(path, "objects"),
                    os.path.join(path, BORROWED),
                    is_readonly=True,
                )
            for store in layout.stores:
                wanted += self._inner(layout.git_dir, store, place_of(store), is_readonly=True)
        if layout.file:
            wanted += self._over(self._file(layout.file), layout.file)
        self._index = ""
        if layout.git_dir:
            self._index = os.path.join(layout.git_dir, layout.place, "index")
        self._submodules.look(self._index)
        for cover in self._submodules.covers():
            wanted += [cover._replace(target=target) for target in self.targets(cover.target)]
        git = os.path.join(project, ".git")
        if not wanted or git not in (layout.git_dir, layout.file):
            self._keep(git)
        return wanted

    def _over(self, source: str, path: str) -> list[Cover]:
        """Covers of one path of the host's, at each place where the cage has it."""
        over = self._keep(path)
        return [Cover(source, target, over) for target in self.targets(path)]

    def _inner(
        self, git_dir: str, path: str, place: str, *, is_readonly: bool = False
    ) -> list[Cover]:
        """A directory of the host's git directory, in its place in the copy."""
        source = os.path.join(git_dir, path)
        found = self._keep(source)
        mountpoint = _make_mountpoint(self.copy_dir, place)
        return [
            Cover(source, os.path.join(target, place), mountpoint, found, is_readonly)
            for target in self.targets(git_dir)
        ]

    def _file(self, path: str) -> str:
        """A copy of a `.git` file."""
        with self._parent_of(path) as fd:
            content = beneath.read_regular(fd, os.path.basename(path), _FILE_BYTES)
        copy = os.path.join(self.directory, "gitfile")
        make_private(self.directory)
        with open(copy, "wb") as file:
            file.write(content)
        os.chmod(copy, 0o644)
        return copy

    @contextlib.contextmanager
    def _parent_of(self, path: str) -> Iterator[int]:
        fd = beneath.open_root(os.path.dirname(path))
        try:
            yield fd
        finally:
            os.close(fd)

    def _keep(self, path: str) -> Identity:
        """Hold on to what lies there, so that its number is not given to another."""
        try:
            fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return (0, 0)
        found = os.fstat(fd)
        self._covered[path] = (found.st_dev, found.st_ino), fd
        return (found.st_dev, found.st_ino)

    def _forget(self) -> None:
        for _, fd in self._covered.values():
            os.close(fd)
        self._covered.clear()

    def _attach(self, wanted: list[Cover]) -> None:
        if not wanted:
            return
        try:
            seen = covers.attach(self._container.init_pid, wanted)
        except OSError as error:
            self._forget()
            raise SessionError(
                f"The cage's private copy of the git directory cannot be mounted: {error}.",
                f"cagewrap stop {self._record.name}, then send the message again",
            ) from error
        if bare := self.find_bare(wanted, seen):
            self._forget()
            raise SessionError(
                f"{bare} in the cage is not covered by its private copy: something was moved, "
                "inside or on the host.",
                f"cagewrap stop {self._record.name}, then send the message again",
            )

    def find_bare(self, wanted: Sequence[Cover], seen: Sequence[Identity]) -> str:
        """Where something is seen that was to be covered; "" when all is."""
        return next(
            (
                cover.target
                for cover, found in zip(wanted, seen, strict=True)
                if found in ((0, 0), cover.over) and found != identity(cover.source)
            ),
            "",
        )

    def targets(self, path: str) -> list[str]:
        """Where in the cage a path of the host's is to be seen; nowhere if it is not mounted."""
        return [
            target + path[len(source) :]
            for source, target in self._record.binds
            if path == source or path.startswith(source.rstrip("/") + "/")
        ]

    def close(self) -> None:
        """Let go of what was held on to."""
        self._forget()
        self._submodules.close()


def _make_mountpoint(copy_dir: str, store: str) -> Identity:
    """A directory in the copy, whatever an agent has put there."""
    side = Side(os.open(copy_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC))
    try:
        parts = store.split("/")
        for end in range(1, len(parts) + 1):
            with side.parent("/".join(parts[:end]), make=True) as (fd, name):
                with contextlib.suppress(FileNotFoundError):
                    if not stat.S_ISDIR(beneath.stat_at(fd, name).st_mode):
                        os.unlink(name, dir_fd=fd)
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=fd)
        with side.parent(store) as (fd, name):
            found = beneath.stat_at(fd, name)
        return (found.st_dev, found.st_ino)
    finally:
        side.close()
