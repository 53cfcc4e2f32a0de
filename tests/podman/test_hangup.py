"""An agent that opens its pipes in the harness's direction does not outlive the harness."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from .cages import PROGRAMS, Cage, Word, wait_until
from .conftest import Latencies

GONE_S = 2.0
QUIET_S = 2.0
"""Four looks."""
KEEPS_UP = "exec 8>/proc/self/fd/0 9</proc/self/fd/1; echo up >&2; exec sleep 1000"
LEFT = 'trap "" HUP; "$@"; :'
"""A shell that is the shim's parent, and can be killed."""


@contextmanager
def left_alone(
    cage: Cage, script: str, *words: Word, **streams: int
) -> Iterator[subprocess.Popen[bytes]]:
    """A shell on the host in a session of its own, whose commands outlive it when it is killed."""
    with subprocess.Popen(
        ["sh", "-c", script, "sh", *words],
        cwd=cage.project, env=cage.env, start_new_session=True, **streams,
    ) as shell:  # fmt: skip
        try:
            yield shell
        finally:
            if shell.poll() is None:
                os.killpg(shell.pid, signal.SIGKILL)


def is_up(stream: IO[bytes] | None) -> bool:
    assert stream is not None
    return stream.readline() == b"up\n"


def open_pipe() -> tuple[IO[bytes], IO[bytes]]:
    reader, writer = os.pipe()
    return open(reader, "rb"), open(writer, "wb")


@pytest.mark.parametrize("kind", ["pipes", "file"])
def test_agent_that_holds_the_harness_ends_dies_with_the_harness(
    identity_cage: Cage, tmp_path: Path, latencies: Latencies, kind: str
) -> None:
    where = kind if kind != "file" else f"file:{tmp_path / 'out'}"
    argv = [*identity_cage.command(), "sh", "-c", KEEPS_UP]
    with subprocess.Popen(
        [sys.executable, PROGRAMS / "harness.py", where, *argv],
        cwd=identity_cage.project, env=identity_cage.env,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as harness:  # fmt: skip
        assert is_up(harness.stderr)
        time.sleep(QUIET_S)
        assert identity_cage.inside_programs("sleep"), "it lives as long as its harness"
        harness.kill()
        began = time.monotonic()
        assert wait_until(lambda: not identity_cage.inside_pids(), GONE_S)
        latencies.add(f"harness killed, its ends held inside ({kind})", time.monotonic() - began)


def test_reader_on_the_host_is_enough_when_the_parent_is_gone(shared_cage: Cage) -> None:
    """`cagewrap -- … | reader &` goes on when the shell ends, whatever the agent opened."""
    ours, theirs = open_pipe()
    with (
        ours,
        theirs,
        left_alone(
            shared_cage, LEFT, *shared_cage.command(), "sh", "-c", KEEPS_UP,
            stdin=subprocess.PIPE, stdout=theirs.fileno(), stderr=subprocess.PIPE,
        ) as shell,
    ):  # fmt: skip
        theirs.close()
        assert is_up(shell.stderr)
        shell.kill()
        time.sleep(QUIET_S)
        assert shared_cage.inside_programs("sleep")
        ours.close()
        assert wait_until(lambda: not shared_cage.inside_pids(), GONE_S)


def test_pipe_between_two_messages_of_a_cage_is_no_hiding_place(shared_cage: Cage) -> None:
    """`cagewrap -- a | cagewrap -- b &`: the reader is in the cage, and was given there."""
    shim = " ".join(str(word) for word in shared_cage.command())
    script = (
        f"{{ {shim} sh -c 'while echo tick; do sleep 0.1; done' | "
        f"{shim} sh -c 'echo up; cat >/dev/null'; }} & wait"
    )
    ours, theirs = open_pipe()
    with (
        ours,
        theirs,
        left_alone(shared_cage, script, stdin=subprocess.PIPE, stdout=theirs.fileno()) as shell,
    ):
        theirs.close()
        assert is_up(ours)
        # Its two shells, the parents of the shims.
        for pid in reversed(descendant_shells(shell.pid)):
            os.kill(pid, signal.SIGKILL)
        time.sleep(QUIET_S)
        assert len(shared_cage.agents()) == 2
        ours.close()
        assert wait_until(lambda: not shared_cage.inside_pids(), 2 * GONE_S)


def descendant_shells(pid: int) -> list[int]:
    """A shell and those it forked of itself."""
    found = [pid]
    for one in found:
        children = Path(f"/proc/{one}/task/{one}/children").read_text().split()
        found += [int(c) for c in children if Path(f"/proc/{c}/comm").read_text() == "sh\n"]
    return found
