"""Ranges of subordinate ids (/etc/subuid, /etc/subgid): whose they are, and which are free."""

from __future__ import annotations

from typing import NamedTuple

WANTED_COUNT = 65536
"""Every id that Debian's packages and most images use lies below this."""
_FIRST = 100_000
_FILES = ("/etc/subuid", "/etc/subgid")


class SubIds(NamedTuple):
    """One line of the file. `owner` is a name or a uid."""

    owner: str
    start: int
    size: int


def parse_subids(text: str) -> tuple[SubIds, ...]:
    """Read the lines `owner:start:count`; what is not of that form gives no range."""
    found = []
    for line in text.splitlines():
        owner, _, numbers = line.strip().partition(":")
        start, _, count = numbers.partition(":")
        if start.isdecimal() and count.isdecimal():
            found.append(SubIds(owner, int(start), int(count)))
    return tuple(found)


def count_of(ranges: tuple[SubIds, ...], *, name: str, uid: int) -> int:
    """How many ids a user has, by name or by uid."""
    return sum(entry.size for entry in ranges if entry.owner in (name, str(uid)))


def free_range(ranges: tuple[SubIds, ...]) -> str:
    """The first range `FIRST-LAST` of the wanted length that is nobody's, for usermod."""
    start = _FIRST
    for entry in sorted(ranges, key=lambda entry: entry.start):
        if entry.start < start + WANTED_COUNT and entry.start + entry.size > start:
            start = entry.start + entry.size
    return f"{start}-{start + WANTED_COUNT - 1}"


def read_free_range(files: tuple[str, ...] = _FILES) -> str:
    """`free_range` of this machine, free in both files."""
    text = ""
    for path in files:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                text += file.read() + "\n"
        except OSError:
            continue
    return free_range(parse_subids(text))
