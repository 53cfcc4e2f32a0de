"""One program instead of the agent's: a file that `cagewrap shim` wrote, or a symlink to cagewrap.

The agents here are programs that every Debian has, under an agent's name: `echo`, whose one
argument `--version` it answers, and `dash`, which runs what it reads.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from .cages import CAGEWRAP, GONE_S, IMAGE, PROGRAMS, TIMEOUT_S, Cage, Done, Word, wait_until

REPORT = str(PROGRAMS / "report.py")
NASTY = ("", "", " ", "a b", "a\nb", "\n", "'", '"', "\\", "`id`", "$HOME", "--", "-v", "ü", "")
SOON_S = 2.0
"""What a harness gives a program to say its version."""


def run(cage: Cage, *argv: Word, stdin: bytes = b"", **env: str) -> Done:
    """Run a program of the host as a harness does: nothing stands before it."""
    done = subprocess.run(
        argv, cwd=cage.project, env=cage.env | env, input=stdin, capture_output=True,
        timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    return Done(done.returncode, done.stdout, done.stderr)


def write(cage: Cage, path: Path, agent: str, *flags: str) -> Path:
    done = cage.cagewrap("shim", agent, *cage.flags, *flags, "-o", str(path))
    assert (done.code, done.out, done.err) == (0, b"", b"")
    return path


@pytest.fixture
def bin_dir(cage: Cage) -> Path:
    """First on PATH; where a person puts programs."""
    path = cage.place.root / "my bin"
    path.mkdir()
    cage.env["PATH"] = f"{path}:{cage.env['PATH']}"
    return path


@pytest.fixture
def late_dir(cage: Cage) -> Path:
    """Last on PATH; where an installer has put the agent."""
    path = cage.place.root / "late"
    path.mkdir()
    cage.env["PATH"] = f"{cage.env['PATH']}:{path}"
    return path


@pytest.fixture
def no_claude() -> None:
    """This machine has none but what a test makes: the test host's user has no agents."""
    assert shutil.which("claude") is None


def program(path: Path, source: str) -> Path:
    shutil.copy(source, path)
    return path


def script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


# --- a file ---------------------------------------------------------------------------------------


def test_a_file_runs_a_program_by_its_path(cage: Cage, bin_dir: Path) -> None:
    shim = write(cage, bin_dir / "it's \n an \N{SNOWMAN} agent", "/usr/bin/python3")
    assert shim.stat().st_mode & 0o7777 == 0o755
    found = json.loads(run(cage, shim, REPORT, *NASTY).out)
    assert found["argv"] == list(NASTY)
    assert found["cwd"] == str(cage.project)
    name = os.fsencode(bin_dir) + b"/\xff\xfe"
    os.rename(shim, name)
    assert json.loads(run(cage, name, REPORT).out)["argv"] == []


def test_a_file_is_the_program_for_streams_signals_and_exit_code(cage: Cage, bin_dir: Path) -> None:
    shim = write(cage, bin_dir / "sh-caged", "/bin/sh")
    blob = bytes(range(256)) * 5000
    assert run(cage, shim, "-c", "cat; exit 7", stdin=blob) == Done(7, blob, b"")
    assert run(cage, shim, "-c", "kill -TERM $$").code == -signal.SIGTERM
    with subprocess.Popen(
        [shim, "-c", "tail -f /dev/null & tail -f /dev/null"], cwd=cage.project, env=cage.env
    ) as started:
        assert wait_until(lambda: len(cage.inside_programs("tail")) == 2, 10)
        assert Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text() == ""
        started.kill()
    assert wait_until(lambda: cage.inside_pids() == [], GONE_S)


def test_an_argument_that_a_file_does_not_know_is_the_agents(cage: Cage, bin_dir: Path) -> None:
    """A program by its path is not asked on this machine: `python3 -v` would be a shell here."""
    shim = write(cage, bin_dir / "python3-caged", "/usr/bin/python3")
    assert run(cage, shim, "--version").out.startswith(b"Python 3.")
    inside = run(cage, shim, "-c", "import os; print(os.path.exists('/run/.containerenv'))").out
    assert inside == b"True\n"
    assert b"# cleanup" in run(cage, shim, "-v", stdin=b"").err
    assert len(cage.names()) == 1


def test_a_variable_of_the_harness_names_the_session(cage: Cage, bin_dir: Path) -> None:
    shim = write(cage, bin_dir / "caged", "/bin/sh", "--session-env", "MY_SESSION")
    for name in ("one", "two", "one"):
        done = run(cage, shim, "-c", f'echo "$MY_SESSION"; echo {name} >>~/names', MY_SESSION=name)
        assert done.out == f"{name}\n".encode()
    sessions = {cage.record(name)["session"] for name in cage.names()}
    assert sessions == {"one", "two"}
    assert run(cage, shim, "-c", "cat ~/names", MY_SESSION="one").out == b"one\none\n"
    cage.text("true")  # without a name it is a third
    assert len(cage.names()) == 3


def test_two_harnesses_keep_each_others_tickets(cage: Cage, bin_dir: Path) -> None:
    """The variables that name sessions are known of both, so neither takes the long way."""
    shims = [
        write(cage, bin_dir / name, "/bin/true", "--session-env", f"SESSION_{name}")
        for name in ("A", "B")
    ]
    for _ in range(2):
        for shim in shims:
            assert run(cage, shim, SESSION_A="a", SESSION_B="b").code == 0
    calls = cage.place.root / "calls"
    for shim in shims:
        run(cage, "strace", "-f", "-e", "trace=open,openat", "-o", calls, shim,
            SESSION_A="a", SESSION_B="b")  # fmt: skip
        read = set(re.findall(r"cagewrap/(?:__pycache__/)?(\w+)\.[^/]*py", calls.read_text()))
        assert "warm" in read
        assert "config" not in read


def test_a_file_says_that_its_cagewrap_is_gone(cage: Cage, bin_dir: Path) -> None:
    moved = cage.place.root / "cage wrap"
    moved.symlink_to(CAGEWRAP)
    subprocess.run(
        [moved, "shim", "claude", "-o", bin_dir / "claude"], env=cage.env, check=True, cwd="/"
    )
    moved.unlink()
    done = run(cage, bin_dir / "claude", "-p", "hello")
    assert (done.code, done.out) == (127, b"")
    [line] = done.err.decode().splitlines()
    assert line.startswith(f"cagewrap: {moved} is not there, and {bin_dir}/claude ")
    assert line.endswith("cagewrap shim")


def test_where_a_file_may_not_be(cage: Cage, bin_dir: Path) -> None:
    done = cage.cagewrap("shim", "claude", "-o", "/usr/bin/claude-caged")
    assert (done.code, done.out) == (110, b"")
    assert "Permission denied" in done.err.decode()
    cage.text("true")  # an agent works in the project from now on
    (bin_dir / "tools").symlink_to(cage.project)
    for place in (cage.project, bin_dir / "tools"):
        done = cage.cagewrap("shim", "claude", "-o", str(place / "claude"))
        assert (done.code, done.out) == (122, b"")
        assert "where an agent can write" in done.err.decode()
    assert not (cage.project / "claude").exists()


# --- which claude it is ---------------------------------------------------------------------------


@pytest.mark.usefixtures("no_claude")
def test_a_version_is_said_without_a_cage(cage: Cage, bin_dir: Path, late_dir: Path) -> None:
    program(late_dir / "claude", "/bin/echo")
    shim = write(cage, bin_dir / "claude", "claude", "--image", "localhost/no-such-image")
    direct = run(cage, late_dir / "claude", "--version")
    began = time.monotonic()
    done = run(cage, "claude", "--version")
    assert time.monotonic() - began < SOON_S
    assert done == direct
    assert b"GNU coreutils" in done.out
    assert run(cage, shim, "-v").out == b"-v\n"  # as echo has it
    assert cage.names() == []
    assert run(cage, shim, "-v", "x").code == 118  # any other words are for the cage


@pytest.mark.usefixtures("no_claude")
def test_a_version_is_said_where_no_agent_has_written(
    cage: Cage, bin_dir: Path, late_dir: Path
) -> None:
    """The program does not run in the project, and is not taken from there."""
    program(late_dir / "claude", "/bin/dash")
    shim = write(cage, bin_dir / "claude", "claude")
    planted = cage.project / "bin"
    planted.mkdir()
    script(planted / "claude", "#!/usr/bin/env node\n")
    program(planted / "node", "/bin/false")
    path = f"{planted}:{cage.env['PATH']}"
    done = run(
        cage, shim, "-v", stdin=b'echo "$0 $PWD $CAGEWRAP_ON_HOST"; pwd; echo $PATH', PATH=path
    )
    said = done.out.decode().splitlines()
    assert said[:2] == [f"{late_dir}/claude / {late_dir}/claude", "/"]
    assert str(planted) not in said[2]


@pytest.mark.usefixtures("no_claude")
def test_the_settings_say_whose_version(cage: Cage, bin_dir: Path, late_dir: Path) -> None:
    program(late_dir / "claude", "/bin/echo")
    other = program(cage.place.root / "other", "/bin/true")
    shim = write(cage, bin_dir / "claude", "claude")
    config = cage.place.config_home / "cagewrap.toml"
    config.write_text(f'[agents.claude]\nprogram = "{other}"\n')
    assert run(cage, shim, "--version").out.startswith(b"true (GNU")
    config.write_text('[agents.claude]\nprogram = "image"\n')
    done = run(cage, shim, "--version")
    assert (done.code, done.out) == (127, b"")
    assert len(cage.names()) == 1  # the cage was asked, and has none


@pytest.mark.usefixtures("no_claude")
@pytest.mark.parametrize("kind", ["file", "symlink", "by hand"])
def test_a_shim_first_on_path_never_finds_itself(
    cage: Cage, bin_dir: Path, late_dir: Path, kind: str
) -> None:
    program(late_dir / "claude", "/bin/echo")
    shim = bin_dir / "claude"
    config = cage.place.config_home / "cagewrap.toml"
    config.write_text(f'image = "{IMAGE}"\nnetwork = "none"\n')
    if kind == "file":
        write(cage, shim, "claude")
    elif kind == "symlink":
        shim.symlink_to(CAGEWRAP)
    else:
        script(shim, '#!/bin/sh\nexec cagewrap -- claude "$@"\n')
    done = run(cage, "claude", "one", "", "two")
    assert (done.code, done.out) == (0, b"one  two\n")
    assert run(cage, "claude", "--", "--version").out == b"-- --version\n"
    version = run(cage, "claude", "--version")
    assert b"GNU coreutils" in version.out
    assert len(cage.names()) == 1
    log = "".join(cage.logs())
    assert f"{shim} is not used: it runs cagewrap itself" in log


@pytest.mark.usefixtures("no_claude")
def test_nothing_but_shims_is_said_with_their_names(cage: Cage, bin_dir: Path) -> None:
    shim = write(cage, bin_dir / "claude", "claude")
    for words in (("--version",), ("-p", "x")):
        done = run(cage, shim, *words)
        assert (done.code, done.out) == (127, b"")
        assert f"{shim} is not used: it runs cagewrap itself" in done.err.decode()
    config = cage.place.config_home / "cagewrap.toml"
    config.write_text(f'[agents.claude]\nprogram = "{shim}"\n')
    done = run(cage, shim, "-p", "x")
    assert done.code == 127
    assert "it runs cagewrap itself" in done.err.decode()
    config.unlink()
    done = cage.run(str(shim))
    assert done.code == 127
    assert f"{shim} is no agent: it runs cagewrap itself" in done.err.decode()


@pytest.mark.usefixtures("no_claude")
def test_a_program_that_comes_back_is_stopped(cage: Cage, bin_dir: Path, late_dir: Path) -> None:
    """Whatever the way: this is a program that cagewrap cannot see through."""
    program(late_dir / "claude", "/bin/dash")
    shim = write(cage, bin_dir / "claude", "claude")
    round_trip = b'exec "%s" -v\n' % os.fsencode(shim)
    done = run(cage, shim, "-v", stdin=round_trip)
    assert done.code == 122
    assert f"{late_dir}/claude, which cagewrap runs on this machine" in done.err.decode()
    done = run(cage, shim, "-v", stdin=b'exec "%s" -- true\n' % os.fsencode(CAGEWRAP))
    assert done.code == 122


# --- a symlink ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_claude")
def test_a_symlink_takes_its_settings_from_the_file(
    cage: Cage, bin_dir: Path, late_dir: Path
) -> None:
    program(late_dir / "codex", "/bin/echo")
    program(late_dir / "pi", "/bin/false")
    link = bin_dir / "codex"
    link.symlink_to(CAGEWRAP)
    config = cage.place.config_home / "cagewrap.toml"
    config.write_text(f'image = "{IMAGE}"\nnetwork = "none"\nsession_env = ["WHO"]\n')
    assert run(cage, "codex", "a", "", "-V", WHO="me") == Done(0, b"a  -V\n", b"")
    assert cage.record()["session"] == "me"
    (bin_dir / "pi").symlink_to(link)
    assert run(cage, "pi", WHO="me") == Done(1, b"", b"")
    other = bin_dir / "cw"
    other.symlink_to(CAGEWRAP)
    assert run(cage, other, "ls").out.startswith(b"NAME")  # any other name is cagewrap's
