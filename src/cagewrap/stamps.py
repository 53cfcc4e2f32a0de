"""Whether a file has changed since it was looked at."""

from __future__ import annotations

import os

Stamp = tuple[int, int, int]
NO_FILE: Stamp = (0, 0, 0)


def stamp(path: str) -> Stamp:
    """A file's inode, size and time of change (nanoseconds), symlinks followed; NO_FILE when it
    is not there or cannot be looked at."""
    try:
        found = os.stat(path)
    except OSError:
        return NO_FILE
    return (found.st_ino, found.st_size, found.st_mtime_ns)
