"""Whether a file is cagewrap, or starts it: such a file is never taken for an agent's program."""

from __future__ import annotations

import os
import re
import stat

MARK = b"cagewrap-shim"
"""In the first lines of every shim file."""

NAME = "cagewrap"
_HEAD_BYTES = 4096
_RUNS_US = re.compile(rb"[\s/'\"]cagewrap(['\"]?\s|\.entry)")
_ELF = b"\x7fELF"
_BUNDLE = "_internal"
"""Where PyInstaller puts what belongs to a program, beside it."""


def _runs_us(head: bytes) -> bool:
    """Whether a script, of which this is the beginning, is a shim file or runs cagewrap."""
    return MARK in head or bool(_RUNS_US.search(head))


def is_ours(path: str) -> bool:
    """Whether it is cagewrap itself, by whatever name or as a copy, or a script that runs it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            is_file = stat.S_ISREG(os.fstat(fd).st_mode)
            head = os.pread(fd, _HEAD_BYTES, 0) if is_file else b""
        finally:
            os.close(fd)
    except OSError:
        return False
    if head.startswith(b"#!"):
        return _runs_us(head)
    return head.startswith(_ELF) and _is_frozen(path)


def is_shim_file(path: str) -> bool:
    """Whether a file was written by `cagewrap shim`. Raises OSError when it cannot be read."""
    with open(path, "rb") as file:
        return MARK in b"".join(file.readline(_HEAD_BYTES) for _ in range(2))


def _is_frozen(path: str) -> bool:
    """Whether a program is the frozen cagewrap, whose directory holds what it needs."""
    directory, name = os.path.split(os.path.realpath(path))
    return name == NAME or os.path.isdir(os.path.join(directory, _BUNDLE, NAME))
