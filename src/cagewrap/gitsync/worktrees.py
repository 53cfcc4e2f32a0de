"""Linked work trees: which of them the two sides have in common.

The directory `worktrees/NAME` of a repository is private to the cage, like all else. Of one that
the agent makes in the project, the host gets one of its own with the same checked content. One
that lies elsewhere is the cage's alone: the host has no such directory.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from typing import Any

from cagewrap import beneath
from cagewrap.gitsync.context import Context
from cagewrap.gitsync.names import VALUE_BYTES, parse_value
from cagewrap.gitsync.pair import Pair
from cagewrap.gitsync.side import Side

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+@-]*")
_LINE_BYTES = 4096
_WORK_TREES_LIMIT = 500


def work_tree_places(pair: Pair, host: Side) -> list[tuple[str, bool]]:
    """The host's linked work trees, and whether what the cage has of HEAD and index is theirs."""
    found: list[tuple[str, bool]] = []
    for name in _names(host):
        place = f"worktrees/{name}"
        if place == pair.work_tree:
            found.append((place, True))
        else:
            found.append((place, bool(_work_tree_in(pair, host, name))))
    return found


def adopt_work_trees(
    pair: Pair, host: Side, cage: Side, bases: dict[str, Any], context: Context
) -> None:
    """Make the host's side of work trees that the agent made in the project, and remove that of
    those it removed."""
    there, here = _names(host), _names(cage)
    for name in here:
        place = f"worktrees/{name}"
        if name in there or place in bases or len(there) > _WORK_TREES_LIMIT:
            continue
        path = _work_tree_in(pair, cage, name)
        if path and _NAME.fullmatch(name) and _names_back(pair, path, name):
            head = parse_value(cage.read(f"{place}/HEAD", VALUE_BYTES) or b"", context.oid_length)
            if not head or (head.startswith("ref:") and not head.startswith("ref: refs/heads/")):
                continue
            with contextlib.suppress(OSError):
                host.write(f"{place}/gitdir", f"{path}/.git\n".encode())
                host.write(f"{place}/commondir", b"../..\n")
                host.write(f"{place}/HEAD", f"{head}\n".encode("utf-8", "surrogateescape"))
                bases[place] = {"head": head, "is_adopted": True}
                context.has_written = True
    for place in [place for place, base in bases.items() if base.get("is_adopted")]:
        name = place.removeprefix("worktrees/")
        path = _work_tree_in(pair, host, name)
        if name not in here and name in there and path and not os.path.lexists(path):
            shutil.rmtree(os.path.join(pair.host, place), ignore_errors=True)
            del bases[place]
            context.has_written = True


def _names(side: Side) -> list[str]:
    try:
        fd = beneath.open_dir(side.fd, ["worktrees"])
    except OSError:
        return []
    try:
        with os.scandir(fd) as listed:
            return sorted(one.name for one in listed if one.is_dir(follow_symlinks=False))
    finally:
        os.close(fd)


def _work_tree_in(pair: Pair, side: Side, name: str) -> str:
    """The path of a linked work tree that lies in the project, "" for any other."""
    try:
        line = side.read(f"worktrees/{name}/gitdir", _LINE_BYTES) or b""
    except OSError:
        return ""
    text = os.fsdecode(line.removesuffix(b"\n"))
    if not text.startswith("/"):
        text = os.path.normpath(os.path.join(pair.host, "worktrees", name, text))
    path, _, last = text.rpartition("/")
    is_inside = path.startswith(pair.project + "/") and os.path.normpath(path) == path
    is_inside = is_inside and not (path + "/").startswith(pair.host + "/") and path.isprintable()
    return path if last == ".git" and is_inside else ""


def _names_back(pair: Pair, path: str, name: str) -> bool:
    """Whether the work tree's `.git` file leads to this repository, through no symlink."""
    try:
        root = beneath.open_root(pair.project)
        try:
            fd = beneath.open_dir(root, os.path.relpath(path, pair.project).split("/"))
        finally:
            os.close(root)
        try:
            text = os.fsdecode(beneath.read_regular(fd, ".git", _LINE_BYTES))
        finally:
            os.close(fd)
    except OSError:
        return False
    named = text.removeprefix("gitdir:").strip(" \n")
    return os.path.normpath(os.path.join(path, named)) == f"{pair.host}/worktrees/{name}"
