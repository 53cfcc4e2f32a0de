"""The agent's end is the shim's own: the exit code, or the signal."""

from __future__ import annotations

import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from .cages import Cage

THREADS = 4

# A process cannot die of these: they are ignored by default, or stop it.
HARMLESS = {"SIGCHLD", "SIGCONT", "SIGURG", "SIGWINCH", "SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU"}
DEADLY = [
    *(one for one in signal.Signals if one.name not in HARMLESS and one < signal.SIGRTMIN),
    signal.SIGRTMIN,
    signal.SIGRTMAX,
]


def test_every_exit_code_arrives(identity_cage: Cage) -> None:
    def code(number: int) -> int:
        return identity_cage.run("sh", "-c", f"exit {number}", stdin=subprocess.DEVNULL).code

    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(code, range(256))) == list(range(256))


def test_every_deadly_signal_arrives(identity_cage: Cage) -> None:
    """Also those that dump core: no dump, neither of the agent nor of the shim."""

    def code(number: int) -> int:
        return identity_cage.run("sh", "-c", f"kill -{number:d} $$; sleep 9").code

    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(code, DEADLY)) == [-number for number in DEADLY]
    assert set(os.listdir(identity_cage.project)) <= {".claude", ".git", ".vscode"}


def test_codes_above_128_are_codes_and_no_signals(identity_cage: Cage) -> None:
    assert identity_cage.run("sh", "-c", "exit 143").code == 143
    assert identity_cage.run("sh", "-c", "sh -c 'kill -TERM $$'; exit $?").code == 143


def test_output_before_a_deadly_signal_arrives(identity_cage: Cage) -> None:
    done = identity_cage.run("sh", "-c", "head -c 60000 /dev/zero; kill -KILL $$")
    assert (done.code, len(done.out), done.err) == (-9, 60000, b"")


def test_missing_program_is_127(identity_cage: Cage) -> None:
    done = identity_cage.run("no-such-program", "--flag")
    assert (done.code, done.out) == (127, b"")
    assert b"no-such-program" in done.err
    assert b"  fix: " in done.err


def test_program_that_is_none_is_126(identity_cage: Cage) -> None:
    done = identity_cage.run("/etc/passwd")
    assert (done.code, done.out) == (126, b"")
    assert b"/etc/passwd" in done.err


def test_directory_as_program_is_126(identity_cage: Cage) -> None:
    done = identity_cage.run("/etc")
    assert (done.code, done.out) == (126, b"")


def test_a_program_of_any_length_is_told_in_lines_that_harnesses_read(cage: Cage) -> None:
    done = cage.run("x" * 100_000)
    assert (done.code, done.out) == (126, b"")
    assert 0 < max(map(len, done.err.splitlines())) < 64 << 10


def test_empty_program_is_127(identity_cage: Cage) -> None:
    done = identity_cage.run("")
    assert (done.code, done.out) == (127, b"")


def test_no_command_is_a_usage_error(identity_cage: Cage) -> None:
    assert identity_cage.run().code == 110


@pytest.mark.parametrize("limit", [0, -1])
def test_no_core_is_dumped_by_the_shim(identity_cage: Cage, limit: int) -> None:
    script = f'ulimit -c {"unlimited" if limit < 0 else limit}; exec "$@"'
    command = ["sh", "-c", script, "sh", *identity_cage.command(), "sh", "-c", "kill -SEGV $$"]
    done = subprocess.run(
        command, cwd=identity_cage.place.config_home.parent / "project", env=identity_cage.env,
        stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=False,
    )  # fmt: skip
    assert done.returncode == -11
    cores = [name for name in os.listdir(identity_cage.project) if name.startswith("core")]
    for name in cores:
        os.unlink(identity_cage.project / name)
    assert len(cores) <= (1 if limit < 0 else 0)
