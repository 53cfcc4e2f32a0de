"""What a run that was killed has left in a git directory: locks, and temporary files.

A lock of git's that nobody holds any more stops its owner's git until somebody removes it.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

from cagewrap import beneath
from cagewrap.gitsync.side import DEPTH_LIMIT, Side

_LOCK = ".lock"
_NOT_OURS = frozenset(("annex",))
"""Directories of a repository's in which nothing is ever written."""


def clear_away(side: Side) -> int:
    """Remove what has the side's mark: no other run that uses it may be at work. How many files.

    A lock is ours if it is the same file as one with the mark (see `Side.locked`).
    """
    if not side.mark:
        return 0
    ours: set[int] = set()
    locks: list[tuple[str, int]] = []
    marked: list[str] = []
    for path, fd, names in _walk(side):
        for name in names:
            is_marked = side.mark in name
            if is_marked or name.endswith(_LOCK):
                with contextlib.suppress(OSError):
                    found = os.stat(name, dir_fd=fd, follow_symlinks=False)
                    if is_marked:
                        ours.add(found.st_ino)
                        marked.append(f"{path}{name}")
                    elif stat.S_ISREG(found.st_mode):
                        locks.append((f"{path}{name}", found.st_ino))
    # The temporary files go last: without them nobody knows whose the locks are.
    gone = [path for path, inode in locks if inode in ours] + marked
    for path in gone:
        with contextlib.suppress(OSError):
            side.remove(path)
    return len(gone)


def clear_locks(side: Side) -> int:
    """Remove the locks of a copy whose agents are dead; how many. Not those of a run (which are a
    second name): it may be at work."""
    gone: list[str] = []
    for path, fd, names in _walk(side):
        for name in names:
            if name.endswith(_LOCK):
                with contextlib.suppress(OSError):
                    if os.stat(name, dir_fd=fd, follow_symlinks=False).st_nlink == 1:
                        gone.append(f"{path}{name}")
    for path in gone:
        with contextlib.suppress(OSError):
            side.remove(path)
    return len(gone)


def _walk(side: Side) -> Iterator[tuple[str, int, list[str]]]:
    """Each directory's path with a `/` at its end, a descriptor of it, and what in it is no
    directory."""
    todo = [""]
    while todo:
        path = todo.pop()
        try:
            fd = beneath.open_dir(side.fd, path.split("/")[:-1])
        except OSError:
            continue
        try:
            files: list[str] = []
            with os.scandir(fd) as listed:
                for one in listed:
                    if not one.is_dir(follow_symlinks=False):
                        files.append(one.name)
                    elif path.count("/") < DEPTH_LIMIT and one.name not in _NOT_OURS:
                        todo.append(f"{path}{one.name}/")
            yield path, fd, files
        except OSError:
            continue
        finally:
            os.close(fd)
