"""Trees of small files that an agent may change meanwhile: what is in one, and copying of it.

Regular files and symlinks count, anything else is as good as not there. A symlink is never
followed; its text is its content.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Collection, Iterator

from cagewrap import beneath
from cagewrap.digests import sha256
from cagewrap.diskspace import is_full

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


class Scan:
    """What is in a tree. files: by path, symlinks too. is_whole: whether all was looked at."""

    def __init__(self, *, is_whole: bool = True) -> None:
        """Empty, unless it is said."""
        self.files: dict[str, Stamp] = {}
        self.directories: dict[str, int] = {}
        self.is_whole = is_whole


def open_project(path: str) -> int:
    """A descriptor of a project's directory, which an agent of another cage may have moved, with
    a symlink in its place. Raises OSError then."""
    fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    if os.readlink(f"/proc/self/fd/{fd}") != path:
        os.close(fd)
        raise OSError(errno.ELOOP, f"{path} is another directory now")
    return fd


def stamp_of(found: os.stat_result) -> Stamp:
    """Of a file."""
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
    """All files below a directory. left_out: paths in it to pass over."""
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
                below = f"{path}/{entry.name}" if path else entry.name
                if below in left_out:
                    continue
                if len(found.files) + len(todo) >= ENTRIES or depth > DEPTH:
                    found.is_whole = False
                    break
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


def digest(root: int, path: str, limit: int = 0) -> str:
    """What a file is: kind, whether it may be executed, and a hash of its content.

    MISSING for what is none; TOO_LARGE for a large one.
    """
    try:
        found = read_raw(root, path, limit)
    except OSError as error:
        return TOO_LARGE if error.errno == errno.EFBIG else MISSING
    return found[0] if found is not None else MISSING


def file_digest(content: bytes, *, is_program: bool) -> str:
    """The digest of a regular file."""
    return f"{'x' if is_program else 'f'}:{sha256(content).hexdigest()}"


def link_digest(text: str) -> str:
    """The digest of a symlink."""
    return f"l:{sha256(os.fsencode(text)).hexdigest()}"


def copy(source: int, target: int, path: str) -> str:
    """Put the file at a path of one tree to the same path of another, or remove it there if the
    first has none; its digest. Every user of the cage can read it. Raises OSError."""
    found = read_raw(source, path)
    if found is None:
        remove(target, path)
        return MISSING
    digest, content = found
    if digest.startswith("l:"):
        put_link(target, path, os.fsdecode(content))
    else:
        put(target, path, content, is_program=digest.startswith("x:"))
    return digest


def copy_all(source: int, target: int, found: Scan) -> dict[str, str]:
    """Copy a tree to an empty directory that nobody sees yet; the digests of its files."""
    digests = dict.fromkeys(found.files, TOO_LARGE)  # but for a full disk, which is an error
    by_directory: dict[str, list[str]] = {}
    for path in found.files:
        above, _, name = path.rpartition("/")
        by_directory.setdefault(above, []).append(name)
    for above, names in by_directory.items():
        with unless_full():
            make_directories(target, _parts(above), 0o755)
            for name, digest in _copy_directory(source, target, above, names):
                digests[f"{above}/{name}" if above else name] = digest
    return digests


@contextlib.contextmanager
def unless_full() -> Iterator[None]:
    """Pass over what cannot be read, or is gone; not over what there is no space for."""
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise


def _copy_directory(
    source: int, target: int, path: str, names: list[str]
) -> Iterator[tuple[str, str]]:
    below = beneath.open_dir(source, _parts(path))
    beside = beneath.open_dir(target, _parts(path))
    try:
        for name in names:
            with unless_full():
                digest, content = read_raw(below, name) or (MISSING, b"")
                if digest.startswith("l:"):
                    os.symlink(os.fsdecode(content), name, dir_fd=beside)
                elif digest:
                    mode = 0o755 if digest.startswith("x:") else 0o644
                    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode, dir_fd=beside)
                    with open(fd, "wb") as file:
                        file.write(content)
                        os.fchmod(fd, mode)
                yield name, digest
    finally:
        os.close(below)
        os.close(beside)


def read_raw(root: int, path: str, limit: int = 0) -> tuple[str, bytes] | None:
    """The digest of a file and its content, or of a symlink and its text; None if there is none.

    limit: FILE_BYTES if not given. Raises OSError for a file that is larger or cannot be read.
    """
    try:
        if "/" not in path:
            return _read_raw(root, path, limit or FILE_BYTES)
        with parent(root, path) as (above, name):
            return _read_raw(above, name, limit or FILE_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _read_raw(above: int, name: str, limit: int) -> tuple[str, bytes] | None:
    status = beneath.stat_at(above, name)
    if stat.S_ISLNK(status.st_mode):
        text = os.readlink(name, dir_fd=above)
        return link_digest(text), os.fsencode(text)
    if not stat.S_ISREG(status.st_mode):
        return None
    content = beneath.read_regular(above, name, limit)
    return file_digest(content, is_program=bool(status.st_mode & 0o100)), content


def put(
    root: int, path: str, content: bytes, *, is_program: bool = False, is_public: bool = False
) -> None:
    """Write a file, in the place of one or of a symlink, and the directories above it.

    is_public: for the project, as the umask says; else for every user of the cage.
    """
    mode = 0o777 if is_program else 0o666
    mode &= ~_umask() if is_public else ~0o022
    with parent(root, path, make=0o777 if is_public else 0o755) as (above, name):
        beneath.write_regular(above, name, content, mode)


def put_link(root: int, path: str, text: str) -> None:
    """Make a symlink, in the place of a file or symlink."""
    with parent(root, path, make=0o755) as (above, name):
        temporary = f"{beneath.TEMPORARY_PREFIX}{os.getpid()}"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=above)
        os.symlink(text, temporary, dir_fd=above)
        os.rename(temporary, name, src_dir_fd=above, dst_dir_fd=above)


def put_aside(root: int, path: str) -> None:
    """Give a file another name beside it, which needs no space; where even that fails,
    remove it."""
    with contextlib.suppress(FileNotFoundError), parent(root, path) as (above, name):
        try:
            aside = f"{name}.agent-{os.urandom(4).hex()}"
            os.rename(name, aside, src_dir_fd=above, dst_dir_fd=above)
        except OSError:
            os.unlink(name, dir_fd=above)


def unlink(root: int, path: str) -> None:
    """Remove a file or symlink, if it is there."""
    with contextlib.suppress(FileNotFoundError), parent(root, path) as (above, name):
        os.unlink(name, dir_fd=above)


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


def write_private(path: str, data: bytes) -> None:
    """Write a file of ours, whole or not at all. Raises OSError with the path in it."""
    temporary = f"{path}.{os.getpid()}"
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except OSError as error:
        error.filename = path
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def read(root: int, path: str) -> bytes | None:
    """What a difference shows of a file: its content, the text of a symlink, None for none."""
    try:
        found = read_raw(root, path)
    except OSError:
        return None
    if found is None:
        return None
    digest, content = found
    return b"symlink to " + content + b"\n" if digest.startswith("l:") else content


@contextlib.contextmanager
def parent(root: int, path: str, *, make: int = 0) -> Iterator[tuple[int, str]]:
    """The directory that a path lies in, and the name there. make: the mode of missing ones."""
    parts = _parts(path)
    if make:
        make_directories(root, parts[:-1], make)
    above = beneath.reach_dir(root, parts[:-1])
    try:
        yield above, parts[-1]
    finally:
        os.close(above)


def make_directories(root: int, parts: list[str], mode: int) -> None:
    """Make what is missing of the directories on the way to a path, and at it.

    mode: 0o755 whatever the umask is, or 0o777 as it says.
    """
    for depth in range(len(parts)):
        above = beneath.open_dir(root, parts[:depth])
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(parts[depth], mode, dir_fd=above)
                if mode == 0o755:
                    below = beneath.open_dir(above, parts[depth : depth + 1])
                    os.fchmod(below, mode)
                    os.close(below)
        finally:
            os.close(above)


def _parts(path: str) -> list[str]:
    return path.split("/") if path else []


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
