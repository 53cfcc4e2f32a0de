"""The frozen shim is one process; however it ends, what its message started ends with it."""

import signal
import subprocess
from pathlib import Path

import pytest

from podman.cages import GONE_S, PROGRAMS, Cage, Shim, is_alive, read_bytes, wait_until

from .builds import children, executable

FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")


def start_tree(cage: Cage, mark: str) -> Shim:
    """An agent with processes that want to outlive it."""
    shim = cage.popen(
        "python3", PROGRAMS / "tree.py", mark, "stay",
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert shim.stdout is not None
    assert shim.stdout.readline().startswith(b"ready")
    return shim


def names_in_tmp() -> set[str]:
    return {path.name for path in Path("/tmp").iterdir()}


def test_is_one_childless_process(cage: Cage) -> None:
    cage.text("true")
    with start_tree(cage, "childless") as shim:
        assert Path(executable(shim.pid)).name == "cagewrap"
        assert children(shim.pid) == []
        assert read_bytes(f"/proc/{shim.pid}/comm").strip() == b"cagewrap"
        shim.kill()


@pytest.mark.parametrize("is_cold", [True, False], ids=["cold", "warm"])
def test_killed_shim_takes_everything_along(cage: Cage, is_cold: bool) -> None:
    if not is_cold:
        cage.text("true")
    before = names_in_tmp()
    with start_tree(cage, "killed") as shim:
        assert len(cage.inside_programs("killed")) > 5
        shim.kill()
        assert wait_until(lambda: cage.inside_programs("killed") == [], GONE_S + 1)
    assert names_in_tmp() - before == set()
    assert cage.text("echo", "next") == "next\n"


@pytest.mark.parametrize("name", FORWARDED)
def test_ends_by_the_signal_that_ended_the_agent(cage: Cage, name: str) -> None:
    cage.text("true")
    number = signal.Signals[name]
    with cage.popen("sh", "-c", "echo ready; exec sleep 1000", stdout=subprocess.PIPE) as shim:
        assert shim.stdout is not None
        assert shim.stdout.readline() == b"ready\n"
        assert wait_until(lambda: cage.inside_programs("sleep"), 5)
        shim.send_signal(number)
        assert shim.wait(10) == -number


def test_passes_signals_on(cage: Cage) -> None:
    with cage.popen("python3", PROGRAMS / "trap.py", *FORWARDED, stdout=subprocess.PIPE) as shim:
        assert shim.stdout is not None
        assert shim.stdout.readline() == b"ready\n"
        for name in FORWARDED:
            shim.send_signal(signal.Signals[name])
            assert shim.stdout.readline() == name.encode() + b"\n"
        shim.kill()


def test_keeper_is_of_a_session_of_its_own(cage: Cage) -> None:
    """And lives on when the shim that started it is killed."""
    with start_tree(cage, "mark") as shim:
        keeper = cage.keeper()
        fields = read_bytes(f"/proc/{keeper}/stat").rpartition(b")")[2].split()
        assert int(fields[3]) not in (0, shim.pid)
        shim.kill()
    assert wait_until(lambda: cage.inside_pids() == [], GONE_S + 1)
    assert is_alive(keeper)
    assert cage.keeper() == keeper
