"""Being told at once what an agent does in the root of the project (inotify(7))."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Callable, Collection, Iterator

from cagewrap.keeper.loop import Loop

_MODIFY, _ATTRIB, _CLOSE_WRITE, _MOVED_TO, _CREATE = 0x2, 0x4, 0x8, 0x80, 0x100
_ONLYDIR = 0x01000000
_HEADER = struct.Struct("iIII")
_BUFFER_BYTES = 65536
_ISDIR = 0x40000000
_DONE = _CLOSE_WRITE | _MOVED_TO | _ATTRIB | _ISDIR
"""Something is there as its writer wants it."""
_WRITING_S = 0.05
"""So long a file may be open for writing before it is looked at: git writes what it brings back
in steps, and only the whole of it is known."""
_PAUSE_S = 0.01
"""After something happened, the next is looked at so much later: an agent may write for ever."""

_libc = ctypes.CDLL(None, use_errno=True)


class RootWatch:
    """Calls back when something with one of the names is made or written in a directory.

    Without inotify (too many watches on this machine) it never does: whoever needs to know looks
    from time to time as well.
    """

    def __init__(self, loop: Loop, root: int, changed: Callable[[], None]) -> None:
        """root: a descriptor of the directory."""
        self.names: Collection[bytes] = ()
        self._loop, self._root, self._changed = loop, root, changed
        self._fd = -1
        self._is_due = False

    def start(self) -> None:
        """Begin, if it has not begun."""
        if self._fd >= 0:
            return
        fd = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if fd < 0:
            return
        path = f"/proc/self/fd/{self._root}".encode()
        mask = _MODIFY | _ATTRIB | _CLOSE_WRITE | _MOVED_TO | _CREATE | _ONLYDIR
        if _libc.inotify_add_watch(fd, path, mask) < 0:
            os.close(fd)
            return
        self._fd = fd
        self._loop.watch(fd, 1, self._told)

    def stop(self) -> None:
        """No agent works any more."""
        if self._fd >= 0:
            self._loop.unwatch(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _told(self, _mask: int) -> None:
        fd = self._fd
        self._loop.unwatch(fd)
        try:
            masks = [mask for name, mask in _events(_drain(fd)) if name in self.names]
            if any(mask & _DONE for mask in masks):
                self._changed()
            elif masks and not self._is_due:
                self._is_due = True
                self._loop.later(_WRITING_S, self._due)
        finally:
            self._loop.later(_PAUSE_S, lambda: self._go_on(fd))

    def _due(self) -> None:
        self._is_due = False
        if self._fd >= 0:
            self._changed()

    def _go_on(self, fd: int) -> None:
        if self._fd == fd:
            self._loop.watch(fd, 1, self._told)


def _drain(fd: int) -> bytes:
    data = b""
    with contextlib.suppress(BlockingIOError):
        while len(data) < 16 * _BUFFER_BYTES:
            chunk = os.read(fd, _BUFFER_BYTES)
            if not chunk:
                break
            data += chunk
    return data


def _events(data: bytes) -> Iterator[tuple[bytes, int]]:
    """The names and masks in a buffer of events."""
    at = 0
    while at + _HEADER.size <= len(data):
        _, mask, _, length = _HEADER.unpack_from(data, at)
        begin = at + _HEADER.size
        yield data[begin : begin + length].rstrip(b"\0"), mask
        at = begin + length
