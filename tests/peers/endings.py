"""A message that would never end by itself, and whether anything of it is left."""

from __future__ import annotations

from places import Place, arguments, wait_until

HANGING = "@@bash tail -f /dev/null"
HANGS_S = 30
GONE_S = 2


def hangs(place: Place) -> bool:
    """Whether the tool that never ends is running."""
    return any(arguments(pid)[:2] == ["tail", "-f"] for pid in place.processes())


def assert_nothing_left(place: Place, but: frozenset[int] = frozenset()) -> None:
    gone = wait_until(lambda: place.processes() <= but, GONE_S)
    assert gone, [arguments(pid) for pid in place.processes() - but]
