"""Bringing an agent's objects into the host's repository: each is checked to be what it is named.

The cage borrows the host's objects, read-only, and writes its own into its private copy. From
there they are moved: what the host has, the cage sees.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
import zlib
from collections.abc import Callable

from cagewrap import beneath
from cagewrap.digests import sha1, sha256
from cagewrap.gitsync.side import Side

BORROWED = "cagewrap/objects"
"""Where in a private copy the host's objects are seen."""
ALTERNATES = b"../cagewrap/objects\n"
"""The same, from the copy's own objects: relative, so that it holds at any path."""

_FAN = re.compile(r"[0-9a-f]{2}")
_LOOSE = re.compile(r"[0-9a-f]{38}(?:[0-9a-f]{24})?")
_PACK = re.compile(r"pack-[0-9a-f]{40}(?:[0-9a-f]{24})?")
_HEADER = re.compile(rb"(?:blob|tree|commit|tag) (0|[1-9][0-9]{0,18})")
PACK_BYTES = 32 << 30
"""A larger pack is not brought."""
OBJECT_BYTES = 8 << 30
"""Nor is a loose object that is larger when it is unpacked."""
_PACK_BEGINS = (b"PACK\0\0\0\2", b"PACK\0\0\0\3")
_CHUNK = 1 << 20
_YOUNG_S = 10.0
_HEADER_BYTES = 64
_PATH_BYTES = 1 << 14

IndexPack = Callable[[str, bool], bool]
"""Checks every object of a pack of that path and makes its index beside it; whether it is sound.
Second: whether ids are SHA-256."""


class UnsoundError(Exception):
    """An object that is not what its name says."""


def name_borrowed(cage: Side, seen_at: str) -> bool:
    """Tell the copy's git where the host's objects are; whether it knew. seen_at: where the cage
    has the copy: git-lfs takes a relative path for one of where it was called."""
    wanted = ALTERNATES
    if seen_at.startswith("/") and "\n" not in seen_at:
        wanted = os.fsencode(f"{seen_at}/{BORROWED}\n")
    try:
        known = cage.read("objects/info/alternates", _PATH_BYTES)
    except OSError:
        known = None
    if known != wanted:
        cage.write("objects/info/alternates", wanted)
    return known in (wanted, ALTERNATES)


def bring_objects(
    cage: Side, host: Side, host_path: str, index_pack: IndexPack, *, keep: bool = False
) -> int:
    """Move the cage's own objects to the host; how many files. keep: leave them there too.

    What is no object is left alone. Raises OSError when the host's side cannot be written.
    """
    try:
        objects = beneath.open_dir(cage.fd, ["objects"])
    except OSError:
        return 0
    count = 0
    try:
        for name in os.listdir(objects):
            if _FAN.fullmatch(name):
                count += _bring_loose(objects, name, host, keep=keep)
            elif name == "pack":
                count += _bring_packs(objects, host, host_path, index_pack, keep=keep)
    finally:
        os.close(objects)
    return count


def _bring_loose(objects: int, fan: str, host: Side, *, keep: bool) -> int:
    try:
        source = beneath.open_dir(objects, [fan])
    except OSError:
        return 0
    count = 0
    try:
        names = [name for name in os.listdir(source) if _LOOSE.fullmatch(name)]
        if not names:
            # git makes such a directory, and then a file in it: not to be removed in between.
            if not keep and os.fstat(source).st_mtime < time.time() - _YOUNG_S:
                with contextlib.suppress(OSError):
                    os.rmdir(fan, dir_fd=objects)
            return 0
        with host.parent(f"objects/{fan}/x", make=True) as (target, _):
            there = set(os.listdir(target))
            for name in names:
                if name not in there:
                    try:
                        _bring_one(source, target, fan, name, host.mark)
                    except (UnsoundError, zlib.error):
                        continue
                    count += 1
                if not keep:
                    with contextlib.suppress(OSError):
                        os.unlink(name, dir_fd=source)
    finally:
        os.close(source)
    return count


def _bring_one(source: int, target: int, fan: str, name: str, mark: str) -> None:
    """Copy an object while it is unpacked and hashed; it gets its name only if that is right."""
    try:
        fd = beneath.open_regular(source, name)
    except OSError as error:
        raise UnsoundError from error
    temporary = f"tmp_obj_{mark}{os.urandom(6).hex()}"  # git removes old ones of such names
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(fd, "rb", buffering=0) as file:
            out = os.open(temporary, flags, 0o444, dir_fd=target)
            try:
                with open(out, "wb", buffering=0) as copy:
                    _copy_checked(file, copy, fan + name)
                os.rename(temporary, name, src_dir_fd=target, dst_dir_fd=target)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=target)
                raise
    except OSError as error:
        if error.filename is None and error.errno in (5, 22):  # reading what an agent wrote
            raise UnsoundError from error
        raise


def _copy_checked(file: object, copy: object, oid: str) -> None:
    read, write = file.read, copy.write  # type: ignore[attr-defined]
    digest = sha1(usedforsecurity=False) if len(oid) == 40 else sha256()
    unpack = zlib.decompressobj()
    header, size, most, is_begun = b"", 0, _HEADER_BYTES + _CHUNK, False
    while True:
        chunk = read(_CHUNK)
        if not chunk:
            break
        rest = memoryview(chunk)
        while rest:
            rest = rest[write(rest) :]
        pending = chunk
        while pending and not unpack.eof:
            data = unpack.decompress(pending, _CHUNK)
            pending = unpack.unconsumed_tail
            digest.update(data)
            if not is_begun:
                header += data[:_HEADER_BYTES]
                is_begun = b"\0" in header or len(header) >= _HEADER_BYTES
                most = _size_of(header) if is_begun else most
            size += len(data)
            if size > most:
                raise UnsoundError
        if unpack.eof and pending:
            raise UnsoundError
    if not (is_begun and unpack.eof and not unpack.unused_data):
        raise UnsoundError
    if size != most or digest.hexdigest() != oid:
        raise UnsoundError


def _size_of(header: bytes) -> int:
    """What an object that begins so has unpacked, with its header."""
    text, nul, _ = header.partition(b"\0")
    found = _HEADER.fullmatch(text)
    if not found or not nul or int(found.group(1)) > OBJECT_BYTES:
        raise UnsoundError
    return int(found.group(1)) + len(text) + 1


def _bring_packs(
    objects: int, host: Side, host_path: str, index_pack: IndexPack, *, keep: bool
) -> int:
    try:
        source = beneath.open_dir(objects, ["pack"])
    except OSError:
        return 0
    count = 0
    try:
        names = set(os.listdir(source))
        for name in sorted(names):
            base, dot, end = name.rpartition(".")
            if end != "idx" or not dot or not _PACK.fullmatch(base) or f"{base}.pack" not in names:
                continue
            with host.parent("objects/pack/x", make=True) as (target, _):
                if not _exists(target, name):
                    temporary = f"tmp_pack_{host.mark}{os.urandom(6).hex()}"
                    path = os.path.join(host_path, "objects", "pack", temporary)
                    if not _bring_pack(source, target, base, path, index_pack):
                        continue
                    count += 1
            if not keep and f"{base}.keep" not in names:
                _forget_pack(source, base, names)
    finally:
        os.close(source)
    return count


def _forget_pack(source: int, base: str, names: set[str]) -> None:
    """The index goes last but one: git looks for packs by it."""
    for end in ("idx", "bitmap", "rev", "promisor", "mtimes", "pack"):
        if f"{base}.{end}" in names:
            with contextlib.suppress(OSError):
                os.unlink(f"{base}.{end}", dir_fd=source)


def _bring_pack(source: int, target: int, base: str, path: str, index_pack: IndexPack) -> bool:
    """Copy a pack, let the host's git check all that is in it and index it anew.

    path: of the copy until then, without an ending; in the directory `target`.
    """
    try:
        fd = beneath.open_regular(source, f"{base}.pack")
    except OSError:
        return False
    temporary = os.path.basename(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        if os.fstat(fd).st_size > PACK_BYTES or os.pread(fd, 8, 0) not in _PACK_BEGINS:
            return False
        out = os.open(f"{temporary}.pack", flags, 0o444, dir_fd=target)
        try:
            beneath.copy_content(fd, out, PACK_BYTES)
        finally:
            os.close(out)
        is_sound = index_pack(f"{path}.pack", len(base) > 45)
        if is_sound:
            for end in ("pack", "rev", "idx"):
                with contextlib.suppress(FileNotFoundError):
                    os.rename(
                        f"{temporary}.{end}", f"{base}.{end}", src_dir_fd=target, dst_dir_fd=target
                    )
        return is_sound
    finally:
        os.close(fd)
        for end in ("pack", "idx", "rev"):
            with contextlib.suppress(OSError):
                os.unlink(f"{temporary}.{end}", dir_fd=target)


def _exists(fd: int, name: str) -> bool:
    try:
        return stat.S_ISREG(beneath.stat_at(fd, name).st_mode)
    except OSError:
        return False


def lend_objects(host: Side, cage: Side, copy_file: Callable[[int, int, str], None]) -> int:
    """Copy the host's objects that a cage lacks which cannot borrow them; how many files."""
    count = 0
    for name in ("pack", *(f"{number:02x}" for number in range(256))):
        try:
            source = beneath.open_dir(host.fd, ["objects", name])
        except OSError:
            continue
        try:
            shape = _PACK if name == "pack" else _LOOSE
            names = [one for one in os.listdir(source) if shape.match(one)]
            with cage.parent(f"objects/{name}/x", make=True) as (target, _):
                missing = set(names).difference(os.listdir(target))
                for one in sorted(missing, key=lambda one: (one.endswith(".idx"), one)):
                    with contextlib.suppress(FileNotFoundError):
                        copy_file(source, target, one)
                        count += 1
        finally:
            os.close(source)
    return count
