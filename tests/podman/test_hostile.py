"""What an agent prepares, and a keeper that does not answer, keep no verb from its work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .cages import CAGEWRAP, Cage, is_alive, podman, wait_until
from .test_verbs import row, sleeper, verb

DEEP = 1500
NEST = f"i=0; while [ $i -lt {DEEP} ]; do mkdir d && cd d || exit 1; i=$((i+1)); done"


def plant(directory: Path, *names: str) -> Path:
    """Programs that write down that they were run, and by which name."""
    proof = directory / "proof"
    for name in names:
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'#!/bin/sh\necho "$0" >>{proof}\nexit 1\n')
        path.chmod(0o755)
    return proof


@pytest.mark.parametrize("path", [".", "bin", ""])
def test_programs_in_the_project_are_not_run_on_the_host(cage: Cage, path: str) -> None:
    names = ("podman", "git", "crun", "nsenter", "systemd-run", "find", "rm")
    proof = plant(cage.project, *names, *(f"bin/{name}" for name in names))
    # The interpreter is found by the first line of `cagewrap`, whatever PATH is.
    cage.env["PATH"] = f"{path}:{cage.env['PATH']}"
    assert cage.text("echo", "ok") == "ok\n"
    for words in (("ls",), ("stop",), ("take-back", "."), ("gc",), ("rm",)):
        verb(cage, *words)
    assert not proof.exists(), proof.read_text()


def test_gc_leaves_the_owners_containers_of_an_image_of_a_cage(cage: Cage) -> None:
    # podman 4.3's commit wants a runroot in a storage.conf that is not below ~/.config.
    del cage.env["XDG_CONFIG_HOME"]
    cage.text("true")
    name = cage.name()
    image = "localhost/owners-own:1"
    mine = ("owners-own", "cagewrap-mine-0123abcd")
    try:
        assert podman("commit", "--quiet", name, image).returncode == 0
        for container in mine:
            assert podman("create", "--name", container, image, "true").returncode == 0
        verb(cage, "rm")
        assert verb(cage, "gc")["done"] == []
        for container in mine:
            assert podman("container", "exists", container).returncode == 0
    finally:
        podman("rm", "--force", *mine)
        podman("rmi", image)


def test_gc_removes_a_cage_without_a_session(cage: Cage) -> None:
    cage.text("true")
    cage.stop()
    name = cage.name()
    (cage.cages_dir / name / "record.json").unlink()
    found = verb(cage, "gc")["done"]
    assert sorted((one["name"], one["detail"]) for one in found) == [
        (name, "a container without a session"),
        (name, "a directory without a session"),
    ]
    assert podman("container", "exists", name).returncode == 1
    assert cage.names() == []


def test_deep_directories_are_removed_and_taken_back(cage: Cage) -> None:
    script = f"cd ~ && {NEST}; cd {cage.project} && {NEST}; touch f; chown -h 33:33 . f"
    cage.text("sh", "-c", script)
    assert len(verb(cage, "rm")["foreign_files"]) == 2
    assert cage.names() == []
    assert verb(cage, "take-back", ".")["done"][0]["detail"] == "2 file(s)"
    assert verb(cage, "take-back", ".")["done"][0]["detail"] == "0 file(s)"
    subprocess.run(["rm", "-rf", "--", cage.project / "d"], check=True)


def test_rm_follows_no_symlink(cage: Cage, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("mine")
    cage.text("sh", "-c", f"ln -s {kept} ~/link; ln -s {kept}/file ~/file; chown -h 33 ~/link")
    verb(cage, "rm")
    assert (kept / "file").read_text() == "mine"


def test_take_back_changes_nothing_outside_when_directories_are_swapped(
    cage: Cage, tmp_path: Path
) -> None:
    """An agent swaps a directory for a symlink to one outside, again and again."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_text("")
    subprocess.run(["podman", "unshare", "chown", "44:44", outside / "f"], check=True)
    owner = (outside / "f").stat().st_uid
    swap = (
        f"mkdir d e; touch d/f e/f; chown 33 d/f; ln -s {outside} l; echo up; "
        "while :; do mv -T d x; mv -T l d; chown 33 x/f; mv -T d l; mv -T x d; done"
    )
    with cage.popen("sh", "-c", swap, stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"up\n"
        assert wait_until((cage.project / "d").is_symlink, 5), "nothing is swapped"
        for _ in range(20):
            cage.cagewrap("take-back", ".")
        assert agent.poll() is None
        agent.kill()
    assert (outside / "f").stat().st_uid == owner
    subprocess.run(["podman", "unshare", "rm", "-rf", outside], check=True)


@pytest.fixture
def silent(cage: Cage) -> Cage:
    """A cage whose keeper is stopped by a signal."""
    cage.text("true")
    os.kill(cage.keeper(), signal.SIGSTOP)
    return cage


def test_ls_and_gc_go_on_without_a_keeper_that_does_not_answer(
    silent: Cage, make_cage: Callable[..., Cage]
) -> None:
    other = make_cage()
    other.env["XDG_STATE_HOME"] = silent.env["XDG_STATE_HOME"]
    done = subprocess.run(
        [*other.command(), "true"], cwd=other.project, env=other.env, capture_output=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = {one["project"]: one["status"] for one in verb(silent, "ls")["sessions"]}
    assert found == {str(silent.project): "unresponsive", str(other.project): "running"}
    assert verb(silent, "gc")["done"] == []
    [name] = [
        name for name in silent.names() if silent.record(name)["project"] != str(other.project)
    ]
    keeper = silent.keeper(name)
    refused = verb(silent, "rm", name, code=120)
    assert "does not answer" in refused["error"]["message"]
    assert refused["error"]["hint"] == f"cagewrap rm --force {name}"
    assert is_alive(keeper)
    done = silent.cagewrap("stop", "--all", "--json")
    assert {one["what"] for one in json.loads(done.out)["done"]} == {"stopped"}
    assert not is_alive(keeper)


def test_stop_kills_a_keeper_that_does_not_answer(silent: Cage) -> None:
    keeper, init = silent.keeper(), silent.init()
    assert verb(silent, "stop")["done"][0]["what"] == "stopped"
    assert not is_alive(keeper)
    assert not is_alive(init)
    assert row(silent)["status"] == "stopped"
    assert silent.text("echo", "on") == "on\n"


def test_rm_force_kills_a_keeper_that_does_not_answer_and_its_agents(cage: Cage) -> None:
    with sleeper(cage) as agent:
        name, keeper, inside = cage.name(), cage.keeper(), cage.inside_pids()
        os.kill(keeper, signal.SIGSTOP)
        verb(cage, "rm", "--force")
        assert agent.wait(10) != 0
        assert not [pid for pid in (keeper, *inside) if is_alive(pid)]
    assert cage.names() == []
    assert podman("container", "exists", name).returncode == 1


def test_rm_force_kills_a_podman_that_waits_for_ever(cage: Cage) -> None:
    """`podman start` opens /etc/passwd in the cage, which may be a FIFO."""
    cage.text("true")
    cage.stop()
    cage.text("sh", "-c", "rm /etc/passwd; mkfifo /etc/passwd")
    cage.stop()
    name = cage.name()
    with cage.popen("true", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as shim:
        time.sleep(1)
        keeper = cage.keeper()
        if keeper:  # some podmans do not read it
            os.kill(keeper, signal.SIGSTOP)
        verb(cage, "rm", "--force")
        shim.communicate(timeout=10)
    assert not is_alive(keeper)
    waiting = subprocess.run(
        ["pgrep", "--full", f"podman.*start.*{name}"], capture_output=True, check=False
    )
    assert waiting.stdout == b""
    assert podman("container", "exists", name).returncode == 1


@pytest.mark.parametrize("what", ["mkfifo", "ln -s /nowhere/x"])
def test_nothing_in_the_way_of_a_new_passwd_holds_a_start_up(cage: Cage, what: str) -> None:
    cage.text("true")
    cage.text("sh", "-c", f"echo root:x:0:0::/x:/bin/sh >/etc/passwd; {what} /etc/passwd.cagewrap")
    cage.stop()
    began = time.monotonic()
    assert cage.text("sh", "-c", "grep ^root: /etc/passwd | cut -d: -f6") == f"{cage.env['HOME']}\n"
    assert time.monotonic() - began < 4


def test_a_removal_lets_others_begin_meanwhile(cage: Cage, tmp_path: Path) -> None:
    """podman takes its time over a removal; a message of another session does not wait for it."""
    cage.text("true", flags=("--session", "one"))
    slow = tmp_path / "slow"
    slow.mkdir()
    real = subprocess.run(["which", "podman"], capture_output=True, text=True, check=True)
    (slow / "podman").write_text(
        f'#!/bin/sh\ncase "$1" in rm) sleep 8;; esac\nexec {real.stdout.strip()} "$@"\n'
    )
    (slow / "podman").chmod(0o755)
    env = cage.env | {"PATH": f"{slow}:{cage.env['PATH']}"}
    with subprocess.Popen([CAGEWRAP, "rm", "one"], cwd=cage.project, env=env) as removal:
        assert wait_until(lambda: cage.keeper() == 0, 10)
        time.sleep(0.5)
        began = time.monotonic()
        cage.text("true", flags=("--session", "two"))
        assert removal.poll() is None, f"{time.monotonic() - began:.1f} s: it waited"
        assert removal.wait(30) == 0
    assert [cage.record(name)["session"] for name in cage.names()] == ["two"]


@pytest.mark.parametrize("port", ["0", "65536", "99999", "9" * 5000, "1:99999", "²"])
def test_port_refuses_what_is_none(cage: Cage, port: str) -> None:
    assert verb(cage, "port", ".", port, code=110)["error"]["id"] == "usage"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("ls", "--bogus"), 110),
        (("port",), 110),
        (("rm", "nosuch"), 120),
        (("stop", "nosuch"), 120),
        (("rm", "--all", "x"), 110),
        (("recreate", "nosuch"), 120),
        (("logs", "nosuch"), 120),
    ],
)
def test_every_failure_has_its_json(cage: Cage, words: tuple[str, ...], code: int) -> None:
    assert verb(cage, *words, code=code)["error"]["exit_code"] == code


def test_verbs_warn_of_nothing(cage: Cage) -> None:
    cage.text("true")
    for words in (("ls",), ("gc",), ("stop",), ("rm",)):
        code = f"from cagewrap.cli import run; run({words!r})"
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            cwd=cage.project, env=cage.env, capture_output=True, timeout=30, check=False,
        )  # fmt: skip
        assert b"Warning" not in done.stderr
        assert done.returncode == 0, done.stderr
