"""The test hosts keep their promises. Runs on the machine itself, as root."""

import os
import signal
import subprocess
import time
from pathlib import Path

import ptyprocess
import pytest

ENTER = Path(__file__).resolve().parent / "enter"


def enter(*words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [ENTER, *words], input=stdin, capture_output=True, timeout=60, check=False
    )


def cgroups_of(pid: int) -> list[Path]:
    tops = [Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")]
    return [path for top in tops for path in top.rglob(f"cagewrap-check-*-{pid}-*")]


def processes_with(word: bytes) -> list[str]:
    found = []
    for proc in Path("/proc").glob("[0-9]*"):
        try:
            if word in (proc / "cmdline").read_bytes():
                found.append(proc.name)
        except (FileNotFoundError, ProcessLookupError):
            pass
    return found


def wait_for(condition, limit_s: float = 10) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_is_an_unprivileged_user_who_is_not_the_first_of_the_machine():
    assert enter("--", "id").stdout == (
        b"uid=1002(tester) gid=1002(tester) groups=1002(tester),2001(projects),2002(media)\n"
    )


@pytest.mark.parametrize(("script", "status"), [("exit 7", 7), ("kill -TERM $$", 143)])
def test_passes_the_exit_status_on(script: str, status: int):
    assert enter("--", "bash", "-c", script).returncode == status


def test_passes_streams_and_arguments_on():
    data = bytes(range(256)) * 1000
    done = enter(
        "--", "bash", "-c", 'cat; printf "[%s]" "$@" >&2', "x", "", "a b", "\n", stdin=data
    )
    assert done.stdout == data
    assert done.stderr.endswith(b"[][a b][\n]")


def test_has_no_network_but_its_own_loopback():
    done = enter("--", "ip", "-brief", "link")
    assert [line.split()[0] for line in done.stdout.splitlines()] == [b"lo"]


def test_has_pure_cgroup2():
    done = enter("--", "stat", "--file-system", "--format=%T", "/sys/fs/cgroup")
    assert done.stdout == b"cgroup2fs\n"


def test_changes_to_the_system_are_gone_afterwards():
    assert enter("--", "sudo", "touch", "/etc/planted").returncode == 0
    assert enter("--", "test", "-e", "/etc/planted").returncode == 1


def test_two_at_once_do_not_share_a_home():
    show = ("--", "bash", "-c", "stat -c %i ~; echo; sleep 2")
    both = [subprocess.Popen([ENTER, *show], stdout=subprocess.PIPE) for _ in range(2)]
    assert len({process.communicate(timeout=60)[0] for process in both}) == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_killed_leaves_no_process_and_no_cgroup(number: signal.Signals):
    stamp = f"4{os.getpid()}{int(number)}"
    script = f"""
        podman run -d --rm --pull=never localhost/cagewrap-test:latest sleep {stamp}1 >/dev/null
        mkdir /sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup)/mine
        setsid sleep {stamp}2 &
        echo up
        sleep {stamp}3"""
    process = subprocess.Popen(
        [ENTER, "--fresh", "--", "bash", "-c", script], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"up\n"
    wait_for(lambda: len(processes_with(f"sleep\0{stamp}".encode())) == 3)
    assert cgroups_of(process.pid)
    process.send_signal(number)
    process.wait(timeout=10)
    wait_for(lambda: not processes_with(stamp.encode()), limit_s=2)
    wait_for(lambda: not cgroups_of(process.pid), limit_s=2)


def test_has_a_terminal_with_job_control():
    terminal = ptyprocess.PtyProcess.spawn(
        [str(ENTER), "--", "bash", "--norc"],
        dimensions=(33, 101),
        env={**os.environ, "TERM": "vt100"},
    )
    seen = b""

    def read_until(word: bytes) -> None:
        nonlocal seen
        while word not in seen:
            seen += terminal.read(1000)
        seen = seen.partition(word)[2]

    terminal.write(b"stty size; echo $TERM-$((1+1))\n")
    read_until(b"33 101")
    read_until(b"vt100-2")
    terminal.write(b"sleep 1000\n")
    read_until(b"sleep 1000")
    time.sleep(0.5)
    terminal.write(b"\x1a")
    read_until(b"Stopped")
    terminal.write(b"fg\n")
    read_until(b"sleep 1000")
    time.sleep(0.5)
    terminal.write(b"\x03")
    read_until(b"^C")
    terminal.write(b"exit $?\n")
    with pytest.raises(EOFError):
        read_until(b"never")
    terminal.wait()
    assert terminal.exitstatus == 130
