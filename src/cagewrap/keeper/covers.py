"""Mounting a directory or file of the host's into a container that runs already.

A process in podman's user namespace clones a mount of the directory (in a mount namespace of its
own, where it may), enters the container's mount namespace, and attaches the clone there. Nothing
is added to the container, and nothing inside can take the mount away: that needs CAP_SYS_ADMIN,
which no cage has.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from cagewrap.keeper import namespaces

_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442  # the same on every architecture
_OPEN_TREE_CLONE = 1  # include/uapi/linux/mount.h
_EMPTY_PATHS = 0x04 | 0x40  # MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH
_AT_EMPTY_PATH = 0x1000
_CLONE_NEWNS = 0x20000
_MNT_DETACH = 2
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000
_ANYTHING = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC

_READ_ONLY = (ctypes.c_uint64 * 4)(1, 0, 0, 0)
"""struct mount_attr: set MOUNT_ATTR_RDONLY, clear nothing."""
_WRITABLE = (ctypes.c_uint64 * 4)(0, 1, 0, 0)
"""The other way round."""

Identity = tuple[int, int]
"""Device and inode."""

_OCTAL = re.compile(r"\\([0-7]{3})")
"""A blank and the like in /proc/PID/mountinfo."""

_libc = ctypes.CDLL(None, use_errno=True)


class Cover(NamedTuple):
    """One directory or file to be seen at a place of the container instead of what lies there.

    source: the host's. target: the place inside. over: what lies there now; with anything else
    there (a mount of the owner's, another cover) nothing is done. source_is: what the source must
    be, where an agent may have exchanged it. is_readonly: nothing inside can write to it.
    instead_of: a cover that is there, to be taken away first.
    """

    source: str
    target: str
    over: Identity
    source_is: Identity | None = None
    is_readonly: bool = False
    instead_of: Identity | None = None


def identity(path: str) -> Identity:
    """Of what lies at a path, a symlink being itself; (0, 0) for nothing."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return (0, 0)
    return (found.st_dev, found.st_ino)


def mount_points(init_pid: int) -> list[str]:
    """Where things are mounted in a container, covered or not. Raises OSError."""
    with open(f"/proc/{init_pid}/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        fields = (line.split(" ")[4] for line in file)
        return [_OCTAL.sub(lambda found: chr(int(found[1], 8)), point) for point in fields]


def upper_directories(init_pid: int) -> list[str]:
    """Where the host keeps what is written in a container. Raises OSError."""
    with open(f"/proc/{init_pid}/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        options = [text for line in file for text in line.rstrip("\n").split(" ")[-1].split(",")]
    found = [text.removeprefix("upperdir=") for text in options if text.startswith("upperdir=")]
    return [os.path.dirname(_OCTAL.sub(lambda one: chr(int(one[1], 8)), path)) for path in found]


def attach(init_pid: int, covers: Sequence[Cover]) -> list[Identity]:
    """Mount each where it is not yet, and say what is seen at each target then ((0, 0): nothing).

    Raises OSError when one could not be mounted.
    """
    return attached(init_pid, covers, attach_clones)


def attached(
    init_pid: int,
    covers: Sequence[Cover],
    attach_all: Callable[[Sequence[int], Sequence[Cover]], list[Identity]],
) -> list[Identity]:
    """What `attach_all` does in the container with clones of the sources. Raises OSError."""

    def work() -> bytes:
        namespaces.enter(user)
        clones = clone(covers)
        namespaces.enter(mounts)
        return json.dumps(attach_all(clones, covers)).encode()

    user = namespaces.podman_user_namespace(init_pid)
    try:
        mounts = os.open(f"/proc/{init_pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        try:
            answer = namespaces.run_in_child(work)
        finally:
            os.close(mounts)
    finally:
        os.close(user)
    return [(int(device), int(inode)) for device, inode in json.loads(answer)]


def clone(covers: Sequence[Cover]) -> list[int]:
    """Mounts of the sources, attached nowhere yet; this process is in podman's user namespace, and
    in a mount namespace of its own from now on. Raises OSError."""
    _check(_libc.unshare(_CLONE_NEWNS))
    _check(_libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None))
    return [_clone(cover) for cover in covers]


def attach_clones(clones: Sequence[int], covers: Sequence[Cover]) -> list[Identity]:
    """Attach them in the container whose mount namespace was entered. Raises OSError."""
    return [_attach(clone, cover) for clone, cover in zip(clones, covers, strict=True)]


@contextmanager
def writable_root() -> Iterator[None]:
    """For this process alone, in a container's mount namespace: `/` is its layer, without what is
    mounted below it, and writable where the container has it read-only. Raises OSError.
    """
    before = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    flags = _OPEN_TREE_CLONE | _AT_EMPTY_PATH | os.O_CLOEXEC
    root = _check(_libc.syscall(_OPEN_TREE, before, b"", flags))
    try:
        _set(root, _WRITABLE)
        os.fchdir(root)
        os.chroot(".")
        yield
    finally:
        os.fchdir(before)
        os.chroot(".")
        os.close(root)
        os.close(before)


@contextmanager
def writable(path: str) -> Iterator[None]:
    """Take the read-only flag from what is mounted at a path, for a moment in which nobody else
    runs in the container. Raises OSError."""
    mount = os.open(path, _ANYTHING)
    try:
        _set(mount, _WRITABLE)
        try:
            yield
        finally:
            _set(mount, _READ_ONLY)
    finally:
        os.close(mount)


def move_to(clone: int, path: str) -> None:
    """Attach a detached mount at a path, over whatever lies there. Raises OSError."""
    target = os.open(path, _ANYTHING)
    try:
        _check(_libc.syscall(_MOVE_MOUNT, clone, b"", target, b"", _EMPTY_PATHS))
    finally:
        os.close(target)


def _set(mount: int, attributes: ctypes.Array[ctypes.c_uint64]) -> None:
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    wanted = ctypes.byref(attributes)
    _check(_libc.syscall(_MOUNT_SETATTR, mount, b"", _AT_EMPTY_PATH, wanted, size))


def _clone(cover: Cover) -> int:
    fd = os.open(cover.source, _ANYTHING)
    try:
        found = os.fstat(fd)
        if stat.S_ISLNK(found.st_mode) or (found.st_dev, found.st_ino) != (
            cover.source_is or (found.st_dev, found.st_ino)
        ):
            raise OSError(errno.EAGAIN, f"{cover.source} was exchanged")
        flags = _OPEN_TREE_CLONE | _AT_EMPTY_PATH | os.O_CLOEXEC
        clone = _check(_libc.syscall(_OPEN_TREE, fd, b"", flags))
        if cover.is_readonly:
            _set(clone, _READ_ONLY)
        return clone
    finally:
        os.close(fd)


def _attach(clone: int, cover: Cover) -> Identity:
    """By descriptors: what an agent puts in the place meanwhile is not mounted over."""
    if cover.instead_of is not None:
        _detach(cover.target, cover.instead_of)
    try:
        target = os.open(cover.target, _ANYTHING)
    except OSError:
        return identity(cover.target)
    try:
        found = os.fstat(target)
        if (found.st_dev, found.st_ino) == cover.over:
            _check(_libc.syscall(_MOVE_MOUNT, clone, b"", target, b"", _EMPTY_PATHS))
    finally:
        os.close(target)
    return identity(cover.target)


def _detach(target: str, wanted: Identity) -> None:
    fd = os.open(target, _ANYTHING | os.O_DIRECTORY)
    try:
        found = os.fstat(fd)
        if (found.st_dev, found.st_ino) == wanted:
            os.fchdir(fd)
            _check(_libc.umount2(b".", _MNT_DETACH))
    finally:
        os.close(fd)


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(result)
