"""Whether a file is cagewrap, or starts it: such a file is never taken for an agent's program."""

from __future__ import annotations

import os
import re
import stat
import struct
import sys

MARK = b"cagewrap-shim"
"""In the first lines of every shim file."""

NAME = "cagewrap"
_HEAD_BYTES = 4096
_RUNS_US = re.compile(rb"[\s/'\"]cagewrap(['\"]?\s|\.entry)")
_ELF = b"\x7fELF"

_COOKIE = struct.Struct("!8sIIII64s")
"""The end of the archive in a program that PyInstaller made (PyInstaller/archive/writers.py):
magic, length of the archive, where its table of contents is, how long that is, Python, library."""
_MAGIC = b"MEI\014\013\012\013\016"
_TAIL_BYTES = 1 << 16
_MAX_TABLE = 1 << 20


def runs_us(head: bytes) -> bool:
    """Whether a script, of which this is the beginning, is a shim file or runs cagewrap."""
    return MARK in head or bool(_RUNS_US.search(head))


def is_ours(path: str) -> bool:
    """Whether it is cagewrap itself, by whatever name or as a copy, or a script that runs it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    with open(fd, "rb", buffering=0) as file:
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                return False
            head = file.read(_HEAD_BYTES)
            if head.startswith(b"#!"):
                return runs_us(head)
            return head.startswith(_ELF) and (
                os.path.basename(os.path.realpath(path)) == NAME
                or _is_running(found)
                or NAME.encode() in _contents(fd, found.st_size)
            )
        except OSError:
            return False


def is_shim_file(path: str) -> bool:
    """Whether a file was written by `cagewrap shim`. Raises OSError when it cannot be read."""
    with open(path, "rb") as file:
        return MARK in b"".join(file.readline(_HEAD_BYTES) for _ in range(2))


def _is_running(found: os.stat_result) -> bool:
    """Whether it is the frozen program that runs now."""
    if not getattr(sys, "frozen", False):
        return False
    return os.path.samestat(found, os.stat(sys.executable))


def _contents(fd: int, size: int) -> bytes:
    """The table of contents of a frozen program; b"" for any other."""
    start = max(0, size - _TAIL_BYTES)
    tail = os.pread(fd, _TAIL_BYTES, start)
    at = tail.rfind(_MAGIC)
    if at < 0 or len(tail) - at < _COOKIE.size:
        return b""
    _, length, table_at, table_length, _, _ = _COOKIE.unpack_from(tail, at)
    begin = start + at + _COOKIE.size - length + table_at
    if begin < 0 or table_length > _MAX_TABLE:
        return b""
    return os.pread(fd, table_length, begin)
