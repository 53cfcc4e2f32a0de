"""Being told by the kernel of what an agent makes below the root of a project, and looking at once.

Runs in a process of its own, beside a walk: the first look at everything sets a watch on each
directory, and each new directory gets one before it is looked at.
"""

from __future__ import annotations

import errno
import os
import select
import stat
from collections.abc import Callable

from cagewrap.holding import inotify, repositories, tree
from cagewrap.holding.walk import Findings, Walk, is_looked_at

_MASK = inotify.CREATE | inotify.MOVED_TO | inotify.CLOSE_WRITE
_OF_GIT = frozenset(
    (b"HEAD", b"objects", b"refs", b"commondir", b"config", b"config.worktree", b"hooks")
)
_MOST_ROUNDS = 8
"""So often in a row everything is looked at anew; what an agent makes is faster then."""


class Sentry:
    """Of one project, for as long as agents work in it."""

    def __init__(self, walk: Walk, tell: Callable[[Findings], None], most: int) -> None:
        """tell: called with what was found, when there is something. most: watches."""
        self._walk, self._tell, self._most = walk, tell, most
        self._queue = inotify.open_queue()
        self._paths: dict[int, str] = {}
        self.is_whole = True
        """Whether every directory is watched."""
        walk.opened = self._add

    def run(self, until: int) -> None:
        """Look at everything, and then at what happens, until a descriptor has an end to tell."""
        with self._walk.begun():
            self._look_anew()
            while True:
                ready = select.select([self._queue, until], [], [])[0]
                if until in ready:
                    return
                self._look()

    def _look(self) -> None:
        """Look at what has happened."""
        seen: set[tuple[str, bytes]] = set()
        for watch, mask, name in inotify.read(self._queue):
            if mask & inotify.OVERFLOW:
                self._look_anew()
                return
            if mask & inotify.IGNORED:
                self._paths.pop(watch, None)
                continue
            path = self._paths.get(watch)
            if path is not None and (path, name) not in seen:
                seen.add((path, name))
                self._look_at(path, name, mask)
        self._report()

    def _look_at(self, path: str, name: bytes, mask: int) -> None:
        text = os.fsdecode(name)
        below = f"{path}/{text}" if path else text
        if mask & inotify.ISDIR:
            if self._walk.look_at(path, text, stat.S_IFDIR):
                self._walk.look_below(below)
        else:
            if not mask & (inotify.CREATE | inotify.MOVED_TO) and not is_looked_at(text):
                return  # written, and of no interest; what is made may be a symlink
            found = tree.stat_below(self._walk.root, below)
            if found is not None:
                self._walk.look_at(path, text, stat.S_IFMT(found.st_mode))
        if "/" in path and path.endswith("/hooks"):
            self._tame(path.removesuffix("/hooks"))
        elif name in _OF_GIT:
            self._tame(path)

    def _tame(self, path: str) -> None:
        """Look at a directory that may be a repository."""
        if not path:
            return
        names = (os.fsdecode(one) for one in _OF_GIT)
        found = [one for one in names if tree.stat_below(self._walk.root, f"{path}/{one}")]
        if path.endswith("/.git") or repositories.is_repository(found):
            self._walk.tame(path)

    def _look_anew(self) -> None:
        """Look at everything; what happened meanwhile and cannot be told makes it look again."""
        for _ in range(_MOST_ROUNDS):
            self._paths.clear()
            self._walk.look_below("")
            self._report()
            events = list(inotify.read(self._queue))
            if not any(one.mask & inotify.OVERFLOW for one in events):
                for watch, mask, name in events:
                    if (path := self._paths.get(watch)) is not None and name:
                        self._look_at(path, name, mask)
                return

    def _report(self) -> None:
        found = self._walk.told()
        found.is_whole &= self.is_whole
        if found.new or found.old or found.tamed or not found.is_whole:
            self._tell(found)

    def _add(self, directory: int, path: str) -> None:
        """Watch a directory."""
        if len(self._paths) >= self._most:
            self.is_whole = False
            return
        try:
            self._paths[inotify.add(self._queue, directory, _MASK)] = path
        except OSError as error:
            if error.errno == errno.ENOSPC:
                self.is_whole = False
