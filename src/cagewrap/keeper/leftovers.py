"""What a keeper that was killed left running."""

from __future__ import annotations

import os

from cagewrap.keeper import cgroups
from cagewrap.sessions import State


def kill_leftovers(state: State) -> None:
    """End what the messages of a keeper that was killed left running."""
    if not state.cgroup:
        return
    try:
        children = os.listdir(state.cgroup)
    except OSError:
        return
    for child in children:
        path = os.path.join(state.cgroup, child)
        if child.startswith("m") and child[1:].isdigit() and os.path.isdir(path):
            cgroups.kill(path)
            cgroups.remove(path)
