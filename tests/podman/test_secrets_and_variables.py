"""What is chosen of the environment arrives, nothing else does, and secrets stay secret."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from .cages import PROGRAMS, RUNTIME_DIR, Cage, all_pids, command_line, podman, read_bytes

REPORT = PROGRAMS / "report.py"
OWNERS = {
    "SECRET_X": "planted-1",
    "GITHUB_TOKEN": "planted-2",
    "SSH_AUTH_SOCK": "/tmp/planted-3",
    "AWS_SECRET_ACCESS_KEY": "planted-4",
    "XDG_SESSION_ID": "planted-5",
    "DBUS_SESSION_BUS_ADDRESS": "unix:path=/planted-6",
    "PYTHONPATH": "/planted-7",
    "LD_PRELOAD": "",
    "EDITOR": "planted-8",
}
CHOSEN = {
    "ANTHROPIC_API_KEY": "sk-chosen",
    "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "1000",
    "TERM": "xterm-chosen",
    "TZ": "Europe/Berlin",
    "MCP_TIMEOUT": "5",
}


def environment(cage: Cage, **options: Any) -> dict[str, str]:
    found: dict[str, Any] = json.loads(cage.text("python3", REPORT, **options))
    result: dict[str, str] = found["env"]
    return result


def test_chosen_variables_arrive_and_others_do_not(identity_cage: Cage) -> None:
    found = environment(identity_cage, env=OWNERS | CHOSEN)
    assert {name: found.get(name) for name in CHOSEN} == CHOSEN
    assert set(OWNERS) & set(found) == set()
    assert "planted" not in json.dumps(found)


def test_every_variable_inside_has_its_reason(identity_cage: Cage) -> None:
    """The whole environment, so that a new one does not slip in unseen."""
    found = environment(identity_cage, env=OWNERS)
    is_root = "root" in identity_cage.flags or "owner" not in identity_cage.flags
    assert found.pop("container", "podman") == "podman"
    assert found == {
        "HOME": identity_cage.env["HOME"],
        "LANG": "C.UTF-8",
        "LOGNAME": "root" if is_root else "tester",
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "PWD": str(identity_cage.project),
        "USER": "root" if is_root else "tester",
        **({"IS_SANDBOX": "1"} if is_root else {}),
        **({"TZ": found["TZ"]} if "TZ" in found else {}),
    }


def test_environment_is_that_of_each_message(shared_cage: Cage) -> None:
    for value in ("first", "second"):
        assert environment(shared_cage, env={"CLAUDE_X": value})["CLAUDE_X"] == value
    assert "CLAUDE_X" not in environment(shared_cage)


def test_locale_without_utf8_becomes_one_with_it(shared_cage: Cage) -> None:
    script = "print('ü', __import__('sys').stdout.encoding)"
    for locale in ("C", "de_DE.ISO-8859-1", "xx_XX.UTF-8", ""):
        env = {"LANG": locale, "LC_ALL": locale}
        assert shared_cage.text("python3", "-c", script, env=env) == "ü utf-8\n"


def test_flag_sets_passes_and_holds_back(shared_cage: Cage) -> None:
    flags = ("--env", "SET=value with = and 'quotes'\n", "--env", "PASSED", "--env", "!CLAUDE_NOT")
    env = {"PASSED": "passed", "CLAUDE_NOT": "not", "CLAUDE_YES": "yes"}
    found = environment(shared_cage, flags=flags, env=env)
    assert found["SET"] == "value with = and 'quotes'\n"
    assert found["PASSED"] == "passed"
    assert found["CLAUDE_YES"] == "yes"
    assert "CLAUDE_NOT" not in found


# --- secrets ------------------------------------------------------------------------------------


@contextmanager
def watched(value: bytes) -> Iterator[list[str]]:
    """Looks at the arguments of every process of this machine for as long as it takes."""
    seen: list[str] = []
    done = threading.Event()
    ours = {os.getpid(), os.getppid()}

    def watch() -> None:
        while not done.is_set():
            seen.extend(
                command_line(pid)
                for pid in all_pids()
                if pid not in ours and value in read_bytes(f"/proc/{pid}/cmdline")
            )

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


def places_with(value: bytes, *directories: Path) -> list[Path]:
    return [
        path
        for directory in directories
        for path in directory.rglob("*")
        if path.is_file() and value in read_bytes(path)
    ]


@pytest.mark.parametrize("how", ["name", "file", "config", "bytes"])
def test_secret_arrives_and_shows_nowhere_else(make_cage: Callable[..., Cage], how: str) -> None:
    cage = make_cage()
    value = f"s3cret-{how}-value"
    file = cage.place.root / "secret-file"
    env: dict[str | bytes, str | bytes] = {}
    flags: tuple[str, ...] = ()
    argv: list[str | bytes] = []
    if how == "file":
        file.write_text(value + "\n")
        flags = ("--secret", f"THE_SECRET={file}")
    elif how == "config":
        file.write_text(value)
        (cage.place.config_home / "cagewrap.toml").write_text(
            f'secret_files.THE_SECRET = "{file}"\n'
        )
    else:
        env, flags = {"THE_SECRET": value}, ("--secret", "THE_SECRET")
    if how == "bytes":
        argv = [b"\xff"]  # the way round the runtime's JSON
    with watched(value.encode()) as seen:
        for _ in range(2):  # cold, then warm
            script = 'test "$THE_SECRET" = "$1" && sleep 0.2'
            wanted = value[:3] + '"$0"' + value[3:]
            script = f'test "$THE_SECRET" = {wanted!s} && sleep 0.2'
            assert cage.run("sh", "-c", script, "", *argv, env=env, flags=flags).code == 0
        inspected = podman("container", "inspect", cage.name()).stdout
    assert seen == []
    assert value not in inspected
    found = places_with(value.encode(), cage.place.state_home, RUNTIME_DIR / "cagewrap")
    assert found == []
    assert value.encode() not in read_bytes(f"/proc/{cage.keeper()}/environ")
    assert value.encode() not in read_bytes(f"/proc/{cage.init()}/environ")


def test_secret_file_that_cannot_be_read_is_said_before_anything_runs(shared_cage: Cage) -> None:
    done = shared_cage.run("echo", "ran", flags=("--secret", "THE_SECRET=/nowhere/file"))
    assert (done.code, done.out) == (111, b"")
    assert b"/nowhere/file" in done.err


def test_secret_file_is_read_anew_for_each_message(shared_cage: Cage) -> None:
    file = shared_cage.place.root / "rotated"
    flags = ("--secret", f"THE_SECRET={file}")
    for value in ("first", "second"):
        file.write_text(value)
        assert shared_cage.text("sh", "-c", "echo $THE_SECRET", flags=flags) == f"{value}\n"


def test_tickets_and_records_are_the_owners_alone(shared_cage: Cage) -> None:
    shared_cage.text("true", flags=("--env", "TOKEN=visible-in-argv-anyway"))
    for path in (RUNTIME_DIR / "cagewrap", shared_cage.cages_dir):
        assert path.stat().st_mode & 0o077 == 0, path
