"""The shim gone, the harness gone, the reader gone: all that the message started is gone in 2 s.

TERM first, a second of grace, then KILL; what other messages run in the same cage lives on.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from .cages import (
    PROGRAMS,
    RUNTIME_DIR,
    RUNTIMES,
    Cage,
    is_alive,
    keepers,
    podman,
    process_state,
    read_json,
    seconds_until,
    wait_until,
)
from .conftest import Latencies

GONE_S = 2.0
GRACE_S = 1.0
TREE = 8
"""Processes of tree.py as root, itself included."""


def line(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode().strip()


@contextmanager
def other_message(cage: Cage) -> Iterator[None]:
    """Runs beside in the same cage, and must live on: it answers before and after."""
    with cage.popen("cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None
        for word in (b"before\n", b"after\n"):
            other.stdin.write(word)
            other.stdin.flush()
            assert line(other) == word.decode().strip()
            if word == b"before\n":
                yield
        other.stdin.close()
        assert other.wait(5) == 0


def tree(cage: Cage, mark: str, **options: object) -> subprocess.Popen[bytes]:
    """The tree of tree.py, once all of it runs."""
    process = cage.popen(
        "python3", PROGRAMS / "tree.py", mark, "stay",
        **({"stdin": subprocess.PIPE, "stdout": subprocess.PIPE} | options),
    )  # fmt: skip
    if process.stdout is not None:
        assert line(process).startswith("ready")
    return process


def pipe() -> tuple[IO[bytes], IO[bytes]]:
    reader, writer = os.pipe()
    return open(reader, "rb"), open(writer, "wb")


# --- how a message can lose its reason ----------------------------------------------------------


def test_killed_shim_takes_its_whole_tree_along(identity_cage: Cage, latencies: Latencies) -> None:
    """Child, session of its own, double forks, `env -i setsid`, one deaf to TERM, another uid."""
    with other_message(identity_cage), tree(identity_cage, "mark-shim") as process:
        assert len(identity_cage.inside_programs("mark-shim")) >= TREE - 2
        process.kill()
        took = seconds_until(lambda: not identity_cage.inside_programs("mark-shim"), GONE_S)
        latencies.add("shim killed, tree with one deaf to TERM", took)
        assert took >= GRACE_S / 2, "the deaf one had no grace"


def test_killed_shim_ends_a_simple_agent_quickly(shared_cage: Cage, latencies: Latencies) -> None:
    with shared_cage.popen(
        "sh", "-c", "echo ready; exec sleep 1000", stdout=subprocess.PIPE
    ) as process:
        assert line(process) == "ready"
        process.kill()
        took = seconds_until(lambda: not shared_cage.inside_pids(), GONE_S)
        latencies.add("shim killed, agent without children", took)


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGSEGV, signal.SIGALRM])
def test_shim_that_dies_of_what_is_not_forwarded_takes_the_agent_along(
    shared_cage: Cage, number: int
) -> None:
    def default() -> None:
        signal.signal(number, signal.SIG_DFL)

    with shared_cage.popen(
        "sh", "-c", "echo ready; exec sleep 1000", stdout=subprocess.PIPE, preexec_fn=default
    ) as process:
        assert line(process) == "ready"
        process.send_signal(number)
        assert process.wait(3) != 0
        assert wait_until(lambda: not shared_cage.inside_pids(), GONE_S)


def test_agent_gets_term_first_and_a_second_to_clean_up(
    shared_cage: Cage, latencies: Latencies
) -> None:
    script = "trap 'sleep 0.3; echo cleaned >graceful; exit' TERM; echo ready; sleep 1000 & wait"
    with shared_cage.popen("sh", "-c", script, stdout=subprocess.PIPE) as process:
        assert line(process) == "ready"
        process.kill()
        took = seconds_until(lambda: not shared_cage.inside_pids(), GONE_S)
        latencies.add("shim killed, agent that takes 0.3 s to clean up", took)
    assert (shared_cage.project / "graceful").read_text() == "cleaned\n"


def test_stopped_process_is_ended_too(shared_cage: Cage) -> None:
    script = "sleep 1000 & kill -STOP $!; echo ready; wait"
    with shared_cage.popen("sh", "-c", script, stdout=subprocess.PIPE) as process:
        assert line(process) == "ready"
        process.kill()
        assert wait_until(lambda: not shared_cage.inside_pids(), GONE_S)


def test_forking_without_end_does_not_escape(shared_cage: Cage, latencies: Latencies) -> None:
    """A process that is replaced by its child every millisecond, deaf to TERM."""
    script = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "os.write(1, b'ready\\n')\n"
        "while True:\n"
        "    time.sleep(0.001)\n"
        "    if os.fork(): os._exit(0)\n"
        "    os.setsid()\n"
    )
    with shared_cage.popen("sh", "-c", 'python3 -c "$1"; sleep 1000', "sh", script,
                           stdout=subprocess.PIPE) as process:  # fmt: skip
        assert line(process) == "ready"
        process.kill()
        # Counted three times: between two of its lives it may be missed.
        gone = lambda: not any(shared_cage.inside_pids() for _ in range(3))  # noqa: E731
        latencies.add("shim killed, fork racer", seconds_until(gone, GONE_S))


@pytest.mark.parametrize("kind", ["pipes", "sockets", "file"])
def test_killed_harness_takes_the_agent_along(
    shared_cage: Cage, tmp_path: Path, latencies: Latencies, kind: str
) -> None:
    """The parent that holds the ends of stdin and stdout. The shim itself is not told."""
    where = kind if kind != "file" else f"file:{tmp_path / 'out'}"
    mark = f"mark-harness-{kind}"
    argv = [*shared_cage.command(), "python3", PROGRAMS / "tree.py", mark, "stay"]
    with other_message(shared_cage), subprocess.Popen(
        [sys.executable, PROGRAMS / "harness.py", where, *argv],
        cwd=shared_cage.project, env=shared_cage.env,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
    ) as harness:  # fmt: skip
        shim = int(line(harness))
        assert wait_until(lambda: len(shared_cage.inside_programs(mark)) >= TREE, 10)
        harness.kill()
        took = seconds_until(lambda: not shared_cage.inside_programs(mark), GONE_S)
        latencies.add(f"harness killed ({kind})", took)
        assert wait_until(lambda: not is_alive(shim), 1)


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_reader_that_goes_away_ends_a_silent_agent(
    shared_cage: Cage, latencies: Latencies, kind: str
) -> None:
    """It writes nothing, so no SIGPIPE tells it; the harness lives and holds stdin open."""
    ours, theirs = socket.socketpair() if kind == "socket" else pipe()
    with (
        ours,
        theirs,
        shared_cage.popen(
            "sh", "-c", "echo ready; sleep 1000 & wait", stdin=subprocess.PIPE, stdout=theirs
        ) as process,
    ):
        theirs.close()
        assert wait_until(lambda: len(shared_cage.inside_pids()) == 2, 5)
        ours.close()
        took = seconds_until(lambda: not shared_cage.inside_pids(), GONE_S)
        latencies.add(f"stdout closed by its reader ({kind})", took)
        process.wait(2)


def test_harness_that_dies_while_the_container_starts_leaves_nothing(cage: Cage) -> None:
    with cage.popen("sleep", "1000", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert wait_until(lambda: cage.names() and keepers(cage.name()), 10)
        process.kill()
    assert wait_until(cage.init, 10)
    assert wait_until(lambda: not cage.inside_pids(), GONE_S)
    assert cage.text("echo", "next") == "next\n"


# --- what is no reason to end an agent ----------------------------------------------------------


def test_agent_started_to_outlive_its_harness_does(shared_cage: Cage, tmp_path: Path) -> None:
    """`setsid nohup cagewrap -- … </dev/null >file &`, and the shell is gone."""
    out = tmp_path / "out"
    script = f'setsid nohup "$@" </dev/null >{out} 2>&1 & echo started'
    argv = [*shared_cage.command(), "sh", "-c", "sleep 2.5; echo finished"]
    done = subprocess.run(
        ["sh", "-c", script, "sh", *argv],
        cwd=shared_cage.project, env=shared_cage.env, stdin=subprocess.DEVNULL,
        capture_output=True, timeout=5, check=True,
    )  # fmt: skip
    assert done.stdout == b"started\n"
    assert wait_until(lambda: b"finished" in (out.read_bytes() if out.exists() else b""), 6)
    assert wait_until(lambda: not shared_cage.inside_pids(), 1)


def test_prompt_piped_into_a_background_agent_does_not_end_it(
    shared_cage: Cage, tmp_path: Path
) -> None:
    """`echo prompt | cagewrap -- claude -p >file &`, and the script goes on a while and ends."""
    out = tmp_path / "out"
    script = f'{{ echo prompt | "$@" >{out} 2>&1 & }}; sleep 0.8; exit 0'
    argv = [*shared_cage.command(), "sh", "-c", "cat; sleep 3; echo finished"]
    subprocess.run(
        ["sh", "-c", script, "sh", *argv],
        cwd=shared_cage.project, env=shared_cage.env, stdin=subprocess.DEVNULL, timeout=5,
        check=True,
    )  # fmt: skip
    assert wait_until(lambda: out.exists() and out.read_bytes() == b"prompt\nfinished\n", 6)
    assert wait_until(lambda: not shared_cage.inside_pids(), 1)


def test_background_processes_live_on_after_a_normal_end(shared_cage: Cage) -> None:
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    done = shared_cage.run("python3", PROGRAMS / "tree.py", "mark-normal", **quiet)
    assert done.code == 0
    time.sleep(1.5)
    found = shared_cage.inside_programs("mark-normal")
    assert len(found) == TREE - 1
    with shared_cage.popen("sleep", "1000") as process:
        assert wait_until(lambda: shared_cage.inside_programs("1000"), 5)
        process.kill()
        assert wait_until(lambda: not shared_cage.inside_programs("1000"), GONE_S)
    assert shared_cage.inside_programs("mark-normal") == found
    shared_cage.run("pkill", "-KILL", "-f", "mark-normal")


def test_shim_that_is_killed_after_the_end_of_its_agent_ends_nothing(shared_cage: Cage) -> None:
    for _ in range(5):
        with shared_cage.popen("sh", "-c", "sleep 0.6 & exit 0", stdout=subprocess.PIPE) as process:
            process.wait(5)
            assert process.returncode == 0
            assert shared_cage.inside_programs("0.6")


# --- the end of everything else -----------------------------------------------------------------


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: not is_alive(pid), 5)


def test_killed_keeper_ends_its_messages_and_the_next_one_works(
    make_cage: Callable[..., Cage], latencies: Latencies
) -> None:
    cage = make_cage()
    cage.text("touch", "/opt/installed")
    with tree(cage, "mark-keeper", stderr=subprocess.PIPE) as process:
        init = cage.init()
        kill(cage.keeper())
        took = seconds_until(lambda: not cage.inside_pids(), GONE_S)
        latencies.add("keeper killed", took)
        assert process.wait(3) == 121
        assert process.stderr is not None
        assert b"keeper was killed" in process.stderr.read()
    assert cage.text("ls", "/opt/installed") == "/opt/installed\n"
    assert cage.init() == init, "the container ran on and is taken over"


def test_keeper_killed_while_idle_is_replaced(cage: Cage) -> None:
    cage.text("sh", "-c", "sleep 1000 >/dev/null 2>&1 & touch /opt/installed")
    init = cage.init()
    first = cage.keeper()
    kill(first)
    done = cage.run("ls", "/opt/installed")
    assert (done.code, done.err) == (0, b"")
    assert cage.init() == init
    assert cage.keeper() not in (0, first)


def test_keeper_killed_and_followed_from_another_cgroup(cage: Cage) -> None:
    """As when the next message comes from another terminal's scope."""
    from .cages import own_cgroup

    cage.text("true")
    kill(cage.keeper())
    other = own_cgroup() / f"other-{os.getpid()}"
    other.mkdir()

    def move() -> None:
        (other / "cgroup.procs").write_text("0")

    try:
        with cage.popen("sh", "-c", "echo ready; sleep 1000 & wait", stdout=subprocess.PIPE,
                        preexec_fn=move) as process:  # fmt: skip
            assert line(process) == "ready"
            process.kill()
            assert wait_until(lambda: not cage.inside_pids(), GONE_S)
        cage.stop()
    finally:
        assert wait_until(lambda: not (other / "cgroup.procs").read_text(), 5)
        for directory, _, _ in os.walk(other, topdown=False):
            os.rmdir(directory)


def test_keeper_killed_while_the_container_starts_is_replaced(cage: Cage) -> None:
    with cage.popen("true", stderr=subprocess.PIPE) as process:
        assert wait_until(lambda: cage.names() and keepers(cage.name()), 10)
        kill(keepers(cage.name())[0])
        assert process.wait(10) in (0, 121)
    assert cage.text("echo", "next") == "next\n"


def conmon(cage: Cage) -> int:
    return int(cage.container()["State"]["ConmonPid"])


def test_killed_conmon_changes_nothing(cage: Cage) -> None:
    cage.text("true")
    with cage.popen("cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        kill(conmon(cage))
        assert cage.text("echo", "served") == "served\n"
        out, _ = process.communicate(b"still here", timeout=5)
        assert (process.returncode, out) == (0, b"still here")
    cage.stop()
    assert cage.text("echo", "started again") == "started again\n"


STOPPED = b"the cage was stopped from outside"


@pytest.mark.parametrize(
    "how",
    [("kill",), ("stop", "--time", "1"), ("rm", "--force", "--time", "0")],
    ids=lambda how: how[0],
)
def test_container_ended_from_outside_is_told_and_comes_again(
    make_cage: Callable[..., Cage], how: tuple[str, ...]
) -> None:
    cage = make_cage()
    cage.text("sh", "-c", "touch /opt/installed; touch ~/kept")
    with tree(cage, "mark-outside", stderr=subprocess.PIPE) as process:
        done = podman(*how, cage.name())
        assert done.returncode == 0, done.stderr
        assert process.wait(5) in (-9, -15)
        assert process.stderr is not None
        assert STOPPED in process.stderr.read()
    done_next = cage.run("sh", "-c", "ls ~/kept; ls /opt/installed")
    home = os.path.expanduser("~")
    if how[0] == "rm":
        assert done_next.code != 0
        assert done_next.out == f"{home}/kept\n".encode()
        assert b"is gone" in done_next.err
        assert b"is lost" in done_next.err
    else:
        assert done_next.err == b""
        assert done_next.out == f"{home}/kept\n/opt/installed\n".encode()


def test_killed_init_comes_again(cage: Cage) -> None:
    cage.text("touch", "/opt/installed")
    kill(cage.init())
    done = cage.run("ls", "/opt/installed")
    assert (done.code, done.out, done.err) == (0, b"/opt/installed\n", b"")


def test_pruned_container_is_told_and_made_anew(cage: Cage) -> None:
    cage.text("sh", "-c", "touch /opt/installed; touch ~/kept")
    cage.stop()
    done = podman("system", "prune", "--force")
    assert done.returncode == 0, done.stderr
    assert cage.container() == {}
    told = cage.run("sh", "-c", "ls ~/kept && test ! -e /opt/installed")
    assert told.code == 0
    assert told.err.count(b"cagewrap: ") == 1
    assert b"is lost" in told.err
    again = cage.run("true")
    assert (again.code, again.err) == (0, b"")


def pause_pids() -> list[int]:
    pid_file = Path(os.environ["XDG_RUNTIME_DIR"]) / "libpod/tmp/pause.pid"
    return [int(pid_file.read_text())] if pid_file.exists() else []


def test_killed_pause_process_changes_nothing(cage: Cage) -> None:
    cage.text("touch", "/opt/installed")
    for pid in pause_pids():
        kill(pid)
    assert cage.text("echo", "running") == "running\n"
    cage.stop()
    assert cage.text("ls", "/opt/installed") == "/opt/installed\n"


def test_podman_system_migrate_stops_the_cage_and_it_comes_again(cage: Cage) -> None:
    cage.text("touch", "/opt/installed")
    done = podman("system", "migrate")
    assert done.returncode == 0, done.stderr
    assert wait_until(lambda: not keepers(cage.name()), 5)
    assert cage.text("ls", "/opt/installed") == "/opt/installed\n"


def test_state_of_another_boot_is_not_believed(cage: Cage) -> None:
    """After a reboot: container stopped, /run empty, and the pids are those of other processes."""
    import json

    cage.text("touch", "/opt/installed")
    cage.stop()
    state_file = cage.cages_dir / cage.name() / "state.json"
    with subprocess.Popen(["sleep", "1000"]) as bystander:
        started = int(
            Path(f"/proc/{bystander.pid}/stat").read_text().rpartition(")")[2].split()[19]
        )
        state = read_json(state_file) | {
            "boot_id": "00000000-0000-0000-0000-000000000000",
            "keeper_pid": bystander.pid,
            "keeper_start": started,
            "init_pid": bystander.pid,
            "init_start": started,
            "cgroup": "",
        }
        state_file.write_text(json.dumps(state))
        shutil.rmtree(Path(os.environ["XDG_RUNTIME_DIR"]) / "cagewrap")
        assert cage.text("ls", "/opt/installed") == "/opt/installed\n"
        assert process_state(bystander.pid) == "S"
        bystander.kill()


def test_unreadable_state_is_no_end(cage: Cage) -> None:
    cage.text("touch", "/opt/installed")
    cage.stop()
    (cage.cages_dir / cage.name() / "state.json").write_text('{"format": 1, "cut of')
    done = cage.run("true")
    assert done.code == 0


def test_keepers_killed_one_after_the_other_lose_no_message(cage: Cage) -> None:
    """Each leaves a background process that the next one kills, by the cgroup of a message."""
    for _ in range(8):
        cage.text("sh", "-c", "sleep 1000 >/dev/null 2>&1 &")
        kill(cage.keeper())
        assert cage.text("echo", "next") == "next\n"


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_what_a_killed_podman_had_the_runtime_make_is_forgotten(
    make_cage: Callable[..., Cage], runtime: str, tmp_path: Path
) -> None:
    """podman was killed between the runtime's `create` and writing that down."""
    cage = make_cage("--runtime", runtime)
    cage.text("sh", "-c", "echo kept >/kept")
    state = RUNTIME_DIR / runtime / cage.state()["container_id"]
    shutil.copytree(state, tmp_path / "state", ignore=shutil.ignore_patterns("exec.fifo"))
    cage.stop()
    shutil.copytree(tmp_path / "state", state, dirs_exist_ok=True)
    assert cage.text("cat", "/kept") == "kept\n"
