"""The verbs a person uses on sessions: each does what it says, and says what it did."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .cages import Cage, is_alive, podman, seconds_until, wait_until


def verb(cage: Cage, *words: str, code: int = 0) -> dict[str, Any]:
    """Run a verb with --json; its one JSON object."""
    done = cage.cagewrap(*words, "--json")
    assert done.code == code, (done.out, done.err)
    found: dict[str, Any] = json.loads(done.out)
    assert found["ok"] is (code == 0)
    return found


def row(cage: Cage, name: str = "") -> dict[str, Any]:
    """One session's line of `ls`."""
    found = {one["name"]: one for one in verb(cage, "ls")["sessions"]}
    return found[name or cage.name()]


def sleeper(cage: Cage, *flags: str) -> subprocess.Popen[bytes]:
    """An agent at work."""
    process = cage.popen(
        "sh", "-c", "echo up; exec sleep 1000", flags=flags, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    return process


def test_ls_shows_each_state(cage: Cage) -> None:
    assert verb(cage, "ls")["sessions"] == []
    assert cage.cagewrap("ls").out == b""
    with sleeper(cage) as agent:
        found = row(cage)
        assert (found["status"], found["messages"]) == ("running", 1)
        assert found["project"] == str(cage.project)
        assert found["session"] == ""
        agent.kill()
    assert wait_until(lambda: row(cage)["messages"] == 0, 5)
    verb(cage, "stop")
    assert row(cage)["status"] == "stopped"
    podman("rm", "--force", cage.name())
    assert row(cage)["status"] == "gone"
    table = cage.cagewrap("ls").out.decode()
    assert table.split()[:7] == ["NAME", "SESSION", "STATUS", "AGENTS", "REQUESTS", "USED", "IMAGE"]
    assert cage.name() in table
    assert str(cage.project) in table


def test_stop_keeps_what_was_installed_and_ends_agents(cage: Cage) -> None:
    cage.text("touch", "/opt/installed")
    with sleeper(cage) as agent:
        found = verb(cage, "stop")
        assert found["done"] == [{"what": "stopped", "name": cage.name(), "detail": ""}]
        assert agent.wait(10) == -signal.SIGTERM
    assert cage.keeper() == 0
    assert verb(cage, "stop")["done"][0]["what"] == "unchanged"
    assert cage.text("ls", "/opt/installed") == "/opt/installed\n"


def test_stop_without_a_keeper_stops_the_container(cage: Cage) -> None:
    cage.text("true")
    os.kill(cage.keeper(), signal.SIGKILL)
    assert wait_until(lambda: cage.keeper() == 0, 5)
    assert cage.init() != 0
    assert verb(cage, "stop")["done"][0]["what"] == "stopped"
    assert cage.init() == 0


def test_rm_deletes_all_a_session_had(cage: Cage) -> None:
    cage.text("sh", "-c", "touch ~/mine; mkdir ~/theirs; touch ~/theirs/x; chown -R 33:33 ~/theirs")
    name = cage.name()
    directory = cage.cages_dir / name
    assert (directory / "home/mine").exists()
    assert verb(cage, "rm", name)["done"][0]["what"] == "removed"
    assert not directory.exists()
    assert podman("container", "exists", name).returncode == 1
    assert verb(cage, "ls")["sessions"] == []
    assert verb(cage, "rm", name, code=120)["error"]["id"] == "session"


def test_rm_of_a_working_cage_wants_force(cage: Cage) -> None:
    with sleeper(cage) as agent:
        done = cage.cagewrap("rm")
        assert done.code == 120
        assert b"1 agent(s) at work" in done.err
        assert b"cagewrap rm --force" in done.err
        assert agent.poll() is None
        verb(cage, "rm", "--force")
        assert agent.wait(10) == -signal.SIGTERM


def test_rm_all_removes_every_session(cage: Cage) -> None:
    for session in ("one", "two"):
        cage.text("true", flags=("--session", session))
    assert {one["session"] for one in verb(cage, "ls")["sessions"]} == {"one", "two"}
    assert cage.cagewrap("rm").code == 120, "two fit this directory"
    assert len(verb(cage, "rm", "--all")["done"]) == 2
    assert cage.names() == []


def test_rm_of_a_project_that_may_be_gone(cage: Cage) -> None:
    other = cage.place.root / "other"
    other.mkdir()
    for name in ("a", "b"):
        cage.text("true", flags=("--session", name))
        cage.text("true", flags=("--session", name), cwd=other)
    verb(cage, "rm", "a", "--project", str(other))
    verb(cage, "stop", "--all")
    shutil.rmtree(other)
    verb(cage, "rm", "a", "--project", str(other), code=120)
    verb(cage, "rm", "--all", "--project", str(other))
    left = [(one["project"], one["session"]) for one in verb(cage, "ls")["sessions"]]
    assert left == [(str(cage.project), "a"), (str(cage.project), "b")]


def test_rm_shows_files_of_in_cage_users_and_takes_them_back(cage: Cage) -> None:
    make = (
        "mkdir d && touch d/f && chown -R 33:33 d && ln -s /etc/passwd d/link && chown -h 33 d/link"
    )
    cage.text("sh", "-c", make)
    theirs = cage.project / "d/f"
    assert theirs.stat().st_uid != os.getuid()
    found = verb(cage, "rm")
    assert sorted(found["foreign_files"]) == [
        str(cage.project / name) for name in ("d", "d/f", "d/link")
    ]
    taken = verb(cage, "take-back", str(cage.project))
    assert taken["done"][0]["detail"] == "3 file(s)"
    for path in (cage.project / "d", theirs, cage.project / "d/link"):
        assert path.lstat().st_uid == os.getuid()
    shutil.rmtree(cage.project / "d")


def test_settings_that_a_cage_does_not_have_are_told_or_refused(cage: Cage) -> None:
    is_open = ("--network", "open")
    cage.text("true", flags=is_open)
    told = cage.run("true", flags=(*is_open, "--shm-size", "1m"))
    assert told.code == 0
    assert told.err.count(b"settings have changed") == 1
    assert cage.run("true", flags=is_open).err == b""
    refused = cage.run("echo", "ran", flags=("--network", "none"))
    assert (refused.code, refused.out) == (120, b"")
    assert b"has a network" in refused.err
    assert verb(cage, "recreate", "--fresh")["done"][0]["what"] == "recreated"
    assert cage.run("echo", "ran", flags=("--network", "none")).out == b"ran\n"
    missing = cage.run("true", flags=("--mount", f"{cage.place.root}/none"))
    assert missing.code == 112


def test_recreate_applies_settings_and_keeps_what_was_installed(cage: Cage) -> None:
    # podman 4.3's commit wants a runroot in a storage.conf that is not below ~/.config.
    del cage.env["XDG_CONFIG_HOME"]
    (cage.project / "secret").write_text("s")
    cage.text("sh", "-c", "touch /opt/installed ~/at-home")
    assert not row(cage)["is_outdated"]
    refused = cage.run("cat", "secret", flags=("--hide", "secret"))
    assert (refused.code, refused.out) == (120, b"")
    assert b"cagewrap recreate" in refused.err
    assert row(cage)["is_outdated"]
    assert b"*" in cage.cagewrap("ls").out
    assert cage.text("cat", "secret") == "s", "without it, a running cage is as it was"
    assert cage.run("true", flags=("--hide", "secret")).code == 120
    assert verb(cage, "recreate")["done"][0]["what"] == "recreated"
    assert not row(cage)["is_outdated"]
    kept = cage.text(
        "sh", "-c", "ls /opt/installed ~/at-home; cat secret", flags=("--hide", "secret")
    )
    assert kept == f"{Path.home()}/at-home\n/opt/installed\n"
    verb(cage, "recreate", "--fresh")
    assert cage.run("ls", "/opt/installed", flags=("--hide", "secret")).code == 2
    verb(cage, "rm")
    images = podman("images", "--format", "{{.Repository}}:{{.Tag}}").stdout
    assert "cagewrap-session" not in images


def test_gc_removes_only_what_has_no_use(make_cage: Callable[..., Cage]) -> None:
    used, gone = make_cage(), make_cage()
    used.text("true")
    gone.env["XDG_STATE_HOME"] = used.env["XDG_STATE_HOME"]
    done = subprocess.run(
        [*gone.command(), "true"], cwd=gone.project, env=gone.env, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    names = used.names()
    used.stop_all()
    shutil.rmtree(gone.project)
    (used.cages_dir / "cagewrap-stray-00000000" / "home").mkdir(parents=True)
    planned = verb(used, "gc", "--dry-run")["done"]
    assert sorted(one["detail"] for one in planned) == [
        "a directory without a session",
        f"its project {gone.project} is gone",
    ]
    assert used.names() == sorted([*names, "cagewrap-stray-00000000"]), "a dry run removes nothing"
    assert verb(used, "gc")["done"] == planned
    [left] = used.names()
    assert used.record(left)["project"] == str(used.project)
    assert verb(used, "gc")["done"] == []


def test_gc_removes_sessions_unused_for_long(cage: Cage) -> None:
    cage.text("true", flags=("--keep-for", "30d"))
    cage.stop()
    path = cage.cages_dir / cage.name() / "state.json"
    state = json.loads(path.read_text())
    record_path = path.with_name("record.json")
    record = json.loads(record_path.read_text())
    month_s = 30 * 86400
    for days, removed in ((29, 0), (31, 1)):
        state["used_at"] = record["created_at"] = time.time() - days * 86400
        path.write_text(json.dumps(state))
        record_path.write_text(json.dumps(record))
        assert record["keep_for_s"] == month_s
        assert len(verb(cage, "gc")["done"]) == removed
    assert cage.names() == []


def test_logs_show_what_the_keeper_did(cage: Cage) -> None:
    cage.text("true")
    assert b"runs, init" in cage.cagewrap("logs").out
    assert any("runs, init" in line for line in verb(cage, "logs")["log"])
    assert cage.cagewrap("logs", "nosuch").code == 120


def test_shell_runs_a_command_in_a_cage_from_anywhere(cage: Cage) -> None:
    cage.text("touch", "/opt/here", flags=("--session", "s"))
    done = subprocess.run(
        [cage.command()[0], "shell", cage.name(), "--", "sh", "-c", "pwd; ls /opt/here; exit 7"],
        cwd="/",
        env=cage.env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (7, b"")
    assert done.stdout.decode() == f"{cage.project}\n/opt/here\n"


def test_a_verb_finds_the_session_of_a_directory_below(cage: Cage) -> None:
    (cage.project / ".git").mkdir()
    (cage.project / ".git/HEAD").write_text("ref: refs/heads/main\n")
    for name in ("objects", "refs"):
        (cage.project / ".git" / name).mkdir()
    below = cage.project / "a/b"
    below.mkdir(parents=True)
    cage.text("true", cwd=below)
    done = subprocess.run(
        [cage.command()[0], "stop", "--json"],
        cwd=below, env=cage.env, capture_output=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout)["done"][0]["name"] == cage.name()


def test_dry_run_makes_nothing(cage: Cage) -> None:
    done = cage.run("true", flags=("--dry-run",))
    assert done.code == 0
    assert done.out.startswith(b"podman --runtime crun run")
    assert cage.names() == []
    assert podman("ps", "-aq", "--filter", "label=cagewrap.name").stdout == ""


def test_new_settings_reach_a_session_that_never_had_a_container(cage: Cage) -> None:
    assert cage.run("true", flags=("--image", "localhost/nosuch:1")).code == 118
    assert cage.text("echo", "ok") == "ok\n"
    assert row(cage)["image"] == cage.flags[1]


def test_idle_stop_then_on_again(cage: Cage) -> None:
    cage.text("touch", "/opt/x", flags=("--idle-stop", "1s"))
    keeper = cage.keeper()
    assert seconds_until(lambda: not is_alive(keeper), 8) < 6
    assert row(cage)["status"] == "stopped"
    assert cage.text("ls", "/opt/x") == "/opt/x\n"


@pytest.mark.parametrize("words", [("bogus",), ("ls", "--bogus"), ("port",), ("port", "x", "y")])
def test_refuses_what_it_does_not_know(cage: Cage, words: tuple[str, ...]) -> None:
    done = cage.cagewrap(*words)
    assert done.code == 110
    assert done.out == b""
    assert b"  fix: " in done.err


def test_flags_without_a_command_are_told_where_it_goes(cage: Cage) -> None:
    done = cage.cagewrap("--image", "x")
    assert (done.code, done.out) == (110, b"")
    assert b"no `--`" in done.err
