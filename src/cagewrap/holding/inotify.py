"""inotify(7): being told what happens in directories."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

MODIFY, ATTRIB, CLOSE_WRITE = 0x2, 0x4, 0x8
MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x40, 0x80, 0x100, 0x200
OVERFLOW, IGNORED, ISDIR = 0x4000, 0x8000, 0x40000000
_ONLYDIR, _EXCL_UNLINK = 0x01000000, 0x04000000
_HEADER = struct.Struct("iIII")
_BUFFER_BYTES = 65536
_MOST = 16

_libc = ctypes.CDLL(None, use_errno=True)


class Event(NamedTuple):
    """watch: what `add` returned. name: in the directory."""

    watch: int
    mask: int
    name: bytes


def open_queue() -> int:
    """A descriptor to read events from; does not wait. Raises OSError."""
    return _check(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))


def add(queue: int, directory: int, mask: int) -> int:
    """Watch the directory behind a descriptor. Raises OSError: ENOSPC when the owner may have no
    more watches (fs.inotify.max_user_watches)."""
    path = f"/proc/self/fd/{directory}".encode()
    return _check(_libc.inotify_add_watch(queue, path, mask | _ONLYDIR | _EXCL_UNLINK))


def open_on(directory: int, mask: int) -> int:
    """A queue of what happens in the directory behind a descriptor alone. Raises OSError."""
    queue = open_queue()
    try:
        add(queue, directory, mask)
    except OSError:
        os.close(queue)
        raise
    return queue


def read(queue: int) -> Iterator[Event]:
    """What has happened."""
    data = b""
    with contextlib.suppress(BlockingIOError):
        while len(data) < _MOST * _BUFFER_BYTES:
            chunk = os.read(queue, _BUFFER_BYTES)
            if not chunk:
                break
            data += chunk
    at = 0
    while at + _HEADER.size <= len(data):
        watch, mask, _, length = _HEADER.unpack_from(data, at)
        begin = at + _HEADER.size
        yield Event(watch, mask, data[begin : begin + length].rstrip(b"\0"))
        at = begin + length


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(result)
