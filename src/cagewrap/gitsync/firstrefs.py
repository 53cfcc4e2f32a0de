"""The refs of a copy that is filled: in one file, where the host has thousands."""

from __future__ import annotations

import contextlib

from cagewrap.gitsync.names import is_carried_to_cage, is_oid
from cagewrap.gitsync.refs import TooManyError, read_refs
from cagewrap.gitsync.side import Side

FEW = 200
"""So many loose refs are written into a file each, as the host has them."""


def fill_refs(host: Side, cage: Side) -> None:
    """Write the host's loose refs into the copy, where packed-refs is already. Raises OSError."""
    oid_length = 64 if _is_sha256(host) else 40
    try:
        refs = read_refs(host, oid_length)
    except TooManyError:
        return
    for path in ("refs/heads/x", "refs/tags/x"):
        with cage.parent(path, make=True):
            pass
    values = {name: value for name, value in refs.values.items() if is_carried_to_cage(name)}
    loose = {name for name in refs.loose if name in values}
    if len(loose) > FEW:
        packed = {name: value for name, value in values.items() if is_oid(value, oid_length)}
        lines = [f"{packed[name]} {name}\n" for name in sorted(packed, key=_bytes)]
        cage.write("packed-refs", _bytes("# pack-refs with: sorted \n" + "".join(lines)))
        loose -= packed.keys()
    for name in loose:
        with contextlib.suppress(OSError):
            cage.write(name, _bytes(values[name] + "\n"))


def _is_sha256(host: Side) -> bool:
    """Whether the ids are of that kind, by the length of one."""
    with contextlib.suppress(OSError):
        config = host.read("config", 1 << 20) or b""
        return b"sha256" in config.lower()
    return False


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
