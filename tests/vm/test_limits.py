"""Limits are in force, and an agent that the kernel killed for memory is told apart."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .machine import SlowCage, cgroup_file, cgroup_of

EATER = "b = []\nfor _ in range(400): b.append(bytearray(b'x' * (1 << 20)))"
FORKS = """
import subprocess, sys
started = []
try:
    for _ in range(100):
        started.append(subprocess.Popen(["sleep", "1000"]))
except BlockingIOError as error:
    print("refused after", len(started))
for one in started:
    one.kill()
"""


@pytest.fixture
def limited(make_cage: Callable[..., SlowCage]) -> SlowCage:
    return make_cage("--memory", "64m", "--cpus", "0.5", "--pids", "50")


def test_agent_killed_for_memory_is_told_in_one_line(limited: SlowCage) -> None:
    done = limited.run("python3", "-c", EATER)
    assert done.code == -9
    [line] = done.err.decode().splitlines()
    assert "memory" in line
    # Its cage goes on, and another end by the same signal is not taken for it.
    done = limited.run("sh", "-c", "kill -9 $$")
    assert (done.code, done.err) == (-9, b"")
    done = limited.run("sh", "-c", 'python3 -c "$0"; echo $?', EATER)
    assert (done.code, done.out) == (0, b"137\n")


def test_child_killed_for_memory_is_not_the_agents_end(limited: SlowCage) -> None:
    done = limited.run("sh", "-c", 'python3 -c "$0"; exit 5', EATER)
    assert done.code == 5
    assert b"cagewrap" not in done.err


def test_processors_and_processes_are_limited(limited: SlowCage) -> None:
    assert limited.text("python3", "-c", FORKS).startswith("refused after ")
    # Which of the two the runtime gives a limit differs with its version; messages are below both.
    container = cgroup_of(limited.init())
    places = [container, container[: container.index(".scope") + len(".scope")]]
    limits = {"cpu.max": "50000 100000", "pids.max": "50", "memory.max": str(64 << 20)}
    for name, value in limits.items():
        assert value in [cgroup_file(place, name) for place in places], name


def test_messages_count_against_the_limits_of_their_container(limited: SlowCage) -> None:
    with limited.start("sleep", "1000") as shim:
        [pid] = limited.inside_pids()
        container = cgroup_of(limited.init())
        assert cgroup_of(pid).startswith(container + "/m")
        assert int(cgroup_file(container, "pids.current")) >= 2
        shim.terminate()
