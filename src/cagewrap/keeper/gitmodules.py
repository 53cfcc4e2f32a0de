"""Submodules of a project: git on the host goes into them, and obeys what it finds there.

`git status` follows a submodule's `.git` file, or takes a directory in its place, and runs what
the configuration there says. So the file is covered by a copy, and no directory above it can be
moved away: each is mounted on itself. A submodule that is not checked out is covered by an empty
directory of the cage's own; one whose git directory lies in the work tree can be read alone.
"""

from __future__ import annotations

import contextlib
import os
import stat

from cagewrap import beneath
from cagewrap.digests import sha256
from cagewrap.gitsync.index import (
    INDEX_BYTES,
    IndexRefusedError,
    gitlinks,
    has_gitlinks,
    shared_part,
)
from cagewrap.gitsync.side import Stamp, stamp_of
from cagewrap.keeper.covers import Cover, Identity
from cagewrap.sessions import make_private

SUBMODULES_LIMIT = 200
"""More are not covered."""
_FILE_BYTES = 8192


class Submodules:
    """Those of one project, by the host's index."""

    def __init__(self, project: str, directory: str) -> None:
        """directory: where the session keeps its side."""
        self._project = project
        self._directory = directory
        self._index = ""
        self._stamp: Stamp | None = None
        self._paths: tuple[str, ...] = ()
        self.known: list[str] = []
        self._states: dict[str, str] = {}
        self._bound: dict[str, tuple[Identity, int]] = {}

    def look(self, index: str) -> bool:
        """Read the index again if it has changed; whether what is to be covered has."""
        states = {path: self._state(path) for path in self._read(index)[:SUBMODULES_LIMIT]}
        has_changed = states != self._states
        self._states = states
        return has_changed

    def begin_work(self) -> None:
        """No agent works yet: those that are known now are covered for all that it does."""
        self.known = list(self._paths)

    def late(self, index: str) -> list[str]:
        """Those that the index has got since an agent works, and git goes into.

        What is mounted over them now is not there in a mount namespace that the agent has made
        before, nor for what it holds open.
        """
        return [
            path
            for path in self._read(index)
            if path not in self.known and self._state(path) != "empty"
        ]

    def _read(self, index: str) -> tuple[str, ...]:
        stamp = _stamp(index)
        if index != self._index or stamp != self._stamp:
            self._paths = read_submodules(index)
            self._index, self._stamp = index, stamp
        return self._paths

    def covers(self) -> list[Cover]:
        """What is to be mounted; `target` is a path of the host's. Raises OSError."""
        wanted: list[Cover] = []
        root = beneath.open_root(self._project)
        try:
            for path, state in self._states.items():
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    wanted += self._covers(root, path, state)
        finally:
            os.close(root)
        return wanted

    def _covers(self, root: int, path: str, state: str) -> list[Cover]:
        parts = path.split("/")
        wanted: list[Cover] = []
        for end in range(1, len(parts) + 1):
            fd = beneath.open_dir(root, parts[:end])
            try:
                wanted += self._bind(fd, "/".join(parts[:end]))
                if end == len(parts) and state == "file":
                    wanted.append(self._file(fd, path))
                elif end == len(parts) and state == "directory":
                    wanted += self._readonly(fd, path)
                elif end == len(parts) and state == "empty":
                    found = os.fstat(fd)
                    empty = os.path.join(self._directory, "unpopulated", _key(path))
                    make_private(empty)
                    os.chmod(empty, 0o755)  # noqa: S103 - for users inside; its parents are 0700
                    full = os.path.join(self._project, path)
                    wanted.append(Cover(empty, full, (found.st_dev, found.st_ino)))
            finally:
                os.close(fd)
        return wanted

    def _bind(self, fd: int, path: str) -> list[Cover]:
        """A directory on itself, once."""
        found = os.fstat(fd)
        identity = (found.st_dev, found.st_ino)
        known = self._bound.get(path)
        if known and known[0] == identity:
            return []
        if known:
            os.close(known[1])
        self._bound[path] = identity, os.dup(fd)
        full = os.path.join(self._project, path)
        return [Cover(full, full, identity, identity)]

    def _file(self, fd: int, path: str) -> Cover:
        content = beneath.read_regular(fd, ".git", _FILE_BYTES)
        found = beneath.stat_at(fd, ".git")
        directory = os.path.join(self._directory, "gitfiles")
        make_private(directory)
        copy = os.path.join(directory, _key(path))
        with open(copy, "wb") as file:
            file.write(content)
        os.chmod(copy, 0o644)
        return Cover(copy, os.path.join(self._project, path, ".git"), (found.st_dev, found.st_ino))

    def _readonly(self, fd: int, path: str) -> list[Cover]:
        """A git directory of a submodule's own, in the project, on itself: to be read alone."""
        found = beneath.stat_at(fd, ".git")
        identity = (found.st_dev, found.st_ino)
        full = os.path.join(self._project, path, ".git")
        if not stat.S_ISDIR(found.st_mode):
            return []
        return [Cover(full, full, identity, identity, is_readonly=True)]

    def _state(self, path: str) -> str:
        """What a submodule is on the host: its `.git` a file, with its number, or a directory; or
        it is empty."""
        try:
            mode = os.lstat(os.path.join(self._project, path, ".git")).st_mode
        except OSError:
            return "empty"
        return "file" if stat.S_ISREG(mode) else "directory"

    def close(self) -> None:
        """Let go of the directories."""
        for _, fd in self._bound.values():
            os.close(fd)
        self._bound.clear()


def read_submodules(index: str) -> tuple[str, ...]:
    """The paths of submodules in an index of the host's."""
    content = _content(index)
    for oid_bytes in (20, 32):
        parts = [content]
        if name := shared_part(content, oid_bytes):
            parts.append(_content(os.path.join(os.path.dirname(index), name)))
        with contextlib.suppress(IndexRefusedError):
            found = set().union(*(gitlinks(part, oid_bytes) for part in parts))
            if found or not any(map(has_gitlinks, parts)):
                return tuple(sorted(map(os.fsdecode, found)))
    return ()


def _content(index: str) -> bytes:
    try:
        with open(index, "rb") as file:
            return file.read(INDEX_BYTES)
    except OSError:
        return b""


def _key(path: str) -> str:
    return sha256(os.fsencode(path)).hexdigest()[:16]


def _stamp(path: str) -> Stamp | None:
    try:
        return stamp_of(os.stat(path))
    except OSError:
        return None
