"""One git directory, the host's or a cage's, by descriptor. Nothing here follows a symlink."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager

from cagewrap import beneath

LOCK_TRIES = 10
LOCK_WAIT_S = 0.01
"""How often a lock of git's is tried for, and how long is waited in between."""
DEPTH_LIMIT = 64
"""git's directories are not deeper, an agent's may be."""

Stamp = tuple[int, int, int]
"""Inode, nanoseconds of the last change, size: tells a file from a later version of it."""


class BusyError(OSError):
    """Somebody holds git's lock of that file: try again later."""


class Side:
    """A git directory. Paths are relative to it, `/` between names.

    mark: what is in the name of every temporary file, so that those of a run that was killed can
    be told from others.
    """

    def __init__(self, fd: int, mark: str = "") -> None:
        """Owns the descriptor."""
        self.fd = fd
        self.mark = mark
        self.file_mode = self._mode("HEAD", 0o644) & 0o666
        self.dir_mode = self._mode("refs", 0o755) & 0o7777 | 0o700

    def close(self) -> None:
        """Let go of it."""
        os.close(self.fd)

    def below(self, path: str) -> Side:
        """The git directory of a submodule or a work tree in this one. Raises OSError."""
        return Side(beneath.open_dir(self.fd, _parts(path)), self.mark)

    def _mode(self, path: str, default: int) -> int:
        try:
            return stat.S_IMODE(os.stat(path, dir_fd=self.fd, follow_symlinks=False).st_mode)
        except OSError:
            return default

    @contextmanager
    def parent(self, path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """A descriptor of the directory that a path lies in, and its name there."""
        *above, name = _parts(path)
        fd = self._make_dir(above) if make else beneath.open_dir(self.fd, above)
        try:
            yield fd, name
        finally:
            os.close(fd)

    def _make_dir(self, parts: list[str]) -> int:
        try:
            return beneath.open_dir(self.fd, parts)
        except FileNotFoundError:
            if not parts:
                raise
        above = self._make_dir(parts[:-1])
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(parts[-1], self.dir_mode, dir_fd=above)
                os.chmod(parts[-1], self.dir_mode, dir_fd=above)
            return beneath.open_dir(above, parts[-1:])
        finally:
            os.close(above)

    def stamp(self, path: str) -> Stamp | None:
        """What a path is now; None when it is not there or cannot be reached."""
        try:
            with self.parent(path) as (fd, name):
                return stamp_of(beneath.stat_at(fd, name))
        except OSError:
            return None

    def read(self, path: str, limit: int) -> bytes | None:
        """A regular file's content; None when there is no such file. Raises OSError for anything
        that is not a regular file of at most `limit` bytes."""
        try:
            with self.parent(path) as (fd, name):
                return beneath.read_regular(fd, name, limit)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, path: str, data: bytes) -> None:
        """Replace a file, or make it, without git's lock."""
        with self.parent(path, make=True) as (fd, name):
            beneath.write_regular(fd, name, data, self.file_mode, mark=self.mark)

    def remove(self, path: str) -> None:
        """Remove a file; no error when it is not there."""
        try:
            with self.parent(path) as (fd, name):
                os.unlink(name, dir_fd=fd)
        except (FileNotFoundError, NotADirectoryError):
            return

    def append(self, path: str, data: bytes) -> None:
        """Add to the end of a regular file, or make it."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        with self.parent(path, make=True) as (dir_fd, name):
            fd = os.open(name, flags | os.O_CLOEXEC, self.file_mode, dir_fd=dir_fd)
            with open(fd, "ab", buffering=0) as file:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    raise OSError(errno.EINVAL, f"{path} is not a regular file")
                rest = memoryview(data)
                while rest:
                    rest = rest[file.write(rest) :]

    @contextmanager
    def locked(self, path: str) -> Iterator[Lock]:
        """Hold git's lock of a file (`PATH.lock`, made exclusively). Raises BusyError, also when
        git removes the directory, which was empty, at this moment."""
        with self.parent(path, make=True) as (fd, name):
            try:
                lock = self._take(fd, name)
            except FileNotFoundError as error:
                raise BusyError(errno.EBUSY, f"the directory of {path} is gone") from error
            try:
                yield lock
            finally:
                lock.release()

    def _take(self, dir_fd: int, name: str) -> Lock:
        """The lock is a second name of a temporary file, which stays for as long as it is held: so
        a lock that a killed run has left is known to be ours."""
        temporary = beneath.temporary_name(self.mark)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(temporary, flags, 0o600, dir_fd=dir_fd)
        try:
            os.fchmod(fd, self.file_mode)
            self._try_link(fd, dir_fd, temporary, name + ".lock")
        except BaseException:
            os.close(fd)
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=dir_fd)
            raise
        return Lock(dir_fd, name, fd, temporary)

    def _try_link(self, fd: int, dir_fd: int, name: str, new: str) -> None:
        for left in reversed(range(LOCK_TRIES)):
            try:
                self._link(fd, dir_fd, name, new)
            except FileExistsError as error:
                if not left:
                    raise BusyError(errno.EBUSY, f"{new} is held") from error
                time.sleep(LOCK_WAIT_S)
            else:
                return

    def _link(self, fd: int, dir_fd: int, name: str, new: str) -> None:
        """Give the file a second name, which must be free. Where a file system has no hard links,
        the descriptor is made that of a new file: a lock that no later run knows."""
        try:
            os.link(name, new, src_dir_fd=dir_fd, dst_dir_fd=dir_fd, follow_symlinks=False)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            lock = os.open(new, flags, self.file_mode, dir_fd=dir_fd)
            os.dup2(lock, fd, inheritable=False)
            os.close(lock)


class Lock:
    """A lock file of git's that is held."""

    def __init__(self, dir_fd: int, name: str, fd: int, temporary: str) -> None:
        """Made by Side.locked."""
        self._temporary = temporary
        self._dir_fd = dir_fd
        self._name = name
        self._fd = fd
        self._is_held = True

    def write(self, data: bytes) -> None:
        """Make this the file's content, and let go. IsADirectoryError where empty directories are
        in the way is mended as git does: they are removed."""
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._fd, rest) :]
        try:
            self._rename()
        except OSError as error:
            if error.errno not in (errno.EISDIR, errno.ENOTEMPTY):
                raise
            remove_empty(self._dir_fd, self._name)
            self._rename()
        self._is_held = False

    def remove(self) -> None:
        """Remove the file; the lock stays held until released."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._name, dir_fd=self._dir_fd)

    def _rename(self) -> None:
        os.rename(
            self._name + ".lock", self._name, src_dir_fd=self._dir_fd, dst_dir_fd=self._dir_fd
        )

    def release(self) -> None:
        """Let go of it."""
        os.close(self._fd)
        with contextlib.suppress(OSError):
            if self._is_held:
                os.unlink(self._name + ".lock", dir_fd=self._dir_fd)
        with contextlib.suppress(OSError):
            os.unlink(self._temporary, dir_fd=self._dir_fd)


def remove_empty(dir_fd: int, name: str, depth: int = 0) -> None:
    """Remove a directory that holds nothing but such directories. Raises OSError, also where they
    are deeper than any of git's."""
    if depth > DEPTH_LIMIT:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    fd = beneath.open_dir(dir_fd, [name])
    try:
        for below in os.listdir(fd):
            remove_empty(fd, below, depth + 1)
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=dir_fd)


def stamp_of(found: os.stat_result) -> Stamp:
    """The stamp of what a stat found."""
    return (found.st_ino, found.st_mtime_ns, found.st_size)


def _parts(path: str) -> list[str]:
    return path.split("/") if path else []
