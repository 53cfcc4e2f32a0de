"""Three-way comparison of named values: what both sides had, what each has now. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

_V = TypeVar("_V")


class Changes(Generic[_V]):
    """What to do. None: delete it.

    conflicts: name -> (the host's value, the cage's), both changed; the host's is in `to_cage`.
    """

    def __init__(self) -> None:
        """Empty, unless it is said."""
        self.to_host: dict[str, _V | None] = {}
        self.to_cage: dict[str, _V | None] = {}
        self.conflicts: dict[str, tuple[_V | None, _V | None]] = {}


def merge(
    base: Mapping[str, _V],
    host: Mapping[str, _V],
    cage: Mapping[str, _V],
    *,
    may_reach_host: Callable[[str], bool] = lambda _name: True,
    may_reach_cage: Callable[[str], bool] = lambda _name: True,
) -> Changes[_V]:
    """Compare. A name that may not reach the host is the cage's own; the host's still comes in
    when the host changes it."""
    changes: Changes[_V] = Changes()
    for name in _differing(host, cage):
        was, there, here = base.get(name), host.get(name), cage.get(name)
        if there == was:
            if may_reach_host(name):
                changes.to_host[name] = here
        elif may_reach_cage(name):
            changes.to_cage[name] = there
            if here != was and may_reach_host(name):
                changes.conflicts[name] = (there, here)
    return changes


def _differing(one: Mapping[str, _V], other: Mapping[str, _V]) -> list[str]:
    """The names whose values differ, sorted."""
    if one == other:
        return []
    missing = object()
    found = {name for name, value in one.items() if other.get(name, missing) != value}
    found.update(name for name in other if name not in one)
    return sorted(found)
