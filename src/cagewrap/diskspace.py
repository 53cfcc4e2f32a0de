"""Which disk it was that had no space left: the system's own error does not always say."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable

FULL = (errno.ENOSPC, errno.EDQUOT)
"""No space is left, or none for this user: what failed is worth to be tried again."""
LITTLE_BYTES, LITTLE_FILES = 32 << 20, 10
"""A disk with less than that is meant when there was none for something."""


def is_full(error: OSError) -> bool:
    """Whether it is an error of a full disk."""
    return error.errno in FULL


def full_disks(directories: Iterable[str]) -> str:
    """Those of some directories on whose disks there is little space, and how much; "" if none."""
    found: list[str] = []
    for directory in directories:
        with contextlib.suppress(OSError):
            disk = os.statvfs(directory)
            left = disk.f_bavail * disk.f_frsize
            if left < LITTLE_BYTES:
                found.append(f"{directory} ({left >> 10} KiB are left)")
            elif disk.f_favail < LITTLE_FILES:
                found.append(f"{directory} ({disk.f_favail} more files can be made there)")
    return ", ".join(found)


def lacks_files(path: str) -> bool:
    """Whether the disk of a path has space, and no number for another file (an inode)."""
    while path and not os.path.lexists(path):
        path = os.path.dirname(path)
    try:
        disk = os.statvfs(path or ".")
    except OSError:
        return False
    has_space = disk.f_bavail * disk.f_frsize >= LITTLE_BYTES
    return has_space and disk.f_files > 0 and disk.f_favail < LITTLE_FILES
