"""Ways out of a cage, and ways to wedge its keeper, that a review found: each is tried."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable

import pytest

from .cages import Cage, podman, process_state, seconds_until, wait_until

# A program that swaps two names for ever, with pauses, as fast as a race needs.
SWAP = """
import ctypes, os, time
libc = ctypes.CDLL(None)
print("up", flush=True)
while True:
    libc.renameat2(-100, b"sub", -100, b"swap", 2)  # RENAME_EXCHANGE
    time.sleep(0.02)
"""
KEYS = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer(256)
n = libc.syscall(250, 10, b"user", b"owner-secret", 0, 0)  # KEYCTL_SEARCH needs a keyring
for ring in (-3, -4, -5):  # session, user, user session
    found = libc.syscall(250, 10, ring, b"user", b"owner-secret", 0)
    if found > 0 and libc.syscall(250, 11, found, buffer, 256) > 0:
        print("READ", buffer.value)
print("done")
"""


def test_mount_swapped_while_the_cage_starts_is_never_used(make_cage: Callable[..., Cage]) -> None:
    """A cage of the outer project swaps the inner one for a link to a secret place."""
    outer = make_cage()
    secret = outer.place.root / "secret"
    secret.mkdir()
    (secret / "key").write_text("PRIVATE")
    sub = outer.project / "sub"
    sub.mkdir()
    inner = make_cage("--project", str(sub))
    inner.project = sub
    # Once at rest, so that its mounts are those of the true directory.
    inner.text("true")
    inner.stop_all()
    (outer.project / "swap").symlink_to(secret)
    with outer.popen("python3", "-c", SWAP, stdout=subprocess.PIPE) as swapper:
        assert swapper.stdout is not None
        assert swapper.stdout.readline() == b"up\n"
        command = [*inner.command(), "sh", "-c", "cat key 2>/dev/null; echo pwned >planted; true"]
        for _ in range(12):
            done = subprocess.run(
                [inner.command()[0], "shell", inner.name(), "--", *command[len(inner.command()) :]],
                cwd="/", env=inner.env, stdin=subprocess.DEVNULL, capture_output=True, check=False,
            )  # fmt: skip
            assert b"PRIVATE" not in done.stdout
            assert sorted(os.listdir(secret)) == ["key"]
            inner.stop_all()
        swapper.kill()
    outer.stop_all()
    if sub.is_symlink():
        os.rename(sub, outer.project / "other")
        os.rename(outer.project / "swap", sub)


def test_keyring_of_the_login_stays_outside(cage: Cage) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.syscall(250, 1, b"a-login") > 0  # a session keyring of ours, as pam makes one
    secret = b"TOP-SECRET"
    assert libc.syscall(248, b"user", b"owner-secret", secret, len(secret), -3) > 0
    done = cage.run("python3", "-c", KEYS)
    assert done.out == b"done\n", done


def connected_tcp() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        return near, server.accept()[0]


def test_tcp_connection_is_carried_not_handed_over(cage: Cage) -> None:
    near, far = connected_tcp()
    with near, far:
        near.sendall(b"over tcp")
        near.shutdown(socket.SHUT_WR)
        process = cage.popen("sh", "-c", "stat -L -c %F /proc/self/fd/0 >&2; cat", stdin=far,
                             stdout=far, stderr=subprocess.PIPE)  # fmt: skip
        far.close()
        _, err = process.communicate(timeout=30)
        assert (process.returncode, err) == (0, b"fifo\n")
        got = b""
        while chunk := near.recv(100):
            got += chunk
        assert got == b"over tcp"


@pytest.mark.parametrize("kind", ["listening", "datagram", "unix datagram", "unconnected"])
def test_socket_that_could_lead_elsewhere_is_refused(cage: Cage, kind: str) -> None:
    if kind == "listening":
        one = socket.create_server(("127.0.0.1", 0))
    elif kind == "datagram":
        one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    elif kind == "unix datagram":
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        other.close()
    else:
        one = socket.socket(socket.AF_UNIX)
    with one:
        done = cage.run("true", stdin=one.fileno())
    assert (done.code, done.out) == (122, b"")
    assert b"stdin is a socket" in done.err


def test_fifo_in_the_place_of_passwd_wedges_nothing(cage: Cage) -> None:
    """`podman start` waits in it for ever, with the container's lock held."""
    cage.text("sh", "-c", "rm /etc/passwd; mkfifo /etc/passwd")
    cage.stop()
    waiting = cage.popen("true", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(1)
    assert waiting.poll() is None
    waiting.send_signal(signal.SIGTERM)
    assert waiting.wait(3) == -signal.SIGTERM
    name = cage.name()
    done = cage.cagewrap("rm", "--force")
    assert done.code == 0, done.err
    assert podman("container", "exists", name).returncode == 1
    assert cage.text("echo", "again") == "again\n"


def test_adopted_container_with_a_fifo_in_the_place_of_passwd(cage: Cage) -> None:
    cage.text("sh", "-c", "rm /etc/passwd; mkfifo /etc/passwd")
    os.kill(cage.keeper(), signal.SIGKILL)
    assert wait_until(lambda: cage.keeper() == 0, 5)
    began = time.monotonic()
    done = cage.run("echo", "on")
    assert time.monotonic() - began < 15
    assert done.code == 0 or b"cannot be entered" in done.err
    cage.cagewrap("rm", "--force")


def test_agent_that_stops_and_goes_on_for_ever_wedges_nothing(cage: Cage) -> None:
    loop = (
        "import os, signal, time\n"
        "if os.fork(): signal.pause()\n"
        "while True: os.kill(os.getppid(), 19); os.kill(os.getppid(), 18)\n"
    )
    with cage.popen("python3", "-c", loop) as restless:
        time.sleep(3)
        assert cage.text("echo", "ok", timeout_s=10) == "ok\n"
        assert cage.cagewrap("ls", "--json").code == 0
        restless.kill()
    seconds_until(lambda: cage.inside_pids() == [], within_s=4)


def test_agent_that_is_continued_from_inside_wakes_its_shim(cage: Cage) -> None:
    program = (
        "import os, signal, time\n"
        "print('up', flush=True)\n"
        "if os.fork() == 0:\n"
        "  os.kill(os.getppid(), 19); time.sleep(1); os.kill(os.getppid(), 18); os._exit(0)\n"
        "os.wait(); print('on', flush=True)\n"
    )
    with cage.popen("python3", "-c", program, stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"up\n"
        assert wait_until(lambda: process_state(agent.pid) == "T", 3)
        assert agent.stdout.readline() == b"on\n"
        assert agent.wait(5) == 0


def test_agent_that_stops_all_new_processes_only_costs_its_own_cage(cage: Cage) -> None:
    freezer = (
        "import os, time\n"
        "print('up', flush=True)\n"
        "mine = set(os.listdir('/proc'))\n"
        "while True:\n"
        "  for p in set(os.listdir('/proc')) - mine:\n"
        "    if p.isdigit():\n"
        "      try: os.kill(int(p), 19)\n"
        "      except OSError: pass\n"
    )
    with cage.popen("python3", "-c", freezer, stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"up\n"
        frozen = cage.popen("true")
        time.sleep(2)
        frozen.kill()
        frozen.wait()
        agent.kill()
    seconds_until(lambda: cage.inside_pids() == [], within_s=6)
    assert cage.text("echo", "ok") == "ok\n"


def test_images_volume_does_not_cover_the_project(cage: Cage) -> None:
    (cage.project / "sub").mkdir()
    (cage.project / "sub/file").write_text("mine")
    change = f"VOLUME {cage.project}/sub"
    made = podman("create", "--name", "seed", "--pull=never", cage.flags[1], "true")
    assert made.returncode == 0, made.stderr
    try:
        done = podman("commit", "--quiet", "--change", change, "seed", "localhost/with-volume:1")
        assert done.returncode == 0, done.stderr
        flags = ("--image", "localhost/with-volume:1")
        assert cage.text("cat", "sub/file", flags=flags) == "mine"
    finally:
        podman("rm", "--force", "seed")
        cage.stop()
        podman("rm", "--force", cage.name())
        podman("rmi", "localhost/with-volume:1")


@pytest.mark.parametrize("word", ["--pid=host", "--privileged", "--userns=auto", "--name=x"])
def test_podman_arg_that_takes_the_walls_away_is_refused(cage: Cage, word: str) -> None:
    done = cage.run("true", flags=(f"--podman-arg={word}",))
    assert (done.code, done.out) == (122, b"")
    assert word.partition("=")[0].encode() in done.err


def test_entries_of_path_that_an_agent_can_write_to_are_not_searched(cage: Cage) -> None:
    """An agent plants a `git` and a `podman` where a relative one leads, or one in the project."""
    proof = cage.place.root / "planted-ran"
    directory = cage.project / "bin"
    directory.mkdir()
    for name in ("git", "podman", "crun", "sh", "rm"):
        (directory / name).write_text(f"#!/bin/sh\ntouch {proof}\nexit 1\n")
        (directory / name).chmod(0o755)
    cage.env["PATH"] = f"./bin::bin:{directory}:" + cage.env["PATH"]
    assert cage.text("echo", "ok") == "ok\n"
    assert cage.cagewrap("ls").code == 0
    assert cage.cagewrap("stop").code == 0
    assert not proof.exists()
