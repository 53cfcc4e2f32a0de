"""A cage's life: started by a message, stopped when idle, started again; and its keeper."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .cages import (
    RUNTIME_DIR,
    Cage,
    all_pids,
    is_alive,
    keepers,
    leftovers,
    link,
    parent,
    pids_of_namespace,
    process_state,
    read_bytes,
    seconds_until,
    wait_until,
)
from .conftest import Latencies


def test_idle_cage_stops_and_starts_again_with_what_was_installed(
    make_cage: Callable[..., Cage], latencies: Latencies
) -> None:
    cage = make_cage("--idle-stop", "1s")
    cage.text("sh", "-c", "touch /opt/installed; sleep 1000 >/dev/null 2>&1 &")
    init = cage.init()
    assert wait_until(lambda: len(pids_of_namespace(init)) == 1, 0.5), "it lives until then"
    took = seconds_until(lambda: not keepers(cage.name()), 6)
    latencies.add("idle stop of 1 s, all gone", took)
    assert took > 0.8
    assert not is_alive(init)
    assert leftovers(cage.name()) == []
    assert cage.container()["State"]["Status"] == "exited"
    done = cage.run("ls", "/opt/installed")
    assert (done.code, done.out, done.err) == (0, b"/opt/installed\n", b"")


def test_cage_is_not_idle_while_an_agent_works(make_cage: Callable[..., Cage]) -> None:
    """Neither the first message, which is there before the container, nor a later one."""
    cage = make_cage("--idle-stop", "1s")
    assert cage.text("sh", "-c", "sleep 2.5; echo first") == "first\n"
    assert cage.text("sh", "-c", "sleep 2.5; echo second") == "second\n"


def test_each_message_puts_the_stop_off(make_cage: Callable[..., Cage]) -> None:
    cage = make_cage("--idle-stop", "1s")
    cage.text("true")
    keeper = cage.keeper()
    for _ in range(5):
        time.sleep(0.5)
        cage.text("true")
    assert cage.keeper() == keeper


def test_never_is_never(make_cage: Callable[..., Cage]) -> None:
    cage = make_cage("--idle-stop", "never")
    cage.text("true")
    time.sleep(1.5)
    assert cage.keeper() != 0


# --- the keeper -----------------------------------------------------------------------------------


def test_keeper_is_no_child_of_the_harness(cage: Cage) -> None:
    """Own session, the root directory, none of the harness's descriptors, little environment."""
    reader, writer = os.pipe()
    try:
        cage.text("true", env={"SECRET_X": "planted", "VIRTUAL_ENV": "/planted"}, pass_fds=[writer])
        keeper = cage.keeper()
        fields = read_bytes(f"/proc/{keeper}/stat").rpartition(b")")[2].split()
        assert int(fields[3]) == keeper, "leader of its own session"
        assert fields[4] == b"0", "without a terminal"
        assert link(keeper, "cwd") == "/"
        inode = os.fstat(writer).st_ino
        held = {link(keeper, f"fd/{name}") for name in os.listdir(f"/proc/{keeper}/fd")}
        assert f"pipe:[{inode}]" not in held
        assert b"planted" not in read_bytes(f"/proc/{keeper}/environ")
    finally:
        os.close(reader)
        os.close(writer)


def test_nothing_of_a_message_is_held_afterwards(cage: Cage) -> None:
    """By the keeper, by conmon, by anything: a harness waits for the end of these pipes. First
    with the container made, then with it running, then started again, then made anew."""
    from .cages import podman

    def held() -> list[str]:
        ends = [os.pipe() for _ in range(3)]
        try:
            with cage.popen("true", stdin=ends[0][0], stdout=ends[1][1], stderr=ends[2][1]) as one:
                assert one.wait(20) == 0
            wanted = {f"pipe:[{os.fstat(end[0]).st_ino}]" for end in ends}
            return [
                f"{pid} {name} {read_bytes(f'/proc/{pid}/cmdline')!r}"
                for pid in all_pids()
                if pid != os.getpid() and os.access(f"/proc/{pid}/fd", os.R_OK)
                for name in list_directory(f"/proc/{pid}/fd")
                if link(pid, f"fd/{name}") in wanted
            ]
        finally:
            for end in ends:
                os.close(end[0])
                os.close(end[1])

    assert held() == [], "made"
    assert held() == [], "running"
    cage.stop()
    assert held() == [], "started again"
    cage.stop()
    podman("rm", "--force", cage.name())
    assert held() == [], "made anew"


def list_directory(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def test_keeper_holds_nothing_of_past_messages(shared_cage: Cage, tmp_path: Path) -> None:
    """Descriptors, children, cgroups and files after a hundred messages are those of before."""
    keeper = shared_cage.keeper()
    cgroup = Path(shared_cage.state()["cgroup"])
    work = RUNTIME_DIR / "cagewrap" / f"{shared_cage.name()}.d"

    def held() -> tuple[int, list[int], list[str], list[str]]:
        children = [pid for pid in all_pids() if parent(pid) == keeper]
        fds = len(os.listdir(f"/proc/{keeper}/fd"))
        groups = sorted(path.name for path in cgroup.iterdir() if path.is_dir())
        return fds, children, groups, sorted(os.listdir(work))

    shared_cage.text("true")
    assert wait_until(lambda: held()[2] == [], 3)
    time.sleep(1)  # until what follows a message has been looked at
    before = held()
    file = tmp_path / "file"
    file.write_bytes(b"x" * 100_000)
    for _ in range(20):
        shared_cage.run("cat")
        shared_cage.run("no-such-program")
        shared_cage.run("cat", b"\xff")
        with open(file, "rb") as source, open(tmp_path / "out", "wb") as out:
            shared_cage.run("head", "-c", "1", stdin=source.fileno(), stdout=out.fileno())
        with shared_cage.popen("sleep", "1000", stdin=subprocess.DEVNULL) as process:
            assert wait_until(shared_cage.agents, 5)
            process.kill()
    assert wait_until(lambda: held() == before, 3), (held(), before)


def test_keeper_takes_no_processor_time_while_idle(shared_cage: Cage) -> None:
    def ticks() -> int:
        fields = read_bytes(f"/proc/{shared_cage.keeper()}/stat").rpartition(b")")[2].split()
        return int(fields[11]) + int(fields[12])

    shared_cage.text("true")
    time.sleep(1.2)  # a message is followed by a last look at the project
    before = ticks()
    time.sleep(2)
    assert ticks() == before


def test_no_zombie_stays_in_the_cage(shared_cage: Cage) -> None:
    """One in its pid namespace keeps podman from removing it."""
    for _ in range(5):
        shared_cage.run("no-such-program")
        shared_cage.run("sh", "-c", "sh -c 'sleep 0.1 &' & exit 0", stdin=subprocess.DEVNULL)
    init = shared_cage.init()
    wanted = link(init, "ns/pid")
    time.sleep(0.4)
    zombies = [pid for pid in all_pids() if process_state(pid) == "Z" and parent(pid) in (
        init, shared_cage.keeper())]  # fmt: skip
    assert zombies == []
    assert wanted


@pytest.mark.smoke
def test_first_message_of_a_new_project_works(cage: Cage, latencies: Latencies) -> None:
    began = time.monotonic()
    assert cage.text("echo", "hello") == "hello\n"
    latencies.add("(first message of a new cage, from nothing)", time.monotonic() - began)
    began = time.monotonic()
    assert cage.text("echo", "hello") == "hello\n"
    latencies.add("(the second)", time.monotonic() - began)


def test_runc_works_as_well(make_cage: Callable[..., Cage]) -> None:
    cage = make_cage("--runtime", "runc")
    assert cage.run("sh", "-c", "cat; exit 7", stdin=b"\xff\n").out == b"\xff\n"
    assert cage.run("sh", "-c", "kill -TERM $$", b"\xff").code == -15
    with cage.popen(
        "sh", "-c", "echo ready; setsid sleep 1000 & wait", stdout=subprocess.PIPE
    ) as one:
        assert one.stdout is not None
        assert one.stdout.readline() == b"ready\n"
        one.kill()
        assert wait_until(lambda: not cage.inside_pids(), 2)
    assert cage.run("no-such-program").code == 127
