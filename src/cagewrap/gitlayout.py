"""Which git directory a project has, what of it is covered in a cage, and by what."""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from cagewrap.gitdirs import find_git_dirs
from cagewrap.gitsync.fill import STORES
from cagewrap.gitsync.pair import Pair
from cagewrap.model import Identity
from cagewrap.paths import Paths
from cagewrap.project import is_git_dir
from cagewrap.sessions import Record

_MODULES_DEPTH = 8
_MODULES_LIMIT = 300


class Layout(NamedTuple):
    """git_dir: real path of the directory with refs and configuration; "" when there is none that
    is used in the cage. place: `worktrees/NAME` in it for a linked work tree. file: the project's
    `.git` if that is a file. repositories: paths in it of those with objects to borrow, "" being
    itself. stores: what the cage sees of the host's as it is."""

    git_dir: str = ""
    place: str = ""
    file: str = ""
    repositories: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()


def git_store(paths: Paths, name: str) -> str:
    """Where a session keeps its git directory, and what was carried."""
    return os.path.dirname(paths.carried_file(name))


def copy_dir(store: str) -> str:
    """The private copy in a session's store."""
    return os.path.join(store, "copy")


def pair_of(record: Record, layout: Layout, store: str) -> Pair:
    """A session's copy and the host's git directory."""
    is_root = record.identity == Identity.ROOT.value
    seen = (
        target + layout.git_dir[len(source) :]
        for source, target in record.binds
        if layout.git_dir == source or layout.git_dir.startswith(source.rstrip("/") + "/")
    )
    return Pair(
        host=layout.git_dir,
        copy=copy_dir(store),
        base_file=os.path.join(store, "base.json"),
        project=record.project,
        session=record.name.removeprefix("cagewrap-"),
        work_tree=layout.place,
        modules=tuple(path for path in layout.repositories if path),
        borrows="" in layout.repositories,
        inside_ids=(0, 0) if is_root else (os.getuid(), os.getgid()),
        seen_at=next(seen, ""),
    )


def find_layout(project: str) -> Layout:
    """Look at what the host has."""
    git = os.path.join(project, ".git")
    try:
        mode = os.lstat(git).st_mode
    except OSError:
        return Layout()
    found = find_git_dirs(project)
    file = git if stat.S_ISREG(mode) else ""
    git_dir = found.repository
    repositories = tuple(find_repositories(git_dir)) if git_dir else ()
    stores = tuple(
        store
        for path in repositories
        for name in STORES
        if _is_dir(os.path.join(git_dir, store := os.path.join(path, name)))
    )
    return Layout(git_dir, found.place, file, repositories, stores)


def find_repositories(git_dir: str) -> list[str]:
    """A repository and those of the submodules below it, as paths in it; none if it is none."""
    if not is_git_dir(git_dir) or not _is_dir(os.path.join(git_dir, "objects")):
        return []
    found = [""]
    todo = ["modules"]
    while todo and len(found) < _MODULES_LIMIT:
        directory = todo.pop()
        try:
            names = sorted(os.listdir(os.path.join(git_dir, directory)))
        except OSError:
            continue
        for name in names:
            below = os.path.join(directory, name)
            full = os.path.join(git_dir, below)
            if is_git_dir(full) and _is_dir(os.path.join(full, "objects")):
                found.append(below)
                todo.append(os.path.join(below, "modules"))
            elif _is_dir(full) and below.count("/") < _MODULES_DEPTH:
                todo.append(below)
    return found


def _is_dir(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False
