"""What a program file says of itself: an ELF header, or a `#!` line.

Numbers and structures are those of include/uapi/linux/elf.h and elf-em.h. Files may be an agent's:
nothing here believes a length it has not read.
"""

from __future__ import annotations

import os
import stat
import struct
from typing import NamedTuple

MACHINES = {
    3: "i686", 20: "ppc", 21: "ppc64le", 22: "s390x", 40: "armv7l", 62: "x86_64", 183: "aarch64",
    243: "riscv64", 258: "loongarch64",
}  # fmt: skip
"""e_machine (EM_*) by the name `uname -m` has for it, which for 32-bit ARM says more."""
_RUNS_TOO = {"x86_64": ("i686",), "aarch64": ("armv7l",)}
"""What most kernels of a machine run beside its own."""

_TAKE_A_WORD = ("-u", "-C", "--unset", "--chdir")
"""Options of `env` that the next word belongs to."""
_QUOTING = frozenset("'\"\\$")
_HEAD_BYTES = 4096
_MAX_HEADERS = 128
_MAX_TABLE = 1 << 20
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_NEEDED, _DT_STRTAB = 1, 5
_INTERPRETER_BYTES = 4096  # PATH_MAX


class Elf(NamedTuple):
    """machine: as `uname -m` says it, or `EM_number`. loader: the path in PT_INTERP, "" for a
    static program. needed: names of shared libraries (DT_NEEDED); () unless asked for."""

    machine: str
    loader: str
    needed: tuple[str, ...] = ()

    def runs_on(self, machine: str) -> bool:
        """Whether a kernel of that machine can be expected to run it."""
        return self.machine == machine or self.machine in _RUNS_TOO.get(machine, ())


class Script(NamedTuple):
    """The words of a `#!` line: the interpreter, and what follows it as one text."""

    interpreter: str
    argument: str

    @property
    def wanted(self) -> str:
        """What runs it: the interpreter's path, or the name that `env` looks for."""
        if os.path.basename(self.interpreter) != "env":
            return self.interpreter
        for word in self.argument.split():
            if word in _TAKE_A_WORD or not _QUOTING.isdisjoint(word):
                break  # env's own language: what it will look for is not known
            if not word.startswith("-") and "=" not in word:
                return word
        return self.interpreter


def read_program(fd: int, *, libraries: bool = False) -> Elf | Script | None:
    """What the file is; None for one that is neither, such as a text without `#!`.

    fd: of a file, opened for reading. Raises OSError.
    """
    head = os.pread(fd, _HEAD_BYTES, 0)
    if head.startswith(b"#!"):
        return _script(head)
    if not head.startswith(b"\x7fELF"):
        return None
    try:
        return _elf(fd, head, libraries=libraries)
    except (struct.error, ValueError, IndexError, OverflowError):
        return None


def open_program(path: str) -> int:
    """A readable descriptor of a regular file, never waiting for a FIFO. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise IsADirectoryError(path)
    return fd


def read_program_at(path: str, *, libraries: bool = False) -> Elf | Script | None:
    """`read_program` of a path; None as well when it cannot be read."""
    try:
        fd = open_program(path)
    except OSError:
        return None
    try:
        return read_program(fd, libraries=libraries)
    except OSError:
        return None
    finally:
        os.close(fd)


def _script(head: bytes) -> Script | None:
    line = head[2:].partition(b"\n")[0].strip()
    interpreter, _, argument = line.replace(b"\t", b" ").partition(b" ")
    if not interpreter:
        return None
    return Script(os.fsdecode(interpreter), os.fsdecode(argument.strip()))


def _elf(fd: int, head: bytes, *, libraries: bool) -> Elf:
    is_64 = head[4] == 2
    order = ">" if head[5] == 2 else "<"
    machine = struct.unpack_from(order + "H", head, 18)[0]
    if is_64:
        at, size, count = _at(order, head, "Q", 32), *_at2(order, head, 54)
    else:
        at, size, count = _at(order, head, "I", 28), *_at2(order, head, 42)
    segments = os.pread(fd, size * min(count, _MAX_HEADERS), at)
    found = [_segment(order, segments[i : i + size], is_64) for i in range(0, len(segments), size)]
    loader = ""
    for kind, offset, _, length in found:
        if kind == _PT_INTERP:
            text = os.pread(fd, min(length, _INTERPRETER_BYTES), offset)
            loader = os.fsdecode(text.partition(b"\0")[0])
    needed = _needed(fd, order, found, is_64) if libraries else ()
    return Elf(MACHINES.get(machine, f"EM_{machine}"), loader, needed)


_Segment = tuple[int, int, int, int]
"""Kind, offset in the file, address, size in the file."""


def _segment(order: str, data: bytes, is_64: bool) -> _Segment:  # noqa: FBT001 - of one use
    if is_64:
        kind, _, offset, address, _, length = struct.unpack_from(order + "IIQQQQ", data)
    else:
        kind, offset, address, _, length = struct.unpack_from(order + "IIIII", data)
    return kind, offset, address, length


def _needed(
    fd: int,
    order: str,
    segments: list[_Segment],
    is_64: bool,  # noqa: FBT001
) -> tuple[str, ...]:
    table = next((one for one in segments if one[0] == _PT_DYNAMIC), None)
    if table is None:
        return ()
    entry = struct.Struct(order + ("qQ" if is_64 else "iI"))
    data = os.pread(fd, min(table[3], _MAX_TABLE), table[1])
    entries = list(entry.iter_unpack(data[: len(data) // entry.size * entry.size]))
    strings = next((value for tag, value in entries if tag == _DT_STRTAB), 0)
    [place, *_] = [
        strings - address + offset
        for kind, offset, address, length in segments
        if kind == _PT_LOAD and address <= strings < address + length
    ]
    return tuple(
        os.fsdecode(os.pread(fd, 256, place + value).partition(b"\0")[0])
        for tag, value in entries
        if tag == _DT_NEEDED
    )


def _at(order: str, data: bytes, kind: str, offset: int) -> int:
    return int(struct.unpack_from(order + kind, data, offset)[0])


def _at2(order: str, data: bytes, offset: int) -> tuple[int, int]:
    size, count = struct.unpack_from(order + "HH", data, offset)
    return int(size) or 1, int(count)
