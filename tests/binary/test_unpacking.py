"""The single file unpacks itself once, whole or not at all, and says why it cannot."""

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import cagewrap
from podman.cages import Cage, Done, wait_until

from .builds import SINGLE, UNPACKED, over

VERSION = f"cagewrap {cagewrap.__version__} (single file build".encode()


def run(cache: Path | str, *words: str, program: Path = SINGLE, **options: object) -> Done:
    env = {"HOME": "/nowhere", "PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(cache)}
    argv = [program, *(words or ("--version",))]
    done = subprocess.run(argv, env=env, capture_output=True, check=False, **options)  # type: ignore[call-overload]
    return Done(done.returncode, done.stdout, done.stderr)


def unpacked(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / UNPACKED).iterdir())


def test_unpacks_once(room: Path) -> None:
    assert run(room).out.startswith(VERSION)
    [name] = set(unpacked(room)) - {"lock"}
    program = room / UNPACKED / name / "cagewrap"
    before = program.stat()
    assert (room / UNPACKED).stat().st_mode & 0o777 == 0o700
    assert run(room).out.startswith(VERSION)
    assert program.stat().st_ino == before.st_ino
    assert unpacked(room) == [name, "lock"]


def test_unpacking_leaves_nothing_in_the_process(make_cage: Callable[..., Cage]) -> None:
    """No umask, no descriptor, no directory of it."""
    cage = make_cage(SINGLE)
    look = ("sh", "-c", "umask; ls /proc/self/fd | wc -l; pwd")
    seen = []
    for at in range(2):
        cage.env["XDG_CACHE_HOME"] = str(cage.place.root / f"cache-{at}")
        seen += [cage.text(*look), cage.text(*look)]
    assert len(set(seen)) == 1, seen


def test_twenty_at_once_unpack_once(room: Path) -> None:
    env = {"HOME": str(room), "PATH": os.environ["PATH"]}
    started = [
        subprocess.Popen([SINGLE, "--version"], env=env, stdout=-1, stderr=-1) for _ in range(20)
    ]
    for one in started:
        out, err = one.communicate(timeout=100)
        assert (one.returncode, err) == (0, b"")
        assert out.startswith(VERSION)
    assert len(unpacked(room / ".cache")) == 2


def test_killed_while_it_unpacks(room: Path) -> None:
    env = {"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(room)}
    chance = random.Random(5)
    for _ in range(8):
        with subprocess.Popen([SINGLE, "--version"], env=env, stdout=-1, process_group=0) as one:
            time.sleep(chance.uniform(0.0, 0.25))
            os.killpg(one.pid, signal.SIGKILL)
    assert run(room).out.startswith(VERSION)
    assert len(unpacked(room)) == 2


def test_refuses_a_cache_that_is_noexec(room: Path) -> None:
    with over(room, "noexec"):
        for _ in range(2):
            done = run(room)
            assert (done.code, done.out) == (119, b"")
            assert b"mounted noexec" in done.err
            assert b"fix: export XDG_CACHE_HOME=DIR" in done.err
        assert len(unpacked(room)) == 2


def test_refuses_a_cache_that_is_full(room: Path) -> None:
    with over(room, "size=9m"):
        done = run(room)
        assert (done.code, done.out) == (119, b"")
        assert b"no space left there" in done.err
        assert done.err.count(b"\n") == 2
        assert unpacked(room) == ["lock"]
        subprocess.run(["sudo", "mount", "-o", "remount,size=60m", room], check=True)
        assert run(room).out.startswith(VERSION)


def test_refuses_a_cache_that_it_cannot_write_to(room: Path) -> None:
    room.chmod(0o500)
    done = run(room)
    room.chmod(0o700)
    assert (done.code, done.out) == (119, b"")
    assert b"cannot be written to" in done.err
    assert run("/proc/1").code == 119
    assert run("relative").code == 119  # and HOME is nowhere


def test_refuses_what_another_user_unpacked(room: Path) -> None:
    assert run(room).code == 0
    subprocess.run(["sudo", "chown", "-R", "root", room / UNPACKED], check=True)
    subprocess.run(["sudo", "chmod", "-R", "a+rX", room / UNPACKED], check=True)
    done = run(room)
    subprocess.run(["sudo", "rm", "-r", room / UNPACKED], check=True)
    assert (done.code, done.out) == (119, b"")
    assert b"belongs to another user" in done.err


def test_refuses_a_file_that_is_cut_short(room: Path) -> None:
    cut = room / "cut"
    content = SINGLE.read_bytes()
    cut.write_bytes(content[: len(content) // 2])
    cut.chmod(0o755)
    done = run(room / "cache", program=cut)
    assert (done.code, done.out) == (119, b"")
    assert b"cannot unpack itself" in done.err
    assert unpacked(room / "cache") == ["lock"]


def test_removes_what_nobody_runs(room: Path) -> None:
    """Of other versions: not one that runs, and not one that was started within a week."""
    link = room / "link"
    link.symlink_to(room)
    assert run(room).code == 0
    [name] = set(unpacked(room)) - {"lock"}
    weeks_ago = time.time() - 20 * 24 * 3600
    place = room / UNPACKED
    for other in ("0.0.1-old", "0.0.2-running", "0.0.3-used"):
        (place / other).mkdir()
        shutil.copy("/usr/bin/sleep", place / other / "cagewrap")
        if other != "0.0.3-used":
            os.utime(place / other / "cagewrap", (weeks_ago, weeks_ago))
    with subprocess.Popen([place / "0.0.2-running/cagewrap", "1000"]) as running:
        os.utime(place / "0.0.2-running/cagewrap", (weeks_ago, weeks_ago))
        assert wait_until(lambda: os.readlink(f"/proc/{running.pid}/exe").endswith("cagewrap"), 5)
        shutil.rmtree(place / name)
        assert run(link).code == 0
        running.kill()
    assert unpacked(room) == ["0.0.2-running", "0.0.3-used", name, "lock"]


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_ends_by_a_signal_while_it_unpacks(room: Path, name: str) -> None:
    env = {"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(room)}
    with subprocess.Popen([SINGLE, "--version"], env=env, stdout=-1, process_group=0) as one:
        assert wait_until((room / UNPACKED).exists, 5)
        os.killpg(one.pid, signal.Signals[name])
        assert one.wait(20) in (-signal.Signals[name], 0)
    assert run(room).out.startswith(VERSION)
