"""Files below a directory whose content an agent may change at any moment.

Everything goes by the descriptor of a directory and a single name in it, and no symlink is ever
followed: what an agent puts in the way (a symlink, a FIFO, another directory) makes a call fail,
and never leads it elsewhere. All but `real_path` raises OSError.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Sequence

_STEP_BYTES = 1 << 24
_CANNOT_SHARE = (errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)
_NAME_BYTES = 6
"""Random bytes in the name of a temporary file."""
_DIRECTORY = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
TEMPORARY_PREFIX = ".cagewrap-"
"""How the names of temporary files begin; one is left over only by a keeper that was killed."""


def open_root(path: str) -> int:
    """A descriptor of a directory that is trusted as it is spelled; it may be a symlink."""
    return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def open_dir(root_fd: int, parts: Sequence[str], *, make: bool = False) -> int:
    """A readable descriptor of the directory `parts` below `root_fd`.

    make: make what is missing of it, for the owner alone (0700).
    """
    last = parts[-1] if parts else "."
    above = reach_dir(root_fd, parts[:-1], make=make)
    try:
        if parts:
            _check_name(last)
            if make:
                _make(above, last)
        return os.open(last, os.O_RDONLY | _DIRECTORY, dir_fd=above)
    finally:
        os.close(above)


def reach_dir(root_fd: int, parts: Sequence[str], *, make: bool = False) -> int:
    """The same for a directory that is not to be listed: what may be gone through is enough, for
    us as for the host's programs."""
    current = os.open(".", os.O_PATH | _DIRECTORY, dir_fd=root_fd)
    try:
        for part in parts:
            _check_name(part)
            if make:
                _make(current, part)
            below = os.open(part, os.O_PATH | _DIRECTORY, dir_fd=current)
            os.close(current)
            current = below
    except BaseException:
        os.close(current)
        raise
    return current


def _make(above: int, name: str) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=above)


def open_regular(dir_fd: int, name: str) -> int:
    """A readable descriptor of a regular file. Does not wait: not for a FIFO, nor for a lease."""
    _check_name(name)
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    if not stat.S_ISREG(stat_at(dir_fd, name).st_mode):  # to open a device may do something
        raise OSError(errno.EINVAL, f"{name} is not a regular file")
    fd = os.open(name, flags, dir_fd=dir_fd)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, f"{name} is not a regular file")
    return fd


def read_regular(dir_fd: int, name: str, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes; EFBIG for a larger one."""
    with open(open_regular(dir_fd, name), "rb", buffering=0) as file:
        content = b""
        while len(content) <= limit:
            chunk = file.read(limit + 1 - len(content))
            if not chunk:
                return content
            content += chunk
    raise OSError(errno.EFBIG, f"{name} is larger than {limit} bytes")


def temporary_name(mark: str = "") -> str:
    """A name for a temporary file. mark: tells who makes it, so that it can be found (in hex)."""
    return TEMPORARY_PREFIX + mark + os.urandom(_NAME_BYTES).hex()


def write_regular(
    dir_fd: int, name: str, data: bytes, mode: int = 0o600, *, mark: str = ""
) -> None:
    """Make `name` a new regular file with this content, at once or not at all.

    It takes the place of whatever is there, unless that is a directory. mark: of its temporary
    name.
    """
    _check_name(name)
    temporary = temporary_name(mark)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(temporary, flags, 0o600, dir_fd=dir_fd)
    try:
        with open(fd, "wb", buffering=0) as file:
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) :]
            os.fchmod(fd, mode)
        os.rename(temporary, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=dir_fd)
        raise


def copy_content(source: int, target: int, limit: int) -> None:
    """Copy what is left of a file, and at most `limit` bytes of it, between descriptors.

    The kernel shares blocks where it can; between file systems of two kinds (EXDEV since Linux
    5.19), and where a file system cannot, it copies.
    """
    copy = _copy_range
    while limit > 0:
        try:
            count = copy(source, target, min(limit, _STEP_BYTES))
        except OSError as error:
            if copy is _send or error.errno not in _CANNOT_SHARE:
                raise
            copy = _send
            continue
        if not count:
            return
        limit -= count


def _copy_range(source: int, target: int, count: int) -> int:
    return os.copy_file_range(source, target, count)


def _send(source: int, target: int, count: int) -> int:
    return os.sendfile(target, source, None, count)


def link_regular(file_fd: int, dir_fd: int, name: str) -> None:
    """Give the very file behind `file_fd` the name `name` too; EEXIST if that is taken, EXDEV
    across file systems."""
    _check_name(name)
    os.link(f"/proc/self/fd/{file_fd}", name, dst_dir_fd=dir_fd, follow_symlinks=True)


def stat_at(dir_fd: int, name: str) -> os.stat_result:
    """What `name` is, a symlink being itself."""
    return os.stat(name, dir_fd=dir_fd, follow_symlinks=False)


def real_path(path: str) -> str:
    """Where a path leads, or would if all of it were there; "" if nobody can follow it."""
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except ValueError:  # a NUL
        return ""
    except OSError as error:
        return "" if error.errno == errno.ELOOP else os.path.realpath(path)
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


def _check_name(name: str) -> None:
    """A name of one step: never "..", never a path."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise OSError(errno.EINVAL, f"{name!r} is not a file name")
