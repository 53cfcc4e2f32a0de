"""The refs of a git directory with loose and packed files: reading all, changing some."""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Callable, Iterable, Mapping

from cagewrap import beneath
from cagewrap.diskspace import is_full
from cagewrap.gitsync.names import VALUE_BYTES, is_oid, parse_value
from cagewrap.gitsync.side import Side, remove_empty

PACKED_BYTES = 256 << 20
"""A larger packed-refs is not read."""
REFS_LIMIT = 500_000
"""More refs than this are not carried."""
DEPTH_LIMIT = 64
"""Directories of refs that lie deeper are not looked into."""
BULK = 200
"""With more new refs than this they are written into packed-refs, not each into a file."""


class Refs:
    """All refs of one side at one time.

    values: name -> object id or `ref: NAME`. loose: which have a file of their own.
    directories: those below `refs` that were looked at. bad: files that are no refs, and
    directories that cannot be read.
    """

    def __init__(self, values: dict[str, str] | None = None) -> None:
        """Empty, unless it is said."""
        self.values: dict[str, str] = {} if values is None else values
        self.loose: set[str] = set()
        self.directories: list[str] = []
        self.bad: list[str] = []


class TooManyError(Exception):
    """More refs than are carried."""


def read_refs(side: Side, oid_length: int) -> Refs:
    """Every ref. Raises OSError when packed-refs cannot be read, TooManyError."""
    found = Refs()
    _read_below(side.fd, "refs", "refs", found, oid_length)
    _add_those_packed(found, side.read("packed-refs", PACKED_BYTES) or b"", oid_length)
    return found


def _add_those_packed(found: Refs, packed: bytes, oid_length: int) -> None:
    """After those with a file of their own: git packs a ref before it removes its file."""
    values = parse_packed(packed, oid_length)
    for name in found.bad:
        values.pop(name, None)
    found.values = values | found.values


def read_refs_below(side: Side, path: str, oid_length: int) -> Refs:
    """Those below `refs/…` alone, without reading all others."""
    found = Refs()
    try:
        fd = beneath.open_dir(side.fd, path.split("/"))
    except OSError:
        fd = -1
    if fd >= 0:
        _read_loose(fd, path, found, oid_length)
    prefix = f" {path}/".encode("utf-8", "surrogateescape")
    packed = side.read("packed-refs", PACKED_BYTES) or b""
    if prefix in packed:
        lines = [line for line in packed.split(b"\n") if prefix in line]
        _add_those_packed(found, b"\n".join(lines), oid_length)
    return found


def parse_packed(content: bytes, oid_length: int) -> dict[str, str]:
    """The refs in the text of a packed-refs file."""
    values: dict[str, str] = {}
    for line in content.decode("utf-8", "surrogateescape").split("\n"):
        oid, space, name = line.partition(" ")
        if space and is_oid(oid, oid_length):
            values[name] = oid
    if len(values) > REFS_LIMIT:
        raise TooManyError
    return values


def _read_below(fd: int, name: str, path: str, found: Refs, oid_length: int) -> None:
    """A directory that cannot be read is no empty one."""
    try:
        below = beneath.open_dir(fd, [name])
    except FileNotFoundError:
        return
    except OSError:
        found.bad.append(path)
        return
    _read_loose(below, path, found, oid_length)


def _read_loose(fd: int, path: str, found: Refs, oid_length: int) -> None:
    """Add what lies in one directory, whose descriptor is closed."""
    found.directories.append(path)
    if len(found.loose) > REFS_LIMIT:
        os.close(fd)
        raise TooManyError
    if path.count("/") > DEPTH_LIMIT:
        os.close(fd)
        found.bad.append(path)
        return
    try:
        with os.scandir(fd) as entries:
            listed = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for name, is_directory in listed:
            whole = f"{path}/{name}"
            if is_directory:
                _read_below(fd, name, whole, found, oid_length)
            elif not name.endswith(".lock") and not name.startswith(beneath.TEMPORARY_PREFIX):
                _read_one(fd, name, whole, found, oid_length)
    finally:
        os.close(fd)


def _read_one(fd: int, name: str, whole: str, found: Refs, oid_length: int) -> None:
    try:
        value = parse_value(beneath.read_regular(fd, name, VALUE_BYTES), oid_length)
    except FileNotFoundError:
        return  # gone meanwhile
    except OSError:
        value = None
    if value is None:
        found.bad.append(whole)
    else:
        found.values[whole] = value
        found.loose.add(whole)


def in_the_way(name: str, names: Iterable[str]) -> bool:
    """Whether a ref cannot be made because of another (`a` and `a/b`)."""
    return any(one.startswith(name + "/") or name.startswith(one + "/") for one in names)


def change_refs(
    side: Side, refs: Refs, changes: Mapping[str, str | None], oid_length: int
) -> dict[str, str]:
    """Set (or with None delete) refs whose values are still those of `refs`.

    Returns why a ref was not changed, by its name: "busy", "changed", "full", or the system's text.
    """
    failed: dict[str, str] = {}
    gone = [name for name, value in changes.items() if value is None]
    if gone:
        _delete(side, refs, gone, oid_length, failed)
    made = {name: value for name, value in changes.items() if value is not None}
    bulk = {n: v for n, v in made.items() if n not in refs.values and not v.startswith("ref:")}
    if len(bulk) > BULK:
        _add_packed(side, bulk, failed, oid_length)
        made = {name: value for name, value in made.items() if name not in bulk}
    for name, value in made.items():
        set_it = functools.partial(_set, side, refs, name, value, oid_length)
        _guarded(failed, name, set_it)
    return failed


def _guarded(failed: dict[str, str], name: str, change: Callable[[], str]) -> None:
    try:
        why = change()
    except OSError as error:
        why = _why(error)
    if why:
        failed[name] = why


def _why(error: OSError) -> str:
    if error.errno == errno.EBUSY:
        return "busy"
    return "full" if is_full(error) else str(error.strerror or error)


def _set(side: Side, refs: Refs, name: str, value: str, oid_length: int) -> str:
    with side.locked(name) as lock:
        if current_ref(side, name, oid_length) != refs.values.get(name):
            return "changed"
        lock.write((value + "\n").encode("utf-8", "surrogateescape"))
    return ""


def current_ref(side: Side, name: str, oid_length: int) -> str | None:
    """What a ref is now; None for none. Raises OSError."""
    try:
        loose = side.read(name, VALUE_BYTES)
    except IsADirectoryError:
        loose = None
    except OSError:
        if not _is_directory(side, name):
            raise
        loose = None
    if loose is not None:
        return parse_value(loose, oid_length)
    packed = side.read("packed-refs", PACKED_BYTES) or b""
    return _find_packed(packed, name, oid_length)


def _is_directory(side: Side, path: str) -> bool:
    try:
        os.close(beneath.open_dir(side.fd, path.split("/")))
    except OSError:
        return False
    return True


def _find_packed(packed: bytes, name: str, oid_length: int) -> str | None:
    at = packed.find(b" " + name.encode("utf-8", "surrogateescape") + b"\n")
    if at < 0:
        return None
    oid = packed[packed.rfind(b"\n", 0, at) + 1 : at].decode("utf-8", "surrogateescape")
    return oid if is_oid(oid, oid_length) else None


def _delete(
    side: Side, refs: Refs, gone: list[str], oid_length: int, failed: dict[str, str]
) -> None:
    """As git does it: out of packed-refs first, or the older value there would come back."""
    wanted = set(gone)
    for name in gone:
        if current_ref(side, name, oid_length) != refs.values.get(name):
            failed[name] = "changed"
            wanted.discard(name)
    try:
        _drop_packed(side, wanted)
    except OSError as error:
        failed.update(dict.fromkeys(wanted, _why(error)))
        return
    for name in wanted:
        _guarded(failed, name, functools.partial(_unlink, side, name))


def _unlink(side: Side, name: str) -> str:
    if side.stamp(name) is not None:
        with side.locked(name) as lock:
            lock.remove()
    drop_empty(side, name)
    return ""


def drop_empty(side: Side, name: str) -> None:
    """Remove the directories above a ref that became empty; `refs/heads` and the like stay."""
    parts = name.split("/")[:-1]
    while len(parts) > 2:
        try:
            with side.parent("/".join(parts)) as (fd, last):
                remove_empty(fd, last)
        except OSError:
            return
        parts.pop()


def _drop_packed(side: Side, names: set[str]) -> None:
    """Take refs out of packed-refs, with the lines about what they peel to."""
    content = side.read("packed-refs", PACKED_BYTES)
    encoded = {name.encode("utf-8", "surrogateescape") for name in names}
    if not content or not any(b" " + name + b"\n" in content for name in encoded):
        return
    with side.locked("packed-refs") as lock:
        kept: list[bytes] = []
        is_dropping = False
        for line in (side.read("packed-refs", PACKED_BYTES) or b"").splitlines(keepends=True):
            if not line.startswith(b"^"):
                is_dropping = line.rstrip(b"\n").partition(b" ")[2] in encoded
            if not is_dropping:
                kept.append(line)
        lock.write(b"".join(kept))


def _add_packed(
    side: Side, added: Mapping[str, str], failed: dict[str, str], oid_length: int
) -> None:
    """Write many new refs at once. What they peel to is not known, so it is not promised."""
    try:
        with side.locked("packed-refs") as lock:
            values = parse_packed(side.read("packed-refs", PACKED_BYTES) or b"", oid_length)
            values.update({name: oid for name, oid in added.items() if name not in values})
            lines = [f"{values[name]} {name}\n" for name in sorted(values, key=_bytes)]
            text = "# pack-refs with: sorted \n" + "".join(lines)
            lock.write(_bytes(text))
    except OSError as error:
        failed.update(dict.fromkeys(added, _why(error)))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
