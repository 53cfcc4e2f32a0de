"""git's index: what it says, and a clean one made of it. Pure.

Format: gitformat-index(5). Of an agent's index only the entries are kept: every extension is a
cache that git would trust (which files are unchanged, what the trees are, where entries begin).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from cagewrap.digests import sha1, sha256

INDEX_BYTES = 256 << 20
"""A larger index is not carried."""

_SECONDS, _MTIME = struct.Struct(">I"), 8
_HEADER = struct.Struct(">4sII")
_FIXED = 40
"""Bytes of an entry before its object id; mode at 24, uid at 28, gid at 32."""
_GITLINK = b"\0\0\xe0\0"
_LENGTH = 0xFFF
_ASSUME_VALID = 0x8000
_EXTENDED = 0x4000
_SKIP_WORKTREE = 0x40
"""In the first byte of the extended flags: the file need not be there."""
_STAGE = 0x3000
_FOREIGN_PATHS = (b".git", b".", b"..", b"", b"git~1")


class IndexRefusedError(Exception):
    """An index that is not carried; the text says why."""


class Entry(NamedTuple):
    """Where an entry lies in the file (`begin` to `end`), its flags and path. There may be many
    thousands: it is not one of the slow kinds of values."""

    begin: int
    end: int
    flags: int
    path: bytes


def has_gitlinks(content: bytes) -> bool:
    """False if there is certainly no submodule among the entries. Fast."""
    return _GITLINK in content


def gitlinks(content: bytes, oid_bytes: int) -> set[bytes]:
    """The paths of submodules; of a split index, those in this part. Raises IndexRefusedError."""
    if not has_gitlinks(content):
        return set()
    found = entries(content, oid_bytes, is_split=True)
    return {e.path for e in found if e.path and _is_gitlink(content, e)}


def shared_part(content: bytes, oid_bytes: int) -> str:
    """The name of the file with the rest of a split index, "" if it is none. It may be wrong in
    a text that has the word in it: there is no such file then."""
    at = content.rfind(b"link")
    oid = content[at + 8 : at + 8 + oid_bytes]
    return f"sharedindex.{oid.hex()}" if at >= 0 and any(oid) else ""


def digest(content: bytes, oid_bytes: int) -> str:
    """Equal for two indexes that say the same, however fresh what they know of the files is."""
    if not content:
        return ""
    said: list[bytes] = []
    for at, _, flags, path in entries(content, oid_bytes):
        oid_end = at + _FIXED + oid_bytes
        said += (content[at + 24 : at + 28], content[at + _FIXED : oid_end], path)
        if flags & ~_LENGTH:
            said.append(b"\0%d" % (flags & ~_LENGTH))
        if flags & _EXTENDED:
            said.append(content[oid_end + 2 : oid_end + 4])
        said.append(b"\0")
    return sha1(b"".join(said), usedforsecurity=False).hexdigest()


class Clean(NamedTuple):
    """A clean index, the submodules that were left out of it, and whether it says all that the
    agent's said."""

    content: bytes
    left_out: tuple[bytes, ...]
    is_all: bool


def clean(content: bytes, oid_bytes: int, host: bytes, host_written_s: int) -> Clean:
    """An agent's index with its entries alone, checked, for the host whose index is `host`.

    Submodules that the host's has not are left out. What an index knows of files (sizes, times,
    owners, which need not be looked at) is the host's own where the entry is the same, and nothing
    where it is new: git looks. Nor is anything known of a file of the second in which the host's
    index was written, or later: what changed in it then has the same times, and a newer index says
    that it was looked at ("racy git"). Raises IndexRefusedError.
    """
    found = list(entries(content, oid_bytes))
    _check_paths(found)
    end = found[-1].end if found else _HEADER.size
    _check_extensions(content, end, oid_bytes)
    _, version, _ = _HEADER.unpack_from(content)
    known = {(e[3], e[2] & _STAGE): e for e in entries(host, oid_bytes)} if host else {}
    body = bytearray(content[:end])
    left_out: list[Entry] = []
    is_all = True
    for entry in found:
        there = known.get((entry[3], entry[2] & _STAGE))
        at = entry[0]
        if content[at + 24 : at + 28] == _GITLINK and not (there and _is_gitlink(host, there)):
            left_out.append(entry)
        is_all &= _set_knowledge(body, entry, host, there, oid_bytes, host_written_s)
    if left_out and version == 4:
        names = b", ".join(e.path for e in left_out).decode(errors="replace")
        raise IndexRefusedError(f"it has new submodules ({names}), in a format with shared names")
    for entry in reversed(left_out):
        del body[entry.begin : entry.end]
    struct.pack_into(">I", body, 8, len(found) - len(left_out))
    names_left_out = tuple(e.path for e in left_out)
    return Clean(_sealed(bytes(body), oid_bytes), names_left_out, is_all and not left_out)


def _set_knowledge(
    body: bytearray,
    entry: Entry,
    host: bytes,
    there: Entry | None,
    oid_bytes: int,
    host_written_s: int,
) -> bool:
    """Times, device and inode; owner and size; the flags that say not to look. Whether the flags
    were as they are to be."""
    at, _, flags, _ = entry
    flags_at = at + _FIXED + oid_bytes
    trusted = skipped = 0
    begin = -1 if there is None else there[0]
    if (
        there is not None
        and body[at + 24 : at + 28] == host[begin + 24 : begin + 28]
        and body[at + _FIXED : flags_at] == host[begin + _FIXED : begin + _FIXED + oid_bytes]
    ):
        is_racy = _SECONDS.unpack_from(host, begin + _MTIME)[0] >= host_written_s
        body[at : at + 24] = bytes(24) if is_racy else host[begin : begin + 24]
        body[at + 28 : at + 40] = bytes(12) if is_racy else host[begin + 28 : begin + 40]
        trusted = there[2] & _ASSUME_VALID
        if there[2] & _EXTENDED:
            skipped = host[begin + _FIXED + oid_bytes + 2] & _SKIP_WORKTREE
    else:
        body[at : at + 24] = bytes(24)
        body[at + 28 : at + 40] = bytes(12)
    is_right = flags & _ASSUME_VALID == trusted
    if not is_right:
        body[flags_at] = body[flags_at] & 0x7F | trusted >> 8
    if flags & _EXTENDED and body[flags_at + 2] & _SKIP_WORKTREE != skipped:
        body[flags_at + 2] = body[flags_at + 2] & ~_SKIP_WORKTREE & 0xFF | skipped
        return False
    return is_right


def with_owner(content: bytes, oid_bytes: int, was: tuple[int, int], now: tuple[int, int]) -> bytes:
    """The host's index with another owner of its files, as they look from inside. All that it
    holds beside entries is kept. Raises IndexRefusedError."""
    body = bytearray(content[:-(oid_bytes)])
    _change_owner(body, list(entries(content, oid_bytes)), was, now)
    return _sealed(bytes(body), oid_bytes)


def _change_owner(
    body: bytearray, found: list[Entry], was: tuple[int, int], now: tuple[int, int]
) -> None:
    old, new = struct.pack(">II", *was), struct.pack(">II", *now)
    if old == new:
        return
    for entry in found:
        at = entry.begin + 28
        if body[at : at + 8] == old:
            body[at : at + 8] = new


def _sealed(body: bytes, oid_bytes: int) -> bytes:
    kind = sha1 if oid_bytes == 20 else sha256
    return body + kind(body).digest()


def entries(  # noqa: C901 - one loop, for speed
    content: bytes, oid_bytes: int, *, is_split: bool = False
) -> Iterator[Entry]:
    """Every entry. is_split: some have no path, since they take the place of one in the shared
    part. Raises IndexRefusedError."""
    try:
        magic, version, count = _HEADER.unpack_from(content)
    except struct.error as error:
        raise IndexRefusedError("it is cut short") from error
    if magic != b"DIRC" or version not in (2, 3, 4):
        raise IndexRefusedError("it has an unknown format")
    last = len(content) - oid_bytes
    at, previous, previous_stage = _HEADER.size, b"", 0
    make = Entry._make
    for number in range(count):
        name_at = at + _FIXED + oid_bytes + 2
        if name_at > last:
            raise IndexRefusedError("it is cut short")
        flags = content[name_at - 2] << 8 | content[name_at - 1]
        if flags & _EXTENDED:
            if version == 2:
                raise IndexRefusedError("an entry has flags of a later format")
            name_at += 2
        kept = previous
        if version == 4:
            strip, name_at = _varint(content, name_at)
            if strip > len(previous):
                raise IndexRefusedError("a path is cut short")
            kept = previous[: len(previous) - strip]
        nul = content.find(b"\0", name_at, last)
        if nul < 0:
            raise IndexRefusedError("it is cut short")
        path = content[name_at:nul]
        end = nul + 1
        if version == 4:
            path = kept + path
        else:
            end = at + ((nul - at + 8) & ~7)
        stage = flags & _STAGE
        if number and not is_split and (path, stage) <= (previous, previous_stage):
            raise IndexRefusedError("its entries are not in order")
        yield make((at, end, flags, path))
        at, previous, previous_stage = end, path, stage


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """git's offset encoding (decode_varint): the number, and where it ends."""
    try:
        byte = content[at]
        value = byte & 127
        while byte & 128:
            at += 1
            byte = content[at]
            value = ((value + 1) << 7) | (byte & 127)
            if value > 1 << 32:
                raise IndexRefusedError("a number is too large")
    except IndexError as error:
        raise IndexRefusedError("it is cut short") from error
    return value, at + 1


def _check_paths(found: list[Entry]) -> None:
    """git does not look at the paths of an index that it reads, and would write to them."""
    text = b"\0" + b"\0".join(entry.path for entry in found).lower() + b"\0"
    if not found:
        return
    for name in _FOREIGN_PATHS:
        for before in (b"\0", b"/"):
            for after in (b"\0", b"/"):
                if before + name + after in text:
                    raise IndexRefusedError(f"it has the path {name!r} in it")


def _check_extensions(content: bytes, at: int, oid_bytes: int) -> None:
    """An extension in small letters changes what the entries mean."""
    last = len(content) - oid_bytes
    while at + 8 <= last:
        name, size = struct.unpack_from(">4sI", content, at)
        if not name[:1].isupper():
            what = {b"link": "it is split", b"sdir": "it is sparse"}.get(name, "it is extended")
            raise IndexRefusedError(f"{what} ({name!r})")
        at += 8 + size


def _is_gitlink(content: bytes, entry: Entry) -> bool:
    return content[entry.begin + 24 : entry.begin + 28] == _GITLINK
