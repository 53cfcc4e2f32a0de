"""Files, directories and devices stay outside: the cage gets a pipe, the file what it wrote."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from .cages import PROGRAMS, Cage, wait_until

MIB = 1 << 20


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "file"


def opened(cage: Cage, file: Path, mode: str, *argv: str, **options: object) -> int:
    """Run a command with that file as stdout; its exit code."""
    with open(file, mode) as out:
        done = cage.run(*argv, stdout=out.fileno(), **options)
    return done.code


# --- as input -----------------------------------------------------------------------------------


def test_file_as_stdin_is_read_through_a_pipe(shared_cage: Cage, file: Path) -> None:
    file.write_bytes(os.urandom(3 * MIB))
    with open(file, "rb") as source:
        done = shared_cage.run("cat", stdin=source.fileno())
        assert done.out == file.read_bytes()
        assert source.tell() == 3 * MIB
    with open(file, "rb") as source:
        kind = shared_cage.run("stat", "-L", "-c", "%F", "/proc/self/fd/0", stdin=source.fileno())
    assert kind.out == b"fifo\n"


@pytest.mark.parametrize("read", [0, 1, 1000, 70_000, 200_000, 200_001, 3_000_000])
@pytest.mark.parametrize("size", [200_001, 5_000_000])
def test_offset_afterwards_is_what_the_agent_read(
    shared_cage: Cage, file: Path, size: int, read: int
) -> None:
    """`(cagewrap -- head -1; cat) <file`: who reads next goes on where the agent stopped."""
    file.write_bytes(bytes(size))
    script = "import os, sys\nn = int(sys.argv[1])\nwhile n: n -= len(os.read(0, n)) or n"
    with open(file, "rb") as source:
        assert shared_cage.run("python3", "-c", script, str(read), stdin=source.fileno()).code == 0
        assert source.tell() == min(size, read)


def test_offset_after_a_read_to_the_end_is_the_end(shared_cage: Cage, file: Path) -> None:
    """Twenty times: the end is reported and the offset set before the shim is let go."""
    file.write_bytes(b"once\n")
    for _ in range(20):
        with open(file, "rb") as source:
            assert shared_cage.run("cat", stdin=source.fileno()).out == b"once\n"
            assert source.read() == b""


def test_file_is_read_from_where_it_stands(shared_cage: Cage, file: Path) -> None:
    file.write_bytes(b"first\nsecond\n")
    with open(file, "rb") as source:
        os.lseek(source.fileno(), 6, os.SEEK_SET)
        assert shared_cage.run("cat", stdin=source.fileno()).out == b"second\n"


def test_file_opened_for_writing_only_reads_as_empty(shared_cage: Cage, file: Path) -> None:
    with open(file, "wb") as source:
        assert shared_cage.run("cat", stdin=source.fileno()).code == 0


# --- as output ----------------------------------------------------------------------------------


def test_file_as_stdout_holds_all_when_the_shim_ends(shared_cage: Cage, file: Path) -> None:
    assert opened(shared_cage, file, "wb", "head", "-c", str(9 * MIB), "/dev/zero") == 0
    assert file.stat().st_size == 9 * MIB


def test_append_and_truncate_are_the_callers(shared_cage: Cage, file: Path) -> None:
    file.write_bytes(b"before\n")
    assert opened(shared_cage, file, "ab", "echo", "after") == 0
    assert file.read_bytes() == b"before\nafter\n"
    assert opened(shared_cage, file, "wb", "echo", "alone") == 0
    assert file.read_bytes() == b"alone\n"


def test_output_goes_on_where_the_caller_stopped(shared_cage: Cage, file: Path) -> None:
    """`{ echo a; cagewrap -- echo b; echo c; } >file`."""
    with open(file, "wb", buffering=0) as out:
        out.write(b"a\n")
        shared_cage.run("echo", "b", stdout=out.fileno())
        out.write(b"c\n")
    assert file.read_bytes() == b"a\nb\nc\n"


def test_both_streams_to_one_file_keep_their_order(shared_cage: Cage, file: Path) -> None:
    script = "i=0; while [ $i -lt 300 ]; do echo o$i; echo e$i >&2; i=$((i+1)); done"
    with open(file, "wb") as out:
        done = shared_cage.run("sh", "-c", script, stdout=out.fileno(), stderr=out.fileno())
    assert done.code == 0
    assert file.read_text() == "".join(f"o{i}\ne{i}\n" for i in range(300))


def test_stderr_to_a_file_of_its_own(shared_cage: Cage, file: Path) -> None:
    with open(file, "wb") as err:
        done = shared_cage.run("sh", "-c", "echo out; echo err >&2", stderr=err.fileno())
    assert (done.out, file.read_bytes()) == (b"out\n", b"err\n")


def test_file_in_the_project_may_be_both_written_to_and_relayed_to(shared_cage: Cage) -> None:
    file = shared_cage.project / "log"
    script = "echo relayed; sleep 0.1; cat log; exit 2"
    assert opened(shared_cage, file, "wb", "sh", "-c", script) == 2
    assert file.read_bytes().count(b"relayed\n") >= 1


def test_background_process_goes_on_writing_to_the_file(shared_cage: Cage, file: Path) -> None:
    script = "(sleep 0.8; echo late) & echo early"
    quiet = {"stderr": subprocess.DEVNULL}
    assert opened(shared_cage, file, "wb", "sh", "-c", script, **quiet) == 0
    assert file.read_bytes() == b"early\n"
    assert wait_until(lambda: file.read_bytes() == b"early\nlate\n", 5)
    assert wait_until(lambda: not shared_cage.inside_pids(), 2)


def test_background_process_that_never_stops_writing_does_not_hold_the_shim(
    shared_cage: Cage,
) -> None:
    """`yes &` into a file: the end of the agent is the end of the message; the keeper serves on."""
    with open("/dev/zero", "r+b", buffering=0) as sink:
        with shared_cage.popen("sh", "-c", "yes & echo $!", stdout=sink.fileno()) as process:
            assert process.wait(5) == 0
        assert shared_cage.text("echo", "served") == "served\n"
        assert shared_cage.run("pkill", "-x", "yes").code == 0
    assert wait_until(lambda: not shared_cage.inside_pids(), 2)


def test_disk_full_is_said_and_ends_the_writer(shared_cage: Cage) -> None:
    with open("/dev/full", "wb", buffering=0) as full:
        done = shared_cage.run("head", "-c", str(4 * MIB), "/dev/zero", stdout=full.fileno())
    assert done.code != 0
    assert b"No space left on device" in done.err


def test_file_opened_for_reading_only_cannot_be_written(shared_cage: Cage, file: Path) -> None:
    file.write_bytes(b"as it was")
    with open(file, "rb") as out:
        done = shared_cage.run("sh", "-c", "echo x; sleep 0.2; echo y", stdout=out.fileno())
    assert done.code != 0 or b"cannot be stored" in done.err
    assert file.read_bytes() == b"as it was"


def test_terminal_device_of_nobody_is_not_handed_in(shared_cage: Cage) -> None:
    """A pty as stdin alone: the cage could push keys into it (TIOCSTI)."""
    master, slave = os.openpty()
    try:
        os.write(master, b"typed\n")
        done = shared_cage.run("sh", "-c", "test -t 0; echo $?; head -1", stdin=slave)
    finally:
        os.close(master)
        os.close(slave)
    assert done.out == b"1\ntyped\n"


# --- the attack ---------------------------------------------------------------------------------

SECRET = b"only the owner may see this"


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR])
def test_root_inside_cannot_write_to_the_file_behind_stdin(
    shared_cage: Cage, file: Path, flags: int
) -> None:
    file.write_bytes(SECRET)
    file.chmod(0o444)
    fd = os.open(file, os.O_RDONLY) if flags == os.O_RDONLY else -1
    if fd < 0:
        file.chmod(0o644)
        fd = os.open(file, flags)
    mode = stat.S_IMODE(file.stat().st_mode)
    try:
        done = shared_cage.run("python3", PROGRAMS / "reopen.py", "found", stdin=fd)
    finally:
        os.close(fd)
    assert done.code == 0, done.err
    assert file.read_bytes() == SECRET
    assert stat.S_IMODE(file.stat().st_mode) == mode


@pytest.mark.parametrize("which", ["stdout", "stderr"])
def test_root_inside_cannot_read_the_file_behind_its_output(
    shared_cage: Cage, file: Path, which: str
) -> None:
    file.write_bytes(SECRET)
    fd = os.open(file, os.O_WRONLY | os.O_APPEND)
    mode = stat.S_IMODE(file.stat().st_mode)
    try:
        done = shared_cage.run("python3", PROGRAMS / "reopen.py", "found", **{which: fd})
    finally:
        os.close(fd)
    assert done.code == 0, done.err
    assert SECRET not in (shared_cage.project / "found").read_bytes()
    assert file.read_bytes().startswith(SECRET)
    assert stat.S_IMODE(file.stat().st_mode) == mode


@pytest.mark.parametrize("which", ["stdin", "stdout", "stderr"])
def test_root_inside_cannot_enter_the_directory_behind_a_descriptor(
    shared_cage: Cage, tmp_path: Path, which: str
) -> None:
    directory = tmp_path / "outside"
    directory.mkdir()
    (directory / "secret-name").touch()
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    mode = stat.S_IMODE(directory.stat().st_mode)
    try:
        shared_cage.run("python3", PROGRAMS / "reopen.py", "found", **{which: fd})
    finally:
        os.close(fd)
    assert b"secret-name" not in (shared_cage.project / "found").read_bytes()
    assert sorted(os.listdir(directory)) == ["secret-name"]
    assert stat.S_IMODE(directory.stat().st_mode) == mode


def test_root_inside_cannot_find_the_file_by_another_process(shared_cage: Cage, file: Path) -> None:
    """The file stays in the keeper, and the keeper is not among the cage's processes."""
    file.write_bytes(SECRET)
    script = "ls -l /proc/[0-9]*/fd /proc/[0-9]*/cwd /proc/[0-9]*/root"
    with open(file, "r+b") as both:
        done = shared_cage.run("sh", "-c", script, stdin=both.fileno(), stderr=subprocess.DEVNULL)
    assert str(file).encode() not in done.out
    assert b"memfd" not in done.out
