"""Starting a program of the host: found on PATH, executed from a copy, with these descriptors."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from cagewrap.keeper import spawn

PATH = "/usr/local/bin:/usr/bin:/bin"


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def output(program: spawn.Program, argv: list[str], env: dict[str, str] | None = None) -> bytes:
    """What a program writes to its stdout."""
    reader, writer = os.pipe()
    null = os.open(os.devnull, os.O_RDWR)
    pid = spawn.spawn(program, argv, env or {}, [(null, 0), (writer, 1), (null, 2)])
    os.close(writer)
    os.close(null)
    with open(reader, "rb") as file:
        said = file.read()
    assert ended(pid) == 0
    return said


def test_a_program_is_run_from_a_sealed_copy_of_it() -> None:
    program = spawn.Program("readlink", PATH)
    assert output(program, ["readlink", "/proc/self/exe"]) == os.fsencode(
        os.path.realpath(program.path) + "\n"
    )
    program.hold_copy()
    try:
        assert b"memfd:" in output(program, ["readlink", "/proc/self/exe"])
        with pytest.raises(OSError):
            os.write(program.copy, b"x")
    finally:
        program.close()


def test_it_inherits_what_is_named_and_nothing_else_of_ours() -> None:
    ours = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 100)
    try:
        listed = output(spawn.Program("ls", PATH), ["ls", "/proc/self/fd"])
    finally:
        os.close(ours)
    assert {b"0", b"1", b"2"} <= set(listed.split())
    assert b"%d" % ours not in listed.split()


def test_signals_that_python_ignores_are_not_ignored_in_it() -> None:
    said = output(spawn.Program("grep", PATH), ["grep", "SigIgn", "/proc/self/status"])
    assert int(said.split()[1], 16) == 0


def test_a_missing_program_is_told_before_anything_is_forked() -> None:
    with pytest.raises(FileNotFoundError, match="nosuch-program"):
        spawn.Program("nosuch-program", PATH)


def test_what_cannot_be_executed_is_told_in_the_log(tmp_path: Path) -> None:
    script = tmp_path / "broken"
    script.write_bytes(b"\x7fELF no")
    script.chmod(0o755)
    log = tmp_path / "log"
    pid = spawn.spawn(spawn.Program("broken", str(tmp_path)), ["broken"], {}, [], log=str(log))
    assert ended(pid) == 127
    assert log.read_text().startswith("broken: ")
