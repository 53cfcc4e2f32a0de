"""How a login reaches a cage in each mode, and what of it can be found afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .cages import PROGRAMS, TIMEOUT_S, Cage, all_pids, podman, read_bytes, wait_until

ACCESS, REFRESH = "sk-ant-oat01-MARKED-ACCESS", "sk-ant-ort01-MARKED-REFRESH"
TOKEN, SHARED = "sk-ant-oat01-MARKED-TOKEN", "sk-ant-ort01-MARKED-SHARED"
MARK = "MARKED"
SEEK = ("python3", PROGRAMS / "seek.py")
DIRECTORY = "CLAUDE_SECURESTORAGE_CONFIG_DIR"
SHOW = ("sh", "-c", 'echo "$CLAUDE_SECURESTORAGE_CONFIG_DIR"; cat "$0" 2>/dev/null; true')
FILE = "/run/cagewrap/login/.credentials.json"


def login_dir(cage: Cage) -> Path:
    path = cage.place.state_home / "cagewrap/login/claude"
    path.mkdir(parents=True, exist_ok=True)
    for one in (path, path.parent, path.parent.parent):
        one.chmod(0o700)
    return path


def put(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def log_in(cage: Cage, access: str = ACCESS, left_s: float = 3600) -> Path:
    values = {
        "accessToken": access,
        "refreshToken": REFRESH,
        "expiresAt": round((time.time() + left_s) * 1000),
        "scopes": ["user:inference", "user:profile"],
        "subscriptionType": "max",
        "unknown": f"unknown {MARK}",
    }
    text = json.dumps({"claudeAiOauth": values, "mcpOAuth": {"x": f"other {MARK}"}})
    return put(login_dir(cage) / ".credentials.json", text)


def configure(cage: Cage, text: str) -> None:
    (cage.place.config_home / "cagewrap.toml").write_text(text)


def environment(cage: Cage, *flags: str, **env: str) -> dict[str, str]:
    """What of the agent's environment may have to do with a login."""
    lines = cage.text("env", flags=flags, env=env).splitlines()
    found = dict(line.split("=", 1) for line in lines)
    return {
        name: value
        for name, value in found.items()
        if name.startswith(("ANTHROPIC", "CLAUDE")) and name != "CLAUDE_CODE_MAX_RETRIES"
    }


@pytest.fixture(params=["root", "owner"])
def either_cage(request: pytest.FixtureRequest, make_cage: Callable[..., Cage]) -> Cage:
    return make_cage("--user", request.param)


def test_access_is_a_file_with_the_access_token_alone(either_cage: Cage) -> None:
    cage = either_cage
    log_in(cage)
    out = cage.text(*SHOW, FILE, timeout_s=110)
    path, _, content = out.partition("\n")
    assert path == os.path.dirname(FILE)
    values = json.loads(content)
    assert values.keys() == {"claudeAiOauth"}
    kept = values["claudeAiOauth"]
    assert kept["accessToken"] == ACCESS
    assert kept["refreshToken"] is None
    assert kept["subscriptionType"] == "max"
    assert set(kept) == {
        "accessToken", "refreshToken", "expiresAt", "scopes", "subscriptionType",
    }  # fmt: skip
    refused = cage.run("sh", "-c", f"rm {FILE}; mv {FILE} /tmp; echo > {FILE}; ls {FILE}")
    assert refused.code == 0
    assert refused.err.count(b"Read-only") >= 2


def test_a_new_login_is_there_at_the_next_message_and_while_one_runs(cage: Cage) -> None:
    log_in(cage)
    script = f"cat {FILE}; echo; read x; sleep 0.8; cat {FILE}"
    with cage.popen(
        "sh", "-c", script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        assert running.stdout is not None
        assert ACCESS.encode() in running.stdout.readline()
        log_in(cage, "sk-ant-oat01-second")
        out, _ = running.communicate(b"\n", TIMEOUT_S)
    assert b"sk-ant-oat01-second" in out
    log_in(cage, "sk-ant-oat01-third")
    assert "sk-ant-oat01-third" in cage.text("cat", FILE)


def test_the_mode_is_of_the_command(cage: Cage) -> None:
    """One cage, running all the time: a command's settings hold for it alone."""
    assert environment(cage) == {}
    log_in(cage)
    put(login_dir(cage) / "token", TOKEN + "\n")
    container = cage.state()["container_id"]
    access = {DIRECTORY: "/run/cagewrap/login"}
    assert environment(cage) == access
    assert environment(cage, "--login", "token") == {"CLAUDE_CODE_OAUTH_TOKEN": TOKEN}
    assert environment(cage) == access
    assert environment(cage, "--login=none") == {}
    assert cage.run("cat", FILE, flags=("--login=none",)).code != 0
    assert environment(cage, CAGEWRAP_LOGIN="none") == {}
    configure(cage, '[login]\nmode = "token"\n')
    assert environment(cage) == {"CLAUDE_CODE_OAUTH_TOKEN": TOKEN}
    assert environment(cage, "--login=auto") == access
    (login_dir(cage) / ".credentials.json").unlink()
    assert environment(cage, "--login=auto") == {"CLAUDE_CODE_OAUTH_TOKEN": TOKEN}
    put(login_dir(cage) / "token", "sk-ant-api03-key\n")
    assert environment(cage) == {"ANTHROPIC_API_KEY": "sk-ant-api03-key"}
    assert cage.state()["container_id"] == container


@pytest.mark.parametrize("mode", ["auto", "access", "token", "directory"])
def test_a_variable_of_yours_is_used_instead(cage: Cage, mode: str) -> None:
    log_in(cage)
    put(login_dir(cage) / "token", TOKEN)
    flags = ("--login", mode)
    own = {"ANTHROPIC_API_KEY": "sk-mine"}
    assert environment(cage, *flags, **own) == own
    assert environment(cage, *flags, "--env", "ANTHROPIC_AUTH_TOKEN=mine") == {
        "ANTHROPIC_AUTH_TOKEN": "mine"
    }
    assert DIRECTORY in environment(cage, *flags, ANTHROPIC_API_KEY="") or mode in (
        "token",
        "directory",  # the cage was made without its mount
    )


def test_a_token_command(cage: Cage) -> None:
    counter = cage.place.root / "counter"
    program = cage.place.root / "tell"
    program.write_text(f'#!/bin/sh\necho x >> {counter}\necho "NO $*" >&2\necho {TOKEN}\n')
    program.chmod(0o755)
    configure(cage, f'[login]\nmode = "token"\ntoken_command = ["{program}", "a b"]\n')
    assert environment(cage) == {"CLAUDE_CODE_OAUTH_TOKEN": TOKEN}
    assert environment(cage) == {"CLAUDE_CODE_OAUTH_TOKEN": TOKEN}
    assert counter.read_text() == "x\n"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo sk-ant-oat01-MARKED; exit 3", "the token command tell ended with 3"),
        ("kill -9 $$", "was ended by signal 9"),
        ("true", "did not print one token"),
        ("echo two words MARKED", "did not print one token"),
        ("echo MARKED", "begins like no token"),
        ("", "cannot be started"),
    ],
)
def test_a_token_command_that_fails(cage: Cage, script: str, said: str) -> None:
    program = cage.place.root / "tell"
    if script:
        program.write_text(f"#!/bin/sh\necho MARKED >&2\n{script}\n")
        program.chmod(0o755)
    configure(cage, f'[login]\nmode = "token"\ntoken_command = ["{program}"]\n')
    done = cage.run("env")
    assert done.code == 0
    assert said in done.err.decode()
    assert b"MARKED" not in done.err + done.out
    assert MARK not in cage.log()


def test_directory_is_shared_by_cages_made_for_it(make_cage: Callable[..., Cage]) -> None:
    cage = make_cage("--login", "directory")
    path = '"$CLAUDE_SECURESTORAGE_CONFIG_DIR"/.credentials.json'
    cage.text("sh", "-c", f"echo mine > {path}", flags=("--session", "one"))
    assert cage.text("sh", "-c", f"cat {path}", flags=("--session", "two")) == "mine\n"


def test_a_cage_without_the_shared_directory_says_so(cage: Cage) -> None:
    cage.text("true")
    done = cage.run("true", flags=("--login", "directory"))
    assert done.code == 120
    assert b"cagewrap recreate" in done.err
    done = cage.cagewrap("recreate", "--fresh")
    assert done.code == 0, done.err
    assert environment(cage, "--login", "directory") == {DIRECTORY: "/run/cagewrap/login-shared"}


def test_what_is_missing_is_said_once(cage: Cage) -> None:
    claude = cage.project / "claude"
    claude.write_text("#!/bin/sh\nexit 0\n")
    claude.chmod(0o755)
    assert cage.run("true").err == b""  # nobody asked for a login
    done = cage.run(claude)
    assert done.code == 0
    assert done.err.count(b"cagewrap:") == 1
    assert b"cagewrap login" in done.err
    assert cage.run(claude).err == b""
    cage.stop()
    assert cage.run(claude).err == b""  # once for a session
    assert b"cagewrap login --token" in cage.run("true", flags=("--login", "token")).err


def test_a_login_that_others_could_read_is_not_used(cage: Cage) -> None:
    log_in(cage).chmod(0o644)
    done = cage.run("env")
    assert done.code == 119
    assert b"chmod 600" in done.err
    assert done.out == b""


# --- nothing is left where it should not be -------------------------------------------------------


def seek(cage: Cage, text: str, *flags: str) -> list[str]:
    """As the agent, everywhere inside."""
    found: list[str] = json.loads(cage.text(*SEEK, stdin=text.encode(), flags=flags))
    return found


def seek_outside(cage: Cage) -> list[str]:
    """As the owner: what podman knows, command lines, and cagewrap's own files but the login."""
    mark = MARK.encode()
    pids = [pid for pid in all_pids() if mark in read_bytes(f"/proc/{pid}/cmdline")]
    found = [f"argv of {pid}" for pid in pids]
    if MARK in podman("container", "inspect", cage.name()).stdout:
        found.append("inspect")
    storage = Path.home() / ".local/share/containers/storage"
    container = cage.state()["container_id"]
    files = [path for path in storage.rglob("*.json") if container in str(path)]
    for directory in (cage.cages_dir, Path(cage.env["XDG_RUNTIME_DIR"]) / "cagewrap"):
        files += [path for path in directory.rglob("*") if path.is_file()]
    found += [str(path) for path in files if mark in read_bytes(path)]
    return found


@pytest.mark.parametrize("user", ["root", "owner"])
@pytest.mark.parametrize("mode", ["access", "token", "directory", "none"])
def test_what_of_a_login_is_inside_and_what_is_left(
    make_cage: Callable[..., Cage], mode: str, user: str
) -> None:
    cage = make_cage("--login", mode, "--user", user)
    # podman 4.3's commit wants a runroot in a storage.conf that is not below ~/.config.
    del cage.env["XDG_CONFIG_HOME"]
    log_in(cage)
    put(login_dir(cage) / "token", TOKEN)
    shared = cage.place.state_home / "cagewrap/login/shared/claude"
    if mode == "directory":
        shared.mkdir(parents=True, mode=0o700)
        put(shared / ".credentials.json", SHARED)
    cage.text("sh", "-c", "echo PLANTED > /var/tmp/planted", timeout_s=110)

    inside = {text: seek(cage, text) for text in (ACCESS, REFRESH, TOKEN, SHARED)}
    wanted: dict[str, list[str]] = {ACCESS: [], REFRESH: [], TOKEN: [], SHARED: []}
    if mode == "access":
        wanted[ACCESS] = [FILE]
    elif mode == "token":
        wanted[TOKEN] = ["/proc/environ"]
    elif mode == "directory":
        wanted[SHARED] = ["/run/cagewrap/login-shared/.credentials.json"]
    assert inside == wanted
    assert wait_until(lambda: seek_outside(cage) == [], 3), seek_outside(cage)

    assert cage.cagewrap("recreate").code == 0
    archive = cage.place.root / "image.tar"
    image = f"localhost/cagewrap-session:{cage.name()}"
    try:
        saved = podman("save", "--output", str(archive), image)
        assert saved.returncode == 0, saved.stderr
        content = archive.read_bytes()
        assert b"PLANTED" in content  # it can be searched
        assert MARK.encode() not in content
    finally:
        archive.unlink(missing_ok=True)
        podman("rm", "--force", "--time", "0", cage.name())
        podman("rmi", "--force", image)


def test_a_token_is_in_the_agents_environment_alone(cage: Cage) -> None:
    """Not in that of what else runs in the cage, such as its init or another message."""
    put(login_dir(cage) / "token", TOKEN)
    with cage.popen(
        "sh", "-c", "echo up; read x", flags=("--login=token",),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as agent:  # fmt: skip
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"up\n"
        holders = [
            pid for pid in all_pids() if TOKEN.encode() in read_bytes(f"/proc/{pid}/environ")
        ]
        assert holders == cage.agents()
        assert seek(cage, TOKEN, "--login=none") == ["/proc/environ"]  # one cage, one trust
        agent.communicate(b"\n", TIMEOUT_S)
    assert seek(cage, TOKEN, "--login=none") == []
