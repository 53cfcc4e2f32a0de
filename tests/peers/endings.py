"""What a message leaves: files of the owner's, and none of its processes."""

from __future__ import annotations

import os
from pathlib import Path

from places import Caged, Place, arguments, wait_until

HANGING = "@@bash tail -f /dev/null"
HANGS_S = 30
GONE_S = 2
GONE_BY_ITSELF_S = 15


def hangs(place: Place) -> bool:
    """Whether the tool that never ends is running."""
    return any(arguments(pid)[:2] == ["tail", "-f"] for pid in place.processes())


def assert_made_by_owner(file: Path) -> None:
    assert (file.stat().st_uid, file.stat().st_gid) == (os.getuid(), os.getgid())


def assert_nothing_left(
    place: Place, but: frozenset[int] = frozenset(), *, by_itself: bool = False
) -> None:
    """by_itself: the agent sees to that; without a cage nobody else does."""
    caged = isinstance(place, Caged)
    within_s = GONE_S if caged and not by_itself else GONE_BY_ITSELF_S
    gone = wait_until(lambda: place.processes() <= but, within_s)
    assert gone, [arguments(pid) for pid in place.processes() - but]
