"""Signals sent to the shim reach the agent; job control works on both."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from .cages import PROGRAMS, Cage, process_state, read_bytes, wait_until

FORWARDED = (
    "SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGCONT",
    "SIGTSTP",
)  # fmt: skip
SOON_S = 3.0


@contextmanager
def trap(
    cage: Cage, *names: str, before: tuple[str, ...] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """A program that prints these signals, once it is ready; killed at the end."""
    argv = [*before, *cage.command(), "python3", PROGRAMS / "trap.py", *names]
    process = subprocess.Popen(
        argv, cwd=cage.project, env=cage.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    with process:
        try:
            assert line(process) == "ready"
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()
            wait_until(lambda: not cage.inside_pids(), SOON_S)


def line(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode().strip()


def test_each_signal_reaches_the_agent(identity_cage: Cage) -> None:
    with trap(identity_cage, *FORWARDED) as process:
        for name in FORWARDED:
            process.send_signal(getattr(signal, name))
            assert line(process) == name
        assert process.poll() is None


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"])
def test_agent_that_dies_of_a_signal_takes_the_shim_along(shared_cage: Cage, name: str) -> None:
    number = getattr(signal, name)
    with shared_cage.popen(
        "sh", "-c", "echo ready; exec sleep 100", stdout=subprocess.PIPE
    ) as process:
        assert line(process) == "ready"
        process.send_signal(number)
        assert process.wait(SOON_S) == -number


def test_only_the_agent_itself_is_signalled(shared_cage: Cage) -> None:
    """As `kill PID` does natively: a child of the agent's in the same group gets nothing."""
    script = 'sh -c "trap \'echo child\' TERM; sleep 0.6 & wait; wait" & trap "echo agent" TERM; '
    script += "echo ready; wait; wait"
    with shared_cage.popen("sh", "-c", script, stdout=subprocess.PIPE) as process:
        assert line(process) == "ready"
        process.terminate()
        assert line(process) == "agent"
        assert process.stdout is not None
        assert process.stdout.read() == b""


def test_many_signals_all_arrive(shared_cage: Cage) -> None:
    with trap(shared_cage, "SIGUSR1", "SIGUSR2") as process:
        for _ in range(50):
            process.send_signal(signal.SIGUSR1)
            assert line(process) == "SIGUSR1"
            process.send_signal(signal.SIGUSR2)
            assert line(process) == "SIGUSR2"


def is_stopped(process: subprocess.Popen[bytes], within_s: float) -> bool:
    """Whether our child has stopped, as a shell with job control sees it."""
    found = [0, 0]

    def look() -> bool:
        found[:] = os.waitpid(process.pid, os.WUNTRACED | os.WNOHANG)
        return found[0] == process.pid

    return wait_until(look, within_s) and os.WIFSTOPPED(found[1])


def test_tstp_stops_agent_and_shim_and_cont_resumes_both(identity_cage: Cage) -> None:
    script = "echo ready; i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done"
    with identity_cage.popen("sh", "-c", script, stdout=subprocess.PIPE) as process:
        assert line(process) == "ready"
        [agent] = identity_cage.agents()
        for _ in range(3):
            process.send_signal(signal.SIGTSTP)
            assert is_stopped(process, SOON_S)
            assert process_state(agent) == "T"
            process.send_signal(signal.SIGCONT)
            assert wait_until(lambda: process_state(agent) in "RS", SOON_S)
            assert wait_until(lambda: process_state(process.pid) in "RS", SOON_S)
        process.terminate()
        assert process.wait(SOON_S) == -15


def test_agent_that_stops_itself_stops_the_shim(shared_cage: Cage) -> None:
    script = "echo ready; kill -STOP $$; echo resumed; exit 3"
    with shared_cage.popen("sh", "-c", script, stdout=subprocess.PIPE) as process:
        assert line(process) == "ready"
        assert is_stopped(process, SOON_S)
        process.send_signal(signal.SIGCONT)
        assert line(process) == "resumed"
        assert process.wait(SOON_S) == 3


def test_stopped_shim_that_is_killed_takes_the_agent_along(shared_cage: Cage) -> None:
    with shared_cage.popen("sh", "-c", "echo ready; sleep 100", stdout=subprocess.PIPE) as process:
        assert line(process) == "ready"
        process.send_signal(signal.SIGTSTP)
        assert is_stopped(process, SOON_S)
        process.kill()
        assert process.wait(SOON_S) == -9
    assert wait_until(lambda: not shared_cage.inside_pids(), 2)


def test_ignored_hangup_stays_ignored(shared_cage: Cage) -> None:
    """Under `nohup` the terminal's end is not the agent's."""
    with trap(shared_cage, "SIGHUP", "SIGUSR1", before=("nohup",)) as process:
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGUSR1)
        assert line(process) == "SIGUSR1"


@pytest.mark.parametrize("runtime", ["crun", "runc"])
def test_agent_starts_with_default_signals(make_cage: Callable[..., Cage], runtime: str) -> None:
    """Whatever the harness that came first, and with it the keeper, had ignored or blocked."""

    cage = make_cage("--runtime", runtime)

    def ignore() -> None:
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2, signal.SIGTERM])

    assert cage.run("true", preexec_fn=ignore).code == 0
    script = "grep -E '^Sig(Blk|Ign)' /proc/self/status"
    masks = cage.text("sh", "-c", script).split()
    assert int(masks[1], 16) == 0, "blocked"
    assert int(masks[3], 16) == 0, "ignored"
    with cage.popen("sh", "-c", "echo ready; exec sleep 100", stdout=subprocess.PIPE) as process:
        assert line(process) == "ready"
        process.send_signal(signal.SIGINT)
        assert process.wait(SOON_S) == -2


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_signal_before_the_agent_has_started_is_not_lost(cage: Cage, name: str) -> None:
    """In the half second in which the container starts."""
    number = getattr(signal, name)
    with cage.popen("sleep", "30", stdin=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:

        def takes_signals() -> bool:
            for status in read_bytes(f"/proc/{process.pid}/status").splitlines():
                if status.startswith(b"SigCgt:"):
                    return bool(int(status.split()[1], 16) >> (signal.SIGTERM - 1) & 1)
            return False

        assert wait_until(takes_signals, 10)
        process.send_signal(number)
        assert process.wait(10) == -number
    assert wait_until(lambda: not cage.inside_pids(), 3)


def test_signal_while_the_shim_looks_for_its_cage_ends_it(cage: Cage) -> None:
    """As early as it gets: no agent, no traceback."""
    with cage.popen("sleep", "30", stdin=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert wait_until(lambda: b"cagewrap" in read_bytes(f"/proc/{process.pid}/cmdline"), 5)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == -15
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert not cage.names() or wait_until(lambda: not cage.inside_pids(), 3)
