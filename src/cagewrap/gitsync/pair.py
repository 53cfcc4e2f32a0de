"""A git directory of the host's and the private copy of it that a cage has in its place."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from cagewrap import beneath
from cagewrap.digests import sha256
from cagewrap.gitsync.side import Side, Stamp, stamp_of


class Pair(NamedTuple):
    """host: the git directory. copy: the cage's, on the host. base_file: where it is written down
    what both had; not in the copy.

    project: the work tree, a real path. work_tree: "" or `worktrees/NAME`, when the project is a
    linked work tree of the host's. modules: the git directories of submodules in it, relative.
    borrows: whether the cage sees the host's objects (not if there was no repository when it was
    started). session: what a conflict's refs are named after. inside_ids: uid and gid of the
    owner's files as the cage sees them. seen_at: path of the copy in the cage, if it is known.
    """

    host: str
    copy: str
    base_file: str
    project: str
    session: str
    work_tree: str = ""
    modules: tuple[str, ...] = ()
    borrows: bool = True
    inside_ids: tuple[int, int] = (0, 0)
    seen_at: str = ""

    @property
    def mark(self) -> str:
        """What is in the names of this session's temporary files (hex)."""
        return sha256(os.fsencode(self.base_file)).hexdigest()[:12]


class ReplacedError(Exception):
    """The host's git directory is another one than the cage was started with."""


@contextmanager
def opened(path: str, mark: str = "") -> Iterator[Side]:
    """A git directory of this path, which must not be a symlink. Raises OSError."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    side = Side(os.open(path, flags), mark)
    try:
        yield side
    finally:
        side.close()


def read_base(pair: Pair) -> dict[str, Any]:
    """What was written down; empty when nothing was, or it cannot be read."""
    try:
        with open(pair.base_file, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_base(pair: Pair, base: dict[str, Any]) -> None:
    """Write it down, whole or not at all. Raises OSError."""
    temporary = f"{pair.base_file}.{os.getpid()}"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(base, file, separators=(",", ":"))
        os.replace(temporary, pair.base_file)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def is_git_dir(side: Side) -> bool:
    """Whether it has what git asks of a repository."""
    return is_begun(side) and _has_dir(side, "objects")


def is_begun(side: Side) -> bool:
    """The same, wherever the objects may be."""
    return side.stamp("HEAD") is not None and _has_dir(side, "refs")


def _has_dir(side: Side, name: str) -> bool:
    try:
        os.close(beneath.open_dir(side.fd, [name]))
    except OSError:
        return False
    return True


_WATCHED = (
    "", "HEAD", "index", "packed-refs", "config", "logs/HEAD", "hooks", "info", "modules",
    "worktrees", "reftable", "FETCH_HEAD", "MERGE_MSG",
)  # fmt: skip
"""What changes when anything that is carried does, beside the directories of refs."""

Stamps = dict[str, "Stamp | None"]


def watched(pair: Pair, places: list[str], directories: dict[str, list[str]]) -> list[str]:
    """The paths to look at, on both sides. directories: of refs, by place."""
    found: list[str] = []
    for root in (pair.host, pair.copy):
        for place in places:
            base = os.path.join(root, place) if place else root
            found += [os.path.join(base, name) if name else base for name in _WATCHED]
            found += [os.path.join(base, name) for name in directories.get(place, ())]
    return found


def read_stamps(paths: list[str]) -> list[Stamp | None]:
    """What each is now. Only compared: it does not matter what an agent puts there."""
    found: list[Stamp | None] = []
    for path in paths:
        try:
            found.append(stamp_of(os.lstat(path)))
        except OSError:
            found.append(None)
    return found
