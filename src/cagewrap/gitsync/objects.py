"""Carrying objects, for a repository that the agent made where there was none.

Elsewhere both sides share the directory. An object is a file named after its content; git checks
what it reads, and nothing in it is run.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable

from cagewrap import beneath
from cagewrap.gitsync.fill import copy_file
from cagewrap.gitsync.side import Side

_FAN = re.compile(r"[0-9a-f]{2}")
_LOOSE = re.compile(r"[0-9a-f]{38}(?:[0-9a-f]{24})?")
_PACK = re.compile(r"pack-[0-9a-f]{40}(?:[0-9a-f]{24})?\.(?:pack|rev|idx|bitmap|promisor|keep)")
_ORDER = (".pack", ".rev", ".bitmap", ".promisor", ".keep", ".idx")
"""A pack is there for git once its .idx is."""


def carry_objects(source: Side, target: Side) -> bool:
    """Copy what the other side lacks; whether there was anything. Raises OSError."""
    has_copied = False
    objects = beneath.open_dir(source.fd, ["objects"])
    try:
        for name in sorted(os.listdir(objects)):
            if _FAN.fullmatch(name):
                has_copied |= _carry(objects, target, name, _LOOSE)
            elif name == "pack":
                has_copied |= _carry(objects, target, name, _PACK)
    finally:
        os.close(objects)
    return has_copied


def _carry(objects: int, target: Side, name: str, shape: re.Pattern[str]) -> bool:
    try:
        source_fd = beneath.open_dir(objects, [name])
    except OSError:
        return False
    try:
        names = {one for one in os.listdir(source_fd) if shape.fullmatch(one)}
        with target.parent(f"objects/{name}/x", make=True) as (target_fd, _):
            missing = names.difference(os.listdir(target_fd))
            for one in _ordered(missing):
                with contextlib.suppress(OSError):  # no regular file: no object
                    copy_file(source_fd, target_fd, one)
        return bool(missing)
    finally:
        os.close(source_fd)


def _ordered(names: Iterable[str]) -> list[str]:
    return sorted(
        names, key=lambda name: (_ORDER.index(os.path.splitext(name)[1] or ".pack"), name)
    )
