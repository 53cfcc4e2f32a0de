"""The files of a running container as a program in it sees them, looked at from outside.

Paths are resolved by the kernel with the container's root as `/` (openat2, RESOLVE_IN_ROOT): no
symlink of an agent's leads out of it. Nothing that is looked at is opened for reading before it is
known to be a regular file.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from typing import Self

from cagewrap.keeper.covers import Identity

_OPENAT2 = 437  # the same on every architecture
_IN_ROOT, _NO_MAGIC_LINKS = 0x10, 0x02  # include/uapi/linux/openat2.h
_ANYTHING = os.O_PATH | os.O_CLOEXEC
_EXECUTABLE = 0o111

_libc = ctypes.CDLL(None, use_errno=True)


class _OpenHow(ctypes.Structure):
    """struct open_how."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in ("flags", "mode", "resolve"))


_HOW = _OpenHow(_ANYTHING, 0, _IN_ROOT | _NO_MAGIC_LINKS)
_HOW_UNFOLLOWED = _OpenHow(_ANYTHING | os.O_NOFOLLOW, 0, _IN_ROOT | _NO_MAGIC_LINKS)


class CageRoot:
    """Of one running container. A context: it holds the root open no longer than needed."""

    def __init__(self, init_pid: int) -> None:
        """Raises OSError when the container has ended."""
        self._fd = os.open(f"/proc/{init_pid}/root", _ANYTHING | os.O_DIRECTORY)

    def __enter__(self) -> Self:
        """Nothing more to do."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let go."""
        os.close(self._fd)

    def open(self, path: bytes) -> int:
        """A descriptor (O_PATH) of what lies at a path, symlinks followed. Raises OSError."""
        return self._open(path, _HOW)

    def _open(self, path: bytes, how: _OpenHow) -> int:
        size = ctypes.c_size_t(ctypes.sizeof(how))
        fd = _libc.syscall(_OPENAT2, self._fd, path, ctypes.byref(how), size)
        if fd < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)
        return int(fd)

    def identity(self, path: str) -> Identity:
        """Of what lies at a path, its last part not followed; (0, 0) for nothing."""
        try:
            fd = self._open(os.fsencode(path), _HOW_UNFOLLOWED)
        except OSError:
            return (0, 0)
        try:
            found = os.fstat(fd)
        finally:
            os.close(fd)
        return (found.st_dev, found.st_ino)

    def lacks(self, path: str) -> bool:
        """Whether there is surely nothing at a path; not when it cannot be looked at."""
        try:
            os.close(self.open(os.fsencode(path)))
        except OSError as error:
            return error.errno in (errno.ENOENT, errno.ENOTDIR)
        return False

    def find(self, name: bytes, search_path: bytes, cwd: bytes) -> tuple[bytes, int]:
        """The program that a command names, as execvp does: its path, and a descriptor (O_PATH).

        (b"", -1) when there is none, or it cannot be looked at.
        """
        for path in _places(name, search_path, cwd):
            try:
                fd = self.open(path)
            except OSError:
                continue
            found = os.fstat(fd)
            if stat.S_ISREG(found.st_mode) and found.st_mode & _EXECUTABLE:
                return path, fd
            os.close(fd)
        return b"", -1


def reopened(fd: int) -> int:
    """A descriptor for reading of a regular file that `CageRoot.find` found. Raises OSError."""
    return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def _places(name: bytes, search_path: bytes, cwd: bytes) -> Iterator[bytes]:
    if b"/" in name:
        yield os.path.join(cwd, name)
        return
    for directory in search_path.split(b":"):
        yield os.path.join(cwd, directory, name)
