"""Nothing of the bundle's environment reaches another program."""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from podman.cages import PROGRAMS, Cage, all_pids, parent_of, read_bytes, wait_until

from .builds import BUILDS

RECORDER = """#!/bin/sh
cat /proc/self/environ /proc/$$/environ >> "{place}/$(basename "$0").$$"
exec "{real}" "$@"
"""
RECORDED = ("podman", "git", "nft", "crun", "slirp4netns", "pasta", "mmdebstrap")
ORIGINAL = "/usr/lib/of-the-owner:/opt/lib"


def variables(environ: bytes) -> dict[str, str]:
    pairs = [os.fsdecode(entry).partition("=") for entry in environ.split(b"\0") if entry]
    return {name: value for name, _, value in pairs}


def is_ours(name: str, value: str) -> bool:
    return name.startswith(("_PYI", "_MEI", "LD_LIBRARY_PATH_ORIG")) or "_internal" in value


@pytest.fixture
def recorded(room: Path, cage: Cage) -> Path:
    """Every program of the host writes its environment there before it starts."""
    place = room / "recorded"
    place.mkdir()
    wrappers = room / "wrappers"
    wrappers.mkdir()
    for name in RECORDED:
        real = shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/sbin")
        if real:
            (wrappers / name).write_text(RECORDER.format(place=place, real=real))
            (wrappers / name).chmod(0o755)
    cage.env["PATH"] = f"{wrappers}:{cage.env['PATH']}"
    return place


@pytest.mark.parametrize("original", [None, ORIGINAL], ids=["unset", "set"])
def test_programs_of_the_host_get_the_owners(
    cage: Cage, recorded: Path, original: str | None
) -> None:
    if original:
        cage.env["LD_LIBRARY_PATH"] = original
    subprocess.run(["git", "init", "--quiet", cage.project], check=True)
    cage.text("true")
    cage.text("sh", "-c", "git config user.name x && git config user.email y && touch a && "
              "git add a && git commit -qm one")  # fmt: skip
    cage.stop()
    cage.text("true")
    assert cage.cagewrap("ls", "--size").code == 0
    assert cage.cagewrap("doctor").code in (0, 118)
    assert cage.cagewrap("rm").code == 0
    found = {path.name.partition(".")[0] for path in recorded.iterdir()}
    assert {"podman", "git"} <= found, found
    for path in recorded.iterdir():
        seen = variables(path.read_bytes())
        assert [name for name, value in seen.items() if is_ours(name, value)] == [], path.name
        assert seen.get("LD_LIBRARY_PATH") in (None, original), path.name


def test_what_stays_running_has_the_owners(cage: Cage) -> None:
    """conmon, the container's init and the agent: all that the keeper has started."""
    with cage.popen("sleep", "1000", stdout=subprocess.DEVNULL) as shim:
        assert wait_until(lambda: cage.names() and cage.inside_programs("sleep"), 20)
        keeper, init = cage.keeper(), cage.init()
        below = [pid for pid in all_pids() if keeper in (parent_of(pid), parent_of(parent_of(pid)))]
        started = {pid for pid in (init, parent_of(init), *cage.inside_pids(), *below) if pid > 1}
        names = {read_bytes(f"/proc/{pid}/comm").strip() for pid in started}
        assert {b"conmon", b"sleep"} <= names, names
        for pid in started:
            seen = variables(read_bytes(f"/proc/{pid}/environ"))
            assert [name for name, value in seen.items() if is_ours(name, value)] == [], (pid, seen)
        shim.send_signal(signal.SIGTERM)
        assert shim.wait(10) == -signal.SIGTERM


@pytest.mark.parametrize("original", [None, "", ORIGINAL], ids=["unset", "empty", "set"])
def test_agent_gets_what_the_owner_passes(cage: Cage, original: str | None) -> None:
    if original is not None:
        cage.env["LD_LIBRARY_PATH"] = original
    cage.env |= {"VIRTUAL_ENV": "/home/of/mine", "_PYI_SPLASH_IPC": "0"}
    names = ("LD_LIBRARY_PATH", "LD_LIBRARY_PATH_ORIG", "VIRTUAL_ENV", "_PYI_*")
    flags = tuple(word for name in names for word in ("--env", name))
    seen = variables(cage.text("env", "-0", flags=flags).encode())
    assert seen["VIRTUAL_ENV"] == "/home/of/mine"
    assert seen.get("LD_LIBRARY_PATH") in ((original,) if original else (None, ""))
    assert [name for name in seen if name.startswith(("_PYI", "LD_LIBRARY_PATH_"))] == []


def test_inside_another_frozen_program(cage: Cage) -> None:
    """A harness that is frozen too, and leaves its own environment to what it starts."""
    cage.env |= {
        "_PYI_ARCHIVE_FILE": "/opt/harness/harness",
        "_PYI_APPLICATION_HOME_DIR": "/opt/harness/_internal",
        "_PYI_PARENT_PROCESS_LEVEL": "1",
    }
    flags = ("--env", "_PYI_*")
    assert "_PYI" not in cage.text("env", flags=flags)
    assert "_PYI" not in cage.text("env", flags=flags)


def report(cage: Cage, **options: object) -> dict[str, object]:
    import json

    text = cage.text("python3", PROGRAMS / "report.py", "a", **options)
    found: dict[str, object] = json.loads(text)
    for changing in ("pid", "fds"):
        del found[changing]
    return found


@pytest.mark.parametrize("build", BUILDS)
def test_agent_is_started_as_by_the_source(
    make_cage: Callable[..., Cage], source: Path, build: str
) -> None:
    """Signals ignored and blocked, limits, umask, groups: all that report.py prints."""

    def prepare() -> None:
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
        os.umask(0o027)

    cage = make_cage(BUILDS[build])
    cold = report(cage, preexec_fn=prepare)
    warm = report(cage, preexec_fn=prepare)
    cage.program = str(source)
    assert cold == warm == report(cage, preexec_fn=prepare)
    assert cold["umask"] == 0o027


def test_what_a_harness_ignores_stays_ignored(cage: Cage) -> None:
    cage.text("true")
    with cage.popen(
        "python3", PROGRAMS / "trap.py", "SIGHUP", "SIGINT", "SIGUSR1", stdout=subprocess.PIPE,
        preexec_fn=lambda: [signal.signal(one, signal.SIG_IGN) for one in (1, 2)],
    ) as shim:  # fmt: skip
        assert shim.stdout is not None
        assert shim.stdout.readline() == b"ready\n"
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGUSR1):
            shim.send_signal(number)
        assert shim.stdout.readline() == b"SIGUSR1\n"
        shim.kill()


def test_closed_descriptors(cage: Cage, source: Path) -> None:
    """A harness that closed 0, 1 or 2."""
    cage.text("true")
    words = [*cage.command(), "sh", "-c", "ls -l /proc/$$/fd | grep -c /dev/null; exit 5"]
    for closing in ("<&-", "2>&-", "<&- 2>&-", "<&- >&- 2>&-"):
        outcome = []
        for program in (cage.program, source):
            words[0] = str(program)
            argv = ["sh", "-c", f'"$@" {closing}', "sh", *words]
            done = subprocess.run(
                argv, cwd=cage.project, env=cage.env, capture_output=True, check=False
            )
            outcome.append((done.returncode, done.stdout, done.stderr))
        assert outcome[0] == outcome[1]
        assert outcome[0][0] == 5
