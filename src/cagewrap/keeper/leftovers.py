"""What the messages of a session have running, read from outside its keeper."""

from __future__ import annotations

import os

from cagewrap import sessions
from cagewrap.keeper import cgroups
from cagewrap.paths import Paths
from cagewrap.sessions import State


def kill_leftovers(state: State) -> None:
    """End what the messages of a keeper that was killed left running."""
    for path in _message_cgroups(state):
        cgroups.kill(path)
        cgroups.remove(path)


def sessions_at_work(paths: Paths, *, but: str) -> list[str]:
    """Names of the other sessions in whose containers a message, or what one left in the
    background, runs. Without cgroups that cannot be told: every running one is named."""
    found = []
    for record in sessions.list_records(paths):
        state = sessions.read_state(paths, record.name)
        if record.name == but or not sessions.is_alive(
            state.init_pid, state.init_start, state.boot_id
        ):
            continue
        if not state.cgroup or _message_cgroups(state):
            found.append(record.name)
    return found


def _message_cgroups(state: State) -> list[str]:
    if not state.cgroup:
        return []
    try:
        children = os.listdir(state.cgroup)
    except OSError:
        return []
    paths = [
        os.path.join(state.cgroup, child)
        for child in children
        if child.startswith("m") and child[1:].isdigit()
    ]
    return [path for path in paths if os.path.isdir(path)]
