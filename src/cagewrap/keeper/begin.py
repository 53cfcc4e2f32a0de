"""The first thing a keeper does: have podman at work on its container.

podman takes most of a cold start, so it is started before the rest of the keeper is imported, and
this module and what it imports are kept small.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import NamedTuple

from cagewrap import sessions
from cagewrap.errors import SessionError
from cagewrap.keeper import cgroups, namespaces
from cagewrap.keeper.container import Container
from cagewrap.keeper.inheritance import Inheritance
from cagewrap.keeper.leftovers import kill_leftovers, running_containers
from cagewrap.keeper.loop import Loop
from cagewrap.keeper.processes import processes_inside
from cagewrap.paths import Paths
from cagewrap.sessions import Record, State


class Begun(NamedTuple):
    """A cage whose container is being brought up; nothing is told before the loop runs.

    state: what an earlier keeper knew. work_dir: for files that live as long as the keeper.
    our_cgroup: a cgroup for the container and, beside it, for each message; "" without.
    """

    paths: Paths
    record: Record
    state: State
    loop: Loop
    container: Container
    work_dir: str
    our_cgroup: str


def begin(paths: Paths, name: str) -> Begun:
    """Clean up after an earlier keeper, and start bringing the container up.

    Raises SessionError when there is no such session.
    """
    record = sessions.read_record(paths, name)
    if record is None:
        raise SessionError(f"There is no session {name}.", "cagewrap ls")
    state = sessions.read_state(paths, name)
    begun = _begin(paths, record, state, is_new=True)
    begun.container.bring_up(state)
    return begun


def begin_again(paths: Paths, left: Inheritance) -> Begun:
    """The same for a keeper that goes on as this build: nothing is cleaned up, and the container
    runs. Raises SessionError."""
    record = sessions.read_record(paths, left.name)
    if record is None:
        raise SessionError(f"There is no session {left.name}.", "cagewrap ls")
    state = sessions.read_state(paths, left.name)
    begun = _begin(paths, record, state, is_new=False)
    begun.container.adopt(state, left.expected)
    return begun


def _begin(paths: Paths, record: Record, state: State, *, is_new: bool) -> Begun:
    name = record.name
    work_dir = os.path.join(paths.runtime_dir, name + ".d")
    os.makedirs(work_dir, mode=0o700, exist_ok=True)
    namespaces.become_subreaper()
    namespaces.leave_session_keyring()
    if is_new:
        _clean_up(state)
    our_cgroup = _make_cgroup(state, name)
    loop = Loop(lambda error: log(f"bug: {error!r}"))
    container = Container(
        loop,
        record,
        os.environ,
        os.path.join(work_dir, "init.pid"),
        lambda: running_containers(paths, but=name),
    )
    return Begun(paths, record, state, loop, container, work_dir, our_cgroup)


def log(text: str) -> None:
    """A line in keeper.log. On a full disk it is lost, and the keeper goes on."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S")
    with contextlib.suppress(OSError):
        os.write(2, f"{stamp} {text}\n".encode(errors="backslashreplace"))


def _clean_up(state: State) -> None:
    """End what the messages of a keeper that was killed left running."""
    kill_leftovers(state)
    if state.cgroup or not sessions.is_alive(state.init_pid, state.init_start, state.boot_id):
        return
    for pid in processes_inside(state.init_pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _make_cgroup(state: State, name: str) -> str:
    """A cgroup of the keeper's own, "" if it can have none.

    One that an earlier keeper made is taken over while the container lives in it, wherever we
    were started from.
    """
    earlier = state.cgroup
    if os.path.basename(earlier) == name:
        in_use = not cgroups.remove(earlier)
        if in_use and cgroups.cgroup_of(state.init_pid).startswith(earlier + "/"):
            return earlier
    own = cgroups.cgroup_of("self")
    ours = os.path.join(own, name) if own else ""
    return ours if ours and cgroups.make(ours) else ""
