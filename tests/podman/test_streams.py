"""Bytes: what goes in and comes out is what an agent without a cage would have read and written."""

from __future__ import annotations

import hashlib
import os
import random
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from .cages import Cage

MIB = 1 << 20


@pytest.mark.smoke
def test_all_byte_values_pass(shared_cage: Cage) -> None:
    data = bytes(range(256)) * 64
    done = shared_cage.run("cat", stdin=data)
    assert (done.code, done.out, done.err) == (0, data, b"")


def test_64_mib_pass_both_ways_at_once(shared_cage: Cage) -> None:
    data = random.Random(1).randbytes(64 * MIB)
    done = shared_cage.run("cat", stdin=data)
    assert done.code == 0
    assert hashlib.sha256(done.out).digest() == hashlib.sha256(data).digest()


def test_burst_before_exit_is_not_lost(shared_cage: Cage) -> None:
    """200 times; the last bytes are the ones that a relay would lose."""

    def burst(number: int) -> bool:
        script = f"head -c {MIB - 8} /dev/zero; printf %08d {number}; exit 3"
        done = shared_cage.run("sh", "-c", script)
        return (done.code, len(done.out), done.out[-8:]) == (3, MIB, b"%08d" % number)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(burst, range(200))) == [True] * 200


def test_slow_reader_gets_everything(shared_cage: Cage) -> None:
    """The agent has ended long before its output is read."""
    with shared_cage.popen(
        "head", "-c", "60000", "/dev/zero", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    ) as process:
        assert process.wait(10) == 0
        assert process.stdout is not None
        assert len(process.stdout.read()) == 60000


def test_half_close_is_seen_and_later_output_kept(shared_cage: Cage) -> None:
    script = "cat >/dev/null; echo saw the end; sleep 0.3; echo later"
    done = shared_cage.run("sh", "-c", script, stdin=b"some input")
    assert (done.code, done.out) == (0, b"saw the end\nlater\n")


def test_lines_go_back_and_forth(shared_cage: Cage) -> None:
    with shared_cage.popen("cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for number in range(50):
            line = b"%d " % number + b"x" * number + b"\n"
            process.stdin.write(line)
            process.stdin.flush()
            assert process.stdout.readline() == line
        process.stdin.close()
        assert process.wait(5) == 0


def test_stderr_stays_apart(shared_cage: Cage) -> None:
    done = shared_cage.run("sh", "-c", "echo one; echo two >&2; echo three; echo four >&2")
    assert (done.out, done.err) == (b"one\nthree\n", b"two\nfour\n")


def test_stdout_and_stderr_of_one_pipe_keep_their_order(shared_cage: Cage) -> None:
    script = "for i in 1 2 3 4 5 6 7 8; do echo $i; echo e$i >&2; done"
    done = shared_cage.run("sh", "-c", script, stderr=subprocess.STDOUT)
    assert done.out == b"".join(b"%d\ne%d\n" % (i, i) for i in range(1, 9))


# --- which objects cross ------------------------------------------------------------------------


def inode(fd: int) -> str:
    return str(os.fstat(fd).st_ino)


def test_pipes_are_the_same_inside_as_outside(shared_cage: Cage) -> None:
    script = "stat -L -c %i /proc/self/fd/0 /proc/self/fd/1 /proc/self/fd/2 >&3"
    ends = [os.pipe() for _ in range(3)]
    try:
        with shared_cage.popen(
            "sh",
            "-c",
            f"exec 3>&1; {script}",
            stdin=ends[0][0],
            stdout=ends[1][1],
            stderr=ends[2][1],
        ) as process:
            assert process.wait(10) == 0
        inside = os.read(ends[1][0], 4096).decode().split()
        assert inside == [inode(ends[0][0]), inode(ends[1][0]), inode(ends[2][0])]
    finally:
        for end in ends:
            os.close(end[0])
            os.close(end[1])


def test_socket_is_the_same_inside_as_outside(shared_cage: Cage) -> None:
    """As node gives its children: one socket pair for stdin and stdout each."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        script = "readlink /proc/self/fd/0 /proc/self/fd/1; cat; exit 4"
        with shared_cage.popen("sh", "-c", script, stdin=theirs, stdout=theirs) as process:
            number = inode(theirs.fileno())
            theirs.close()
            expected = f"socket:[{number}]\n".encode() * 2
            assert receive(ours, len(expected)) == expected
            ours.sendall(b"through the socket")
            ours.shutdown(socket.SHUT_WR)
            assert receive(ours, 1 << 16) == b"through the socket"
            assert process.wait(5) == 4


def test_tcp_socket_is_used_like_any_other(shared_cage: Cage) -> None:
    """As inetd and socat give it; the kernel does not tell of these whether the peer is there."""
    server = socket.create_server(("127.0.0.1", 0))
    with server, socket.create_connection(server.getsockname()) as ours:
        theirs = server.accept()[0]
        script = "cat; sleep 0.8; echo end"
        with shared_cage.popen("sh", "-c", script, stdin=theirs, stdout=theirs) as process:
            theirs.close()
            ours.sendall(b"by tcp\n")
            ours.shutdown(socket.SHUT_WR)
            assert receive(ours, 100) == b"by tcp\nend\n"
            assert process.wait(5) == 0


def receive(connection: socket.socket, size: int) -> bytes:
    """As much as that, or what comes before the end."""
    connection.settimeout(10)
    data = b""
    while len(data) < size and (chunk := connection.recv(size - len(data))):
        data += chunk
    return data


def test_dev_null_is_the_same_inside_as_outside(shared_cage: Cage) -> None:
    script = "stat -L -c '%F %t:%T' /proc/self/fd/0; cat | wc -c; test ! -t 0"
    done = shared_cage.run("sh", "-c", script, stdin=subprocess.DEVNULL)
    assert (done.code, done.out) == (0, b"character special file 1:3\n0\n")


def test_output_to_dev_null_is_thrown_away(shared_cage: Cage) -> None:
    script = f"head -c {4 * MIB} /dev/zero; exit 9"
    done = shared_cage.run("sh", "-c", script, stdout=subprocess.DEVNULL)
    assert (done.code, done.out, done.err) == (9, b"", b"")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_descriptor_is_dev_null(shared_cage: Cage, closed: str) -> None:
    """A harness that closed one: nothing of ours must land in its place."""
    command = [*shared_cage.command(), "sh", "-c", "cat; echo out; echo err >&2; exit 6"]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *command],
        cwd=shared_cage.project, env=shared_cage.env, stdin=subprocess.DEVNULL,
        capture_output=True, timeout=20, check=False,
    )  # fmt: skip
    assert done.returncode == 6
    assert done.stdout == (b"" if " >&-" in f" {closed}" else b"out\n")
    assert done.stderr == (b"" if "2>&-" in closed else b"err\n")


def test_directory_as_stdin_reads_as_empty(shared_cage: Cage, tmp_path: Path) -> None:
    (tmp_path / "secret-name").touch()
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        done = shared_cage.run("sh", "-c", "cat; ls -R /proc/self/fd/0/", stdin=fd)
    finally:
        os.close(fd)
    assert b"secret-name" not in done.out
    assert done.out.strip() in (b"", b"/proc/self/fd/0/")


def test_device_as_stdin_is_read(shared_cage: Cage) -> None:
    """An endless one: the agent takes what it wants and ends."""
    with open("/dev/zero", "rb") as zero:
        done = shared_cage.run("head", "-c", str(5 * MIB), stdin=zero.fileno())
    assert (done.code, done.out) == (0, bytes(5 * MIB))


def test_only_three_descriptors_are_open(shared_cage: Cage) -> None:
    done = shared_cage.run("python3", "-c", "import os; print(sorted(os.listdir('/proc/self/fd')))")
    assert done.out == b"['0', '1', '2', '3']\n"  # 3 is the listing


def test_named_pipe_as_stdin_is_read_to_its_end(shared_cage: Cage, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)

    def write() -> None:
        with open(fifo, "wb") as file:
            file.write(b"by name")

    writer = threading.Thread(target=write)
    writer.start()
    with open(fifo, "rb") as reader:
        done = shared_cage.run("cat", stdin=reader.fileno())
    writer.join()
    assert done.out == b"by name"
