"""Where keeper, container and messages live under a user's systemd; what is killed with what."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from podman.cages import PROGRAMS, is_alive, seconds_until

from .machine import GONE_S, SLOW_S, USER_MANAGER, SlowCage, cgroup_of

TREE = str(PROGRAMS / "tree.py")


def start_tree(cage: SlowCage, mark: str) -> subprocess.Popen[bytes]:
    """A message with a tree of processes that want to outlive it."""
    process = cage.popen("python3", TREE, mark, "stay", stdin=subprocess.DEVNULL, stdout=-1)
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"ready")
    return process


def test_keeper_and_container_live_in_scopes_of_their_own(cage: SlowCage) -> None:
    cage.text("true")
    keeper, container = cgroup_of(cage.keeper()), cgroup_of(cage.init())
    identity = cage.state()["container_id"]
    assert f"/{USER_MANAGER}/app.slice/" in keeper
    assert keeper.endswith(".scope")
    assert keeper != cgroup_of("self")
    assert f"/{USER_MANAGER}/" in container
    assert f"/libpod-{identity}.scope" in container


def test_message_lives_in_a_cgroup_below_its_containers(cage: SlowCage) -> None:
    with cage.start("sleep", "1000") as shim:
        [pid] = cage.inside_pids()
        parent, _, name = cgroup_of(pid).rpartition("/")
        assert parent == cgroup_of(cage.init())
        assert name.startswith("m")
        assert cage.state()["cgroup"] == "/sys/fs/cgroup" + parent
        shim.terminate()
    seconds_until(lambda: not Path(f"/sys/fs/cgroup{parent}/{name}").exists(), GONE_S)


@pytest.mark.parametrize("identity", ["root", "owner"])
def test_killed_shim_takes_its_tree_along_and_no_other(
    make_cage: Callable[..., SlowCage], identity: str
) -> None:
    cage = make_cage("--user", identity)
    with cage.start("sleep", "1001") as other, start_tree(cage, "marked") as shim:
        assert len(cage.inside_programs("marked")) >= 7
        shim.kill()
        took = seconds_until(lambda: not cage.inside_programs("marked"), GONE_S)
        print(f"gone after {took:.1f} s")
        assert len(cage.inside_programs("1001")) == 1
        assert other.poll() is None
        other.terminate()
    cage.text("true")


def test_background_processes_live_on_after_a_normal_end(cage: SlowCage) -> None:
    count = int(cage.text("python3", TREE, "marked").split()[1])
    time.sleep(2)
    assert len(cage.inside_programs("marked")) == count
    cage.text("true")
    assert len(cage.inside_programs("marked")) == count
    pids = cage.inside_programs("marked")
    cage.stop()
    assert not [pid for pid in pids if is_alive(pid)]


def test_next_message_ends_what_a_killed_keeper_left(cage: SlowCage) -> None:
    with start_tree(cage, "marked") as shim:
        keeper, init = cage.keeper(), cage.init()
        os.kill(keeper, signal.SIGKILL)
        assert shim.wait(SLOW_S) != 0
    cage.text("true")
    seconds_until(lambda: not cage.inside_programs("marked"), GONE_S)
    assert cage.init() == init
    assert cage.keeper() not in (0, keeper)
    assert f"/{USER_MANAGER}/app.slice/" in cgroup_of(cage.keeper())


def test_fork_racer_is_killed_whole(cage: SlowCage) -> None:
    racer = "while :; do setsid sh -c 'sleep 1002' & setsid env -i sleep 1002 & sleep 0.02; done"
    with cage.start("sh", "-c", racer) as shim:
        seconds_until(lambda: len(cage.inside_programs("1002")) > 20, SLOW_S)
        shim.kill()
        seconds_until(lambda: not cage.inside_pids(), GONE_S)
