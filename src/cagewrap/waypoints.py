"""Where a path leads, and through what: whoever can write at one of these places decides it."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator

_MAX_LINKS = 40  # the kernel's own limit


def waypoints(path: str) -> Iterator[str]:
    """Every symlink on the way, of directories too, each at its real place, and what `..` leads out
    of; last, where the way ends, which need not exist. path: absolute."""
    here, links = "/", 0
    left = path.split("/")[::-1]
    while left:
        part = left.pop()
        if part == "..":
            yield here
            here = os.path.dirname(here)
        if part in ("", ".", ".."):
            continue
        there = os.path.join(here, part)
        try:
            text = os.readlink(there)
        except OSError:
            here = there
            continue
        yield there
        links += 1
        if links > _MAX_LINKS:
            return
        if text.startswith("/"):
            here = "/"
        left += reversed(text.split("/"))
    yield here


def leads_through(path: str, directories: Collection[str]) -> str:
    """The first of some directories (real paths) in which something of the way to a path lies;
    "" for none."""
    if not directories:
        return ""
    for place in waypoints(path):
        for directory in directories:
            if place == directory or place.startswith(directory.rstrip("/") + "/"):
                return directory
    return ""
