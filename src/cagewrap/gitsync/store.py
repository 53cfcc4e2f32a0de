"""Whether a repository of the host's has an object. Formats: gitformat-pack(5)."""

from __future__ import annotations

import contextlib
import mmap
import os
import struct

from cagewrap import beneath
from cagewrap.gitsync.side import Side

_MAGIC = b"\xfftOc\0\0\0\x02"
_FANOUT = 8
_TABLE = _FANOUT + 256 * 4


class Store:
    """The objects of a repository at one time; packs that come later are looked for again."""

    def __init__(self, host: Side) -> None:
        """Opens nothing yet."""
        self._host = host
        self._indexes: dict[str, mmap.mmap] = {}

    @property
    def borrows(self) -> bool:
        """Whether it has objects elsewhere, which are not looked at."""
        return self._host.stamp("objects/info/alternates") is not None

    def has(self, oid: str) -> bool:
        """Whether the object is there."""
        if self._host.stamp(f"objects/{oid[:2]}/{oid[2:]}") is not None:
            return True
        if self._is_packed(oid):
            return True
        self._open()
        return self._is_packed(oid) or self.borrows

    def close(self) -> None:
        """Let go of the indexes."""
        for index in self._indexes.values():
            index.close()
        self._indexes.clear()

    def _open(self) -> None:
        try:
            fd = beneath.open_dir(self._host.fd, ["objects", "pack"])
        except OSError:
            return
        try:
            for name in os.listdir(fd):
                if name.endswith(".idx") and name not in self._indexes:
                    with contextlib.suppress(OSError, ValueError):
                        self._open_one(fd, name)
        finally:
            os.close(fd)

    def _open_one(self, fd: int, name: str) -> None:
        file = beneath.open_regular(fd, name)
        try:
            found = mmap.mmap(file, 0, access=mmap.ACCESS_READ)
        finally:
            os.close(file)
        if found[:8] == _MAGIC and len(found) > _TABLE:
            self._indexes[name] = found
        else:
            found.close()

    def _is_packed(self, oid: str) -> bool:
        wanted = bytes.fromhex(oid)
        return any(_find(index, wanted) for index in self._indexes.values())


def _find(index: mmap.mmap, wanted: bytes) -> bool:
    """Search the sorted table of ids of a pack's index."""
    first = wanted[0]
    low = struct.unpack_from(">I", index, _FANOUT + (first - 1) * 4)[0] if first else 0
    high = struct.unpack_from(">I", index, _FANOUT + first * 4)[0]
    size = len(wanted)
    while low < high:
        middle = (low + high) // 2
        at = _TABLE + middle * size
        found = index[at : at + size]
        if found == wanted:
            return True
        if found < wanted:
            low = middle + 1
        else:
            high = middle
    return False
