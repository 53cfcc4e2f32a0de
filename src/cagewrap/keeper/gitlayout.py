"""Which git directory a project has, and what of it is covered in a cage."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

from cagewrap.gitdirs import find_git_dirs
from cagewrap.gitsync.fill import STORES
from cagewrap.project import is_git_dir

_MODULES_DEPTH = 8
_MODULES_LIMIT = 300


@dataclass(frozen=True, slots=True)
class Layout:
    """git_dir: real path of the directory with refs and configuration; "" when there is none that
    is used in the cage. place: `worktrees/NAME` in it for a linked work tree. file: the project's
    `.git` if that is a file. stores: what both sides share of it."""

    git_dir: str = ""
    place: str = ""
    file: str = ""
    stores: tuple[str, ...] = ()


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
    stores = tuple(find_stores(git_dir)) if git_dir and is_git_dir(git_dir) else ()
    return Layout(git_dir, found.place, file, stores)


def find_stores(git_dir: str, path: str = "", depth: int = 0) -> list[str]:
    """The stores of a repository and of the submodules below it, as paths in it."""
    here = os.path.join(git_dir, path)
    found = [os.path.join(path, name) for name in STORES if _is_dir(os.path.join(here, name))]
    todo = [os.path.join(path, "modules")]
    while todo and depth < _MODULES_DEPTH and len(found) < _MODULES_LIMIT:
        directory = todo.pop()
        try:
            names = sorted(os.listdir(os.path.join(git_dir, directory)))
        except OSError:
            continue
        for name in names:
            below = os.path.join(directory, name)
            full = os.path.join(git_dir, below)
            if is_git_dir(full):
                found += find_stores(git_dir, below, depth + 1)
            elif _is_dir(full) and below.count("/") < _MODULES_DEPTH:
                todo.append(below)
    return found


def _is_dir(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False
