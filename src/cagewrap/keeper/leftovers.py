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


def running_containers(paths: Paths, *, but: str) -> list[str]:
    """Ids of the other sessions' containers whose init lives."""
    records = (record for record in sessions.list_records(paths) if record.name != but)
    states = (sessions.read_state(paths, record.name) for record in records)
    return [
        state.container_id
        for state in states
        if sessions.is_alive(state.init_pid, state.init_start, state.boot_id)
    ]


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
