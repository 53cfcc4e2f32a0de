"""Looking through a whole project for what an agent has planted below its root.

Only what was written since it began to work is looked at: a file's change time cannot be set by
anybody. Runs in a process of its own.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from cagewrap import beneath
from cagewrap.holding import repositories, tree
from cagewrap.holding.names import DIRECTORIES, ENDINGS, NESTED, NESTED_KNOWN, is_nested
from cagewrap.holding.shelf import hold

WALK_S = 30.0
"""How long one walk may take, and how many directories it looks into."""
WALK_DIRECTORIES = 500_000
FINDINGS = 1000
"""So many of a kind are told of one walk; it is made again for the rest."""
_GIT_FILE_BYTES = 4096
"""git writes a path into a `.git` file; what is longer, though git reads it, is nobody's work."""

_TABLES = (*NESTED, *NESTED_KNOWN)
_BY_NAME = {path.rpartition("/")[2] for path in _TABLES}
_LINKS = {path.rpartition("/")[0] for path in _TABLES if "/" in path} | {".git"}
_ENDINGS = tuple(ENDINGS)


class Findings:
    """new: watched files that were written meanwhile. old: others, the owner's. tamed: what was
    changed in repositories, and taken out beside them. has_more: of one of these there is more
    than was looked at. denied: how often an agent left us no right to look, or to take something
    out. is_whole: whether all was looked at."""

    def __init__(
        self,
        new: list[str] | None = None,
        old: list[str] | None = None,
        tamed: list[str] | None = None,
        *,
        has_more: bool = False,
        denied: int = 0,
        is_whole: bool = True,
        seconds: float = 0.0,
    ) -> None:
        """Empty, unless it is said."""
        self.new: list[str] = [] if new is None else new
        self.old: list[str] = [] if old is None else old
        self.tamed: list[str] = [] if tamed is None else tamed
        self.has_more = has_more
        self.denied = denied
        self.is_whole = is_whole
        self.seconds = seconds

    def dump(self) -> bytes:
        """As JSON, for another process."""
        return json.dumps(vars(self)).encode()


def is_looked_at(name: str) -> bool:
    """Whether a file of that name may be one of those that matter."""
    return name in _BY_NAME or name == ".git" or name.endswith(_ENDINGS)


def _kind(entry: os.DirEntry[str]) -> int:
    if entry.is_symlink():
        return stat.S_IFLNK
    return stat.S_IFDIR if entry.is_dir(follow_symlinks=False) else stat.S_IFREG


def load(data: bytes) -> Findings:
    """What `Findings.dump` gave."""
    return Findings(**json.loads(data))


class Walk:
    """One walk through a project."""

    def __init__(
        self,
        project: str,
        since_ns: int,
        foreign: Iterable[str],
        files: str,
        *,
        known: Iterable[str] = (),
        limit_s: float = WALK_S,
    ) -> None:
        """since_ns: when the agent began. foreign: directories out of the project that agents
        write to; nothing may lead there. files: where what is taken out is kept. known: the watched
        files whose owner's version is known."""
        self._limit_s = limit_s
        self._project = project
        self.since_ns = since_ns
        self._foreign = tuple(os.path.realpath(path) + "/" for path in foreign)
        self._files = files
        self._known = set(known)
        self.root = -1
        self.found = Findings()
        self.opened: Callable[[int, str], None] = lambda _fd, _path: None
        """Told of each directory before it is looked at: its descriptor, and its path."""

    def run(self) -> Findings:
        """Look at everything."""
        with self.begun():
            self.look_below("")
        return self.found

    @contextmanager
    def begun(self) -> Iterator[None]:
        """While looking at anything, in whatever order."""
        self.root = tree.open_project(self._project)
        try:
            yield
        finally:
            os.close(self.root)

    def look_below(self, top: str) -> None:
        """Look at a directory and everything below it. What lies near it first: a deep one is
        where nobody goes."""
        began = time.monotonic()
        count = 0
        todo = deque([top])
        while todo:
            count += 1
            if count > WALK_DIRECTORIES or time.monotonic() - began > self._limit_s:
                self.found.is_whole = False
                break
            todo += self._look(todo.popleft())
        self.found.seconds = time.monotonic() - began

    def _look(self, path: str) -> list[str]:
        """Look at one directory; those in it that are to be looked at."""
        try:
            fd = beneath.open_dir(self.root, path.split("/") if path else ())
        except OSError as error:
            self._failed(error)
            return []
        try:
            self.opened(fd, path)
            with os.scandir(fd) as entries:
                found = {entry.name: _kind(entry) for entry in entries}
        except OSError:
            return []
        finally:
            os.close(fd)
        if path and (path.endswith("/.git") or repositories.is_repository(found)):
            self.tame(path)
        return [below for one in found.items() if (below := self.look_at(path, *one))]

    def look_at(self, path: str, name: str, kind: int) -> str:
        """Look at something in a directory; its path if it is to be looked into. kind: S_IFMT of
        its mode."""
        below = f"{path}/{name}" if path else name
        if kind == stat.S_IFLNK:
            self._look_at_link(path, name, below)
        elif kind == stat.S_IFDIR:
            # A git directory may lie anywhere in another one.
            return below if path or (name != ".git" and name not in DIRECTORIES) else ""
        elif name == ".git":
            if path:
                self._look_at_git_file(path, below)
        elif is_looked_at(name):
            self._look_at_file(below)
        return ""

    def tame(self, path: str) -> None:
        """Make a git directory harmless."""
        if len(self.found.tamed) >= FINDINGS:
            self.found.has_more = True
            return
        try:
            self.found.tamed += repositories.tame(self.root, path, self.since_ns, self._hold)
        except OSError as error:
            self._failed(error)

    def _hold(self, path: str, *, is_replaced: bool = False) -> None:
        hold(self.root, path, self._files, is_replaced=is_replaced)

    def _failed(self, error: OSError) -> None:
        if isinstance(error, PermissionError):
            self.found.denied += 1

    def _look_at_file(self, below: str) -> None:
        is_known = below in self._known
        if not is_nested(below, known=True):
            return
        stamp = tree.stamp_at(self.root, below)
        if stamp is None:
            return
        if stamp[4] < self.since_ns:
            if not is_known and len(self.found.old) < FINDINGS:
                self.found.old.append(below)
        elif is_known or is_nested(below, known=False):
            if len(self.found.new) < FINDINGS:
                self.found.new.append(below)
            else:
                self.found.has_more = True

    def _look_at_git_file(self, path: str, below: str) -> None:
        """A `.git` file may lead to a directory in the project, which is looked at itself, or is
        the project's own repository; not elsewhere."""
        stamp = tree.stamp_at(self.root, below)
        if stamp is None or stamp[4] < self.since_ns:
            return
        content = tree.read(self.root, below) if stamp[2] < _GIT_FILE_BYTES else None
        named = os.fsdecode(content or b"").removeprefix("gitdir: ").rstrip("\r\n")
        real = beneath.real_path(os.path.join(self._project, path, named))
        if content is None or not stat.S_ISREG(stamp[0]) or not self._is_inside(real):
            self._take(below)

    def _look_at_link(self, path: str, name: str, below: str) -> None:
        """A symlink to a directory of cages, whose repositories and settings are an agent's, or
        one in the place of a directory with settings."""
        stamp = tree.stamp_at(self.root, below)
        if stamp is None or stamp[4] < self.since_ns:
            return
        real = beneath.real_path(os.path.join(self._project, below))
        is_foreign = (real + "/").startswith(self._foreign)
        if is_foreign or (path and name in _LINKS and not self._is_inside(real)):
            self._take(below)

    def _is_inside(self, real: str) -> bool:
        return real.startswith(self._project + "/")

    def told(self) -> Findings:
        """What was found since it was asked last."""
        found, self.found = self.found, Findings()
        self._known.update(found.old)
        return found

    def _take(self, path: str) -> None:
        if len(self.found.tamed) >= FINDINGS:
            self.found.has_more = True
            return
        try:
            hold(self.root, path, self._files)
        except OSError as error:
            self._failed(error)
        else:
            self.found.tamed.append(path)
