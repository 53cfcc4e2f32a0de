"""Trees of small files that an agent may change meanwhile: what is in one, and copying of it.

Regular files and symlinks count, anything else is as good as not there. A symlink is never
followed; its text is its content.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from cagewrap import beneath

FILE_BYTES = 32 << 20
"""A larger file is not copied."""
ENTRIES = 50_000
"""Files and directories of one tree that are looked at."""
DEPTH = 64

Stamp = tuple[int, int, int, int, int]
"""Mode, inode, size, modification and change time: the same as long as nothing was written."""

MISSING = ""
"""The digest of what is not there, or is neither a regular file nor a symlink."""
TOO_LARGE = "!"
"""The digest of a file that is larger than FILE_BYTES."""


@dataclass(slots=True)
class Scan:
    """What is in a tree. files: by path, symlinks too. is_whole: whether all was looked at."""

    files: dict[str, Stamp] = field(default_factory=dict)
    directories: dict[str, int] = field(default_factory=dict)
    is_whole: bool = True


def stamp_of(found: os.stat_result) -> Stamp:
    """The stamp of a file."""
    return (found.st_mode, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def stat_below(root: int, path: str) -> os.stat_result | None:
    """What is at a path below a directory, reached by no symlink; None if there is nothing."""
    try:
        if "/" not in path:
            return beneath.stat_at(root, path)
        with parent(root, path) as (above, name):
            return beneath.stat_at(above, name)
    except OSError:
        return None


def stamp_at(root: int, path: str) -> Stamp | None:
    """The stamp of what is at a path below a directory; None if there is nothing."""
    found = stat_below(root, path)
    return stamp_of(found) if found is not None else None


def scan(root: int, left_out: Collection[str] = ()) -> Scan:
    """All files below a directory. left_out: names in the directory itself to pass over."""
    found = Scan()
    todo: list[tuple[str, int]] = [("", 0)]
    while todo:
        path, depth = todo.pop()
        try:
            fd = beneath.open_dir(root, _parts(path))
        except OSError:
            continue
        try:
            found.directories[path] = os.fstat(fd).st_mtime_ns
            for entry in os.scandir(fd):
                if path == "" and entry.name in left_out:
                    continue
                if len(found.files) + len(todo) >= ENTRIES or depth > DEPTH:
                    found.is_whole = False
                    break
                below = f"{path}/{entry.name}" if path else entry.name
                _add(found, todo, entry, below, depth)
        finally:
            os.close(fd)
    return found


def _add(
    found: Scan, todo: list[tuple[str, int]], entry: os.DirEntry[str], path: str, depth: int
) -> None:
    with contextlib.suppress(OSError):
        status = entry.stat(follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            todo.append((path, depth + 1))
        elif stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
            found.files[path] = stamp_of(status)


def digest(root: int, path: str) -> str:
    """What a file is: kind, whether it may be executed, and a hash of its content.

    MISSING for what is none; TOO_LARGE for a large one.
    """
    try:
        with parent(root, path) as (above, name):
            status = beneath.stat_at(above, name)
            if stat.S_ISLNK(status.st_mode):
                return link_digest(os.readlink(name, dir_fd=above))
            if not stat.S_ISREG(status.st_mode):
                return MISSING
            content = beneath.read_regular(above, name, FILE_BYTES)
    except OSError as error:
        return TOO_LARGE if error.errno == errno.EFBIG else MISSING
    return file_digest(content, is_program=bool(status.st_mode & 0o100))


def file_digest(content: bytes, *, is_program: bool) -> str:
    """The digest of a regular file."""
    return f"{'x' if is_program else 'f'}:{hashlib.sha256(content).hexdigest()}"


def link_digest(text: str) -> str:
    """The digest of a symlink."""
    return f"l:{hashlib.sha256(os.fsencode(text)).hexdigest()}"


def copy(source: int, target: int, path: str, *, is_public: bool = False) -> None:
    """Put the file at a path of one tree to the same path of another, or remove it there if the
    first has none. is_public: for the project: modes as the umask says. Raises OSError."""
    try:
        with parent(source, path) as (above, name):
            status = beneath.stat_at(above, name)
            if stat.S_ISLNK(status.st_mode):
                text = os.readlink(name, dir_fd=above)
                put_link(target, path, text)
                return
            content = beneath.read_regular(above, name, FILE_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        remove(target, path)
        return
    put(target, path, content, is_program=bool(status.st_mode & 0o100), is_public=is_public)


def put(
    root: int, path: str, content: bytes, *, is_program: bool = False, is_public: bool = False
) -> None:
    """Write a file, in the place of a file or symlink, and the directories above it."""
    mode = 0o700 if is_program else 0o600
    if is_public:
        mode = (0o777 if is_program else 0o666) & ~_umask()
    with parent(root, path, make=0o777 if is_public else 0o700) as (above, name):
        beneath.write_regular(above, name, content, mode)


def put_link(root: int, path: str, text: str) -> None:
    """Make a symlink, in the place of a file or symlink."""
    with parent(root, path, make=0o700) as (above, name):
        temporary = f"{beneath.TEMPORARY_PREFIX}{os.getpid()}"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=above)
        os.symlink(text, temporary, dir_fd=above)
        os.rename(temporary, name, src_dir_fd=above, dst_dir_fd=above)


def remove(root: int, path: str) -> None:
    """Remove a file or symlink, and the directories above it that are empty then."""
    parts = _parts(path)
    try:
        with parent(root, path) as (above, name):
            os.unlink(name, dir_fd=above)
    except (FileNotFoundError, NotADirectoryError):
        return
    for depth in range(len(parts) - 1, 0, -1):
        try:
            with parent(root, "/".join(parts[:depth])) as (above, name):
                os.rmdir(name, dir_fd=above)
        except OSError:
            return


def read(root: int, path: str) -> bytes | None:
    """What a difference shows of a file: its content, the text of a symlink, None for none."""
    try:
        with parent(root, path) as (above, name):
            if stat.S_ISLNK(beneath.stat_at(above, name).st_mode):
                return b"symlink to " + os.fsencode(os.readlink(name, dir_fd=above)) + b"\n"
            return beneath.read_regular(above, name, FILE_BYTES)
    except OSError:
        return None


@contextlib.contextmanager
def parent(root: int, path: str, *, make: int = 0) -> Iterator[tuple[int, str]]:
    """The directory that a path lies in, and the name there. make: the mode of missing ones."""
    parts = _parts(path)
    if make:
        make_directories(root, parts[:-1], make)
    above = beneath.open_dir(root, parts[:-1])
    try:
        yield above, parts[-1]
    finally:
        os.close(above)


def make_directories(root: int, parts: list[str], mode: int) -> None:
    """Make what is missing of the directories on the way to a path, and at it."""
    for depth in range(len(parts)):
        above = beneath.open_dir(root, parts[:depth])
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(parts[depth], mode, dir_fd=above)
        finally:
            os.close(above)


def _parts(path: str) -> list[str]:
    return path.split("/") if path else []


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
