"""What a keeper leaves to the other build of cagewrap that it goes on as.

It is the same process: its pid, its children, its locks and the descriptors it keeps open stay. All
else it knew travels in a document in memory. Builds of other versions read it: what one does not
know it ignores, and what it misses has a default that is safe.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

FORMATS = (1,)
"""Of the document, in which it can be written and read here."""

QUESTION = b"\0successor"
"""To a keeper that was just started, in place of a cage's name: what it can go on from."""

Known = Mapping[str, Any]
"""What one part of a keeper leaves to the same part of the next: values as JSON has them. Empty
when the build before had no such part."""


class Inheritance(NamedTuple):
    """name: of the cage. version: of the build before. lock, listener: descriptors of the keeper's
    lock and of the cage's socket. connections: of shims that were not heard yet.

    expected: see `Container`. lingering: cgroups of messages that have ended, with what they left
    in the background; frozen. running, cares: of these parts. descriptors: all that stay open.
    """

    name: str
    version: str
    lock: int
    listener: int
    connections: Sequence[int]
    expected: Mapping[str, tuple[int, int]]
    lingering: Sequence[str]
    notes: Sequence[str]
    running: Known
    cares: Mapping[str, Known]
    descriptors: Sequence[int]


def write_inheritance(left: Inheritance) -> int:
    """A descriptor of the document, which stays open in the program executed next, as do those in
    it. Raises OSError."""
    fd = os.memfd_create("cagewrap-inheritance")
    data = memoryview(json.dumps({"format": FORMATS[-1], **left._asdict()}).encode())
    while data:
        data = data[os.write(fd, data) :]
    for one in (fd, *left.descriptors):
        os.set_inheritable(one, True)  # noqa: FBT003
    return fd


def keep_from_children(left: Inheritance, fd: int) -> None:
    """The opposite: no program that is started now inherits them. fd: the document, closed."""
    for one in left.descriptors:
        os.set_inheritable(one, False)  # noqa: FBT003
    os.close(fd)


def read_inheritance(fd: int) -> Inheritance:
    """What was left. Raises OSError, ValueError, KeyError or TypeError."""
    with open(fd, "rb", closefd=False) as file:
        file.seek(0)
        value = json.load(file)
    if value["format"] not in FORMATS:
        raise ValueError(f"a document of format {value['format']}")
    left = Inheritance(
        name=str(value["name"]),
        version=str(value.get("version", "")),
        lock=int(value["lock"]),
        listener=int(value["listener"]),
        connections=[int(one) for one in value.get("connections", ())],
        expected={place: (one[0], one[1]) for place, one in value["expected"].items()},
        lingering=[str(path) for path in value.get("lingering", ())],
        notes=[str(text) for text in value.get("notes", ())],
        running=value.get("running", {}),
        cares=value.get("cares", {}),
        descriptors=[int(one) for one in value["descriptors"]],
    )
    keep_from_children(left, fd)
    return left
