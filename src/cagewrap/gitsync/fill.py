"""The first content of a cage's private copy: all of the host's git directory but its objects."""

from __future__ import annotations

import contextlib
import os
import re
import stat

from cagewrap import beneath
from cagewrap.gitsync.large import LENT, STORE
from cagewrap.gitsync.objects import BORROWED
from cagewrap.gitsync.side import DEPTH_LIMIT

STORES = ("lfs/objects", "annex/objects")
"""Directories of the host's that a cage sees and cannot write to: git-lfs and git-annex of the
host's copy what lies there into the work tree, wherever a symlink leads."""
_IN_MODULE = r"(?:modules/.+/)?"
_NOT_COPIED = re.compile(_IN_MODULE + "(?:objects|refs|logs/refs/remotes|" + "|".join(STORES) + ")")
_MOUNTED = re.compile(_IN_MODULE + f"(?:{BORROWED}|{LENT}|annex/objects)")
_FILE_BYTES = 1 << 40
_DEEP = ".cagewrap-deep-"
"""What lies deeper than anything of git's is removed from the top, a part at a time."""
_PARTS_LIMIT = 5000
_LEFT_OUT = re.compile(r"(?:.*/)?(?:gc\.pid|fsmonitor--daemon\.ipc|fsmonitor--daemon)")


def place_of(store: str) -> str:
    """Where in the copy a store of the host's is seen: git-lfs has one of the cage's beside it."""
    return store.removesuffix(STORE) + LENT if store.endswith(STORE) else store


def fill(source_fd: int, target_fd: int, path: str = "") -> None:
    """Copy a host's git directory, or the part `path` of it, into the cage's. Raises OSError.

    Locks, sockets, objects, stores and loose refs (see `fill_refs`) are left out. Symlinks stay
    what they are, for the cage to follow.
    """
    with os.scandir(source_fd) as listed:
        entries = sorted(listed, key=lambda entry: entry.name)
    for entry in entries:
        below = f"{path}/{entry.name}" if path else entry.name
        found = entry.stat(follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode):
            _fill_directory(source_fd, target_fd, entry.name, below)
        elif stat.S_ISLNK(found.st_mode):
            with contextlib.suppress(FileExistsError):
                os.symlink(os.readlink(entry.name, dir_fd=source_fd), entry.name, dir_fd=target_fd)
        elif stat.S_ISREG(found.st_mode) and not _is_left_out(below):
            with contextlib.suppress(FileNotFoundError):  # gone meanwhile
                copy_file(source_fd, target_fd, entry.name)


def _fill_directory(source_fd: int, target_fd: int, name: str, path: str) -> None:
    if _NOT_COPIED.fullmatch(path):
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=target_fd)
        return
    if path.count("/") > DEPTH_LIMIT:
        return
    try:
        source = beneath.open_dir(source_fd, [name])
    except FileNotFoundError:
        return
    try:
        target = beneath.open_dir(target_fd, [name], make=True)
        try:
            os.fchmod(target, 0o755)
            fill(source, target, path)
        finally:
            os.close(target)
    finally:
        os.close(source)


def _is_left_out(path: str) -> bool:
    return path.endswith(".lock") or _LEFT_OUT.fullmatch(path) is not None


def copy_file(source_fd: int, target_fd: int, name: str) -> None:
    """Copy a regular file between directories, at once or not at all. Raises OSError.

    Never a hard link of a file of the host's: whoever has the file can write to it.
    """
    source = beneath.open_regular(source_fd, name)
    try:
        mode = stat.S_IMODE(os.fstat(source).st_mode) & 0o777 | 0o600
        temporary = f"{beneath.TEMPORARY_PREFIX}{os.getpid()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        target = os.open(temporary, flags, mode, dir_fd=target_fd)
        try:
            beneath.copy_content(source, target, _FILE_BYTES)
            os.fchmod(target, mode)
            os.rename(temporary, name, src_dir_fd=target_fd, dst_dir_fd=target_fd)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=target_fd)
            raise
        finally:
            os.close(target)
    finally:
        os.close(source)


def empty(fd: int, path: str = "") -> None:
    """Remove everything but the directories that may be mounted on. Raises OSError."""
    _empty(fd, path, fd, 0)
    for _ in range(_PARTS_LIMIT):
        deep = [name for name in os.listdir(fd) if name.startswith(_DEEP)]
        for name in deep:
            _empty_one(fd, name, name, fd, 0)
        if not deep:
            return


def _empty(fd: int, path: str, top: int, depth: int) -> None:
    for name in os.listdir(fd):
        below = f"{path}/{name}" if path else name
        if not stat.S_ISDIR(beneath.stat_at(fd, name).st_mode):
            os.unlink(name, dir_fd=fd)
        elif depth == DEPTH_LIMIT:
            os.rename(name, _DEEP + os.urandom(8).hex(), src_dir_fd=fd, dst_dir_fd=top)
        elif not _MOUNTED.fullmatch(below):
            _empty_one(fd, name, below, top, depth)


def _empty_one(fd: int, name: str, path: str, top: int, depth: int) -> None:
    inner = beneath.open_dir(fd, [name])
    try:
        _empty(inner, path, top, depth + 1)
    finally:
        os.close(inner)
    with contextlib.suppress(OSError):  # it holds one that may be mounted on
        os.rmdir(name, dir_fd=fd)
