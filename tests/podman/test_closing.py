"""The end of a stream is seen at once on the other side, whoever ends it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time

from .cages import Cage, seconds_until, wait_until

AT_ONCE_S = 0.9


def test_agent_that_closes_stdout_is_seen_to_end_it(shared_cage: Cage) -> None:
    script = "echo last; exec 1>&-; sleep 3; exit 8"
    with shared_cage.popen("sh", "-c", script, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read() == b"last\n"
        ended = time.monotonic()
        assert process.poll() is None
        assert process.wait(10) == 8
        assert time.monotonic() - ended > 1.5


def test_agent_that_closes_stderr_is_seen_to_end_it(shared_cage: Cage) -> None:
    """The shim keeps stderr for its own notes, so this one ends with the shim. Not later."""
    with shared_cage.popen("sh", "-c", "echo x >&2; exec 2>&-", stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert process.stderr.read() == b"x\n"
        assert process.wait(5) == 0


def test_agent_that_closes_stdin_breaks_the_pipe(shared_cage: Cage) -> None:
    with shared_cage.popen(
        "sh", "-c", "exec 0<&-; echo closed; sleep 1", stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"closed\n"

        def is_broken() -> bool:
            try:
                os.write(process.stdin.fileno(), b"x")  # type: ignore[union-attr]
            except BrokenPipeError:
                return True
            return False

        assert wait_until(is_broken, AT_ONCE_S)
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def test_reader_that_goes_ends_the_writer_by_sigpipe(shared_cage: Cage) -> None:
    """`cagewrap -- yes | head -1`: by SIGPIPE, as natively, long before anyone looks for it."""
    with shared_cage.popen(
        "yes", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"y\n"
        process.stdout.close()
        assert seconds_until(lambda: process.poll() is not None, 2.0) < AT_ONCE_S
        assert process.returncode == -13
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_agent_outlives_its_broken_pipe_to_clean_up(shared_cage: Cage) -> None:
    """A shell whose `yes` dies of SIGPIPE goes on for a moment."""
    script = "yes; echo $? >../after"
    (shared_cage.project / "below").mkdir(exist_ok=True)
    with shared_cage.popen(
        "sh", "-c", script, cwd=shared_cage.project / "below", stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        process.wait(5)
    assert (shared_cage.project / "after").read_text() == "141\n"


def test_reader_of_stderr_that_goes_does_not_end_the_agent(shared_cage: Cage) -> None:
    script = "sleep 1.2; echo still here; exit 3"
    with shared_cage.popen(
        "sh", "-c", script, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        process.stderr.close()
        assert process.stdout.read() == b"still here\n"
        assert process.wait(5) == 3


def test_writer_that_goes_is_the_end_of_stdin_and_no_more(shared_cage: Cage) -> None:
    """`echo prompt | cagewrap -- claude -p`: the writer is gone long before the answer."""
    with shared_cage.popen(
        "sh", "-c", "cat; sleep 1.5; echo answer", stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        out, _ = process.communicate(b"prompt\n", timeout=10)
        assert (process.returncode, out) == (0, b"prompt\nanswer\n")


def test_socket_half_closed_by_the_harness_is_the_end_of_stdin_and_no_more(
    shared_cage: Cage,
) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        script = "cat; sleep 1.5; echo answer"
        with shared_cage.popen("sh", "-c", script, stdin=theirs, stdout=theirs) as process:
            theirs.close()
            ours.sendall(b"prompt\n")
            ours.shutdown(socket.SHUT_WR)
            assert process.wait(10) == 0
        assert ours.recv(100) + ours.recv(100) == b"prompt\nanswer\n"
