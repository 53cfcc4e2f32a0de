"""Renewing the login by a program that stands for the host's claude: what it writes decides."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cagewrap import refresh
from cagewrap.hostclaude import find_claude, is_claude, is_native
from cagewrap.loginstore import LoginStore, parse_credentials
from cagewrap.paths import Paths, paths_from_env
from cagewrap.refresh import DEAD, DONE, FAILED, NO_LOGIN, Renewal
from cagewrap.shimfile import shim_text

CLAUDE = """#!{python}
import json, os, sys, time
place = os.environ["CLAUDE_SECURESTORAGE_CONFIG_DIR"]
file = place + "/.credentials.json"
with open({log!r}, "a") as log:
    log.write(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]) + "\\n")
def write(**changes):
    values = json.load(open(file))["claudeAiOauth"] | changes
    with open(file + ".tmp", "w") as new:
        os.fchmod(new.fileno(), 0o600)
        json.dump(dict(claudeAiOauth=values), new)
    os.rename(file + ".tmp", file)
lock = place + "/.oauth_refresh.lock"
before = json.load(open(file))["claudeAiOauth"]
assert before["expiresAt"] == 1
{script}
sys.stdin.read()
"""
NEW = (
    'write(accessToken="sk-ant-oat01-new", refreshToken="sk-ant-ort01-new", '
    "expiresAt=4102444800000)"
)


class Machine:
    def __init__(self, root: Path, short: str) -> None:
        self.root = root
        (root / "home").mkdir()
        self.env = {
            "HOME": str(root / "home"),
            "XDG_RUNTIME_DIR": short,
            "PATH": "/usr/bin:/bin",
            "HTTPS_PROXY": "http://proxy",
            "SECRET": "planted",
            "ANTHROPIC_API_KEY": "planted",
        }
        self.paths: Paths = paths_from_env(self.env, os.getuid())
        self.store = LoginStore(self.paths)
        self.log = root / "log"

    def log_in(self, left_s: float, name: str = "0") -> bytes:
        values = {
            "accessToken": f"sk-ant-oat01-{name}",
            "refreshToken": f"sk-ant-ort01-{name}",
            "expiresAt": round((time.time() + left_s) * 1000),
            "scopes": ["user:inference"],
            "subscriptionType": "max",
        }
        found = parse_credentials(json.dumps({"claudeAiOauth": values}).encode())
        assert found is not None
        self.store.write(found)
        return Path(self.store.credentials_file).read_bytes()

    def claude(self, script: str) -> str:
        path = self.root / "claude"
        path.write_text(CLAUDE.format(python=sys.executable, log=str(self.log), script=script))
        path.chmod(0o755)
        return str(path)

    def renew(self, script: str) -> int:
        return Renewal(self.paths, self.env, self.claude(script)).run()

    def token(self) -> str:
        found = LoginStore(self.paths).read()
        return found.access_token if found else ""

    def runs(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setattr(refresh, "_QUIET_S", 0.5)
    with tempfile.TemporaryDirectory() as short:
        yield Machine(tmp_path, short)


def test_a_new_token_is_taken_and_claude_let_go(machine: Machine) -> None:
    machine.log_in(-1)
    began = time.monotonic()
    assert machine.renew(NEW) == DONE
    assert time.monotonic() - began < 5
    assert machine.token() == "sk-ant-oat01-new"
    assert machine.store.read_status().outcome == "ok"
    left = set(os.listdir(machine.store.directory))
    assert left == {".credentials.json", "status.json", "lock"}
    argv, env, cwd = json.loads(machine.log.read_text())
    assert argv[:1] == ["-p"]
    assert argv[argv.index("--setting-sources") + 1] == ""
    assert env["HTTPS_PROXY"] == "http://proxy"
    assert "planted" not in json.dumps(env)
    assert env["HOME"].startswith(machine.store.directory)
    assert cwd.startswith(machine.store.directory)
    assert env["CAGEWRAP_ON_HOST"] == str(machine.root / "claude")


def test_a_shim_renews_nothing(machine: Machine) -> None:
    machine.log_in(-1)
    path = program(machine.root / "bin/claude", shim_text("/usr/bin/cagewrap", "claude", ()))
    machine.env["PATH"] = f"{path.parent}:/usr/bin"
    assert Renewal(machine.paths, machine.env, "").run() == FAILED
    detail = machine.store.read_status().detail
    assert detail.endswith(f"({path}: runs cagewrap itself)")
    real = machine.claude(NEW)
    path.unlink()
    machine.env["PATH"] = f"{path.parent}:{machine.root}"
    program(path, b'#!/bin/sh\nexec /usr/bin/cagewrap -- claude "$@"\n')
    machine.log_in(-1, "1")  # which has not failed just now
    assert Renewal(machine.paths, machine.env, "").run() == DONE
    assert json.loads(machine.log.read_text())[1]["CAGEWRAP_ON_HOST"] == real


def test_a_login_that_is_good_is_left_alone(machine: Machine) -> None:
    machine.log_in(3600)
    assert machine.renew(NEW) == DONE
    assert machine.runs() == 0
    assert Renewal(machine.paths, machine.env, "").run() == DONE


def test_one_that_ends_soon_is_renewed_once(machine: Machine) -> None:
    machine.log_in(300)
    short = NEW.replace("4102444800000", str(round((time.time() + 120) * 1000)))
    assert machine.renew(short) == DONE
    assert machine.renew(short) == DONE
    assert machine.runs() == 1, "a token that lives for minutes only is not renewed in a loop"


def test_a_blanked_copy_means_that_it_is_dead(machine: Machine) -> None:
    before = machine.log_in(-1)
    blank = 'write(accessToken="", refreshToken="", expiresAt=0)'
    assert machine.renew(blank) == DEAD
    assert machine.renew(blank) == DEAD
    assert machine.runs() == 1
    assert Path(machine.store.credentials_file).read_bytes() == before
    machine.log_in(-1, "another")
    assert machine.renew(NEW) == DONE


def test_an_attempt_that_failed_is_noticed_by_claudes_lock(machine: Machine) -> None:
    before = machine.log_in(-1)
    began = time.monotonic()
    assert machine.renew("os.mkdir(lock); time.sleep(1.5); os.rmdir(lock)") == FAILED
    assert 1.5 < time.monotonic() - began < 10, "not while it holds the lock"
    assert Path(machine.store.credentials_file).read_bytes() == before
    assert machine.renew(NEW) == FAILED, "not again so soon"
    assert machine.runs() == 1


def test_a_claude_that_ends_has_failed(machine: Machine) -> None:
    before = machine.log_in(-1)
    assert machine.renew("sys.exit(1)") == FAILED
    assert Path(machine.store.credentials_file).read_bytes() == before


@pytest.mark.parametrize("locked", [False, True], ids=["ended", "still at work"])
def test_what_a_killed_renewal_has_left_is_taken(machine: Machine, locked: bool) -> None:
    machine.log_in(-1)
    pause = "time.sleep(2); "
    claude = machine.claude(pause + NEW + ("" if locked else "; os._exit(0)"))
    code = f"from cagewrap.refresh import main; main({claude!r})"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=machine.env | {"PYTHONPATH": str(Path(refresh.__file__).parents[1])},
    )
    deadline = time.monotonic() + 20
    while not machine.runs():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.wait()
    began = time.monotonic()
    assert Renewal(machine.paths, machine.env, machine.claude(NEW)).run() == DONE
    assert time.monotonic() - began < 10
    assert machine.token() == "sk-ant-oat01-new"
    assert machine.runs() == 1
    if locked:
        [line] = machine.log.read_text().splitlines()
        place = json.loads(line)[1]["HOME"]
        for pid in filter(str.isdigit, os.listdir("/proc")):  # it waits for its stdin
            if place.encode() in read(f"/proc/{pid}/environ"):
                os.kill(int(pid), 9)


def test_what_belongs_to_an_earlier_login_is_not_taken(machine: Machine) -> None:
    machine.log_in(-1, "earlier")
    renewal = Renewal(machine.paths, machine.env, machine.claude("sys.exit()"))
    found = machine.store.read()
    assert found is not None
    renewal._prepare(found)
    copy = Path(machine.store.directory) / "renewal/login/.credentials.json"
    values = json.loads(copy.read_text())
    values["claudeAiOauth"]["accessToken"] = "sk-ant-oat01-of-earlier"
    copy.write_text(json.dumps(values))
    machine.log_in(-1, "later")
    assert renewal.run() == FAILED
    assert machine.token() == "sk-ant-oat01-later"


def test_no_login_and_no_claude(machine: Machine) -> None:
    assert machine.renew(NEW) == NO_LOGIN
    machine.log_in(-1)
    assert Renewal(machine.paths, machine.env, "").run() == FAILED
    assert "no claude" in machine.store.read_status().detail


def read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


# --- finding it -----------------------------------------------------------------------------------


def program(path: Path, content: bytes = b"\x7fELF") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o755)
    return path


STUB = b"#!/bin/sh\necho claude native binary not installed\nexit 1\n"


def test_claude_is_found_on_the_path_then_below_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    below = program(home / ".local/bin/claude")
    assert find_claude("/nowhere::bin", str(home)) == str(below)
    first = program(tmp_path / "bin/claude", b"#!/usr/bin/env node\n")
    assert find_claude(f"/nowhere:{tmp_path}/bin", str(home)) == str(first)
    assert not is_native(str(first))
    assert is_native(str(below))


def test_a_claude_in_a_project_is_not_run(tmp_path: Path) -> None:
    inside = program(tmp_path / "project/claude")
    link = tmp_path / "home/.local/bin/claude"
    link.parent.mkdir(parents=True)
    link.symlink_to(inside)
    home = str(tmp_path / "home")
    assert find_claude("", home) == str(link)
    assert find_claude("", home, {str(tmp_path / "project")}) == ""
    outside = program(tmp_path / "bin/claude")
    inside.unlink()
    inside.symlink_to(outside)  # now; an agent gives it another text before it is run
    assert find_claude("", home) == str(link)
    assert find_claude("", home, {str(tmp_path / "project")}) == ""


def test_a_stub_stands_for_the_program_beside_it(tmp_path: Path) -> None:
    package = tmp_path / "lib/node_modules/@anthropic-ai/claude-code"
    stub = program(package / "bin/claude.exe", STUB)
    link = tmp_path / "bin/claude"
    link.parent.mkdir()
    link.symlink_to(stub)
    assert find_claude(str(link.parent), str(tmp_path)) == ""
    machine = {"x86_64": "x64", "aarch64": "arm64"}[os.uname().machine]
    real = program(package.parent / f"claude-code-linux-{machine}/claude")
    assert find_claude(str(link.parent), str(tmp_path)) == str(real)


@pytest.mark.parametrize(
    "content",
    [
        STUB,
        b'#!/bin/sh\nexec cagewrap -- claude "$@"\n',
        b"#!/bin/python\nfrom cagewrap.entry import main\nmain()\n",
        b"text",
        b"",
    ],
)
def test_what_is_no_claude(tmp_path: Path, content: bytes) -> None:
    assert not is_claude(str(program(tmp_path / "claude", content)))


def test_the_one_that_is_named_is_taken_or_none(tmp_path: Path) -> None:
    program(tmp_path / ".local/bin/claude")
    other = program(tmp_path / "other")
    assert find_claude("", str(tmp_path), told=str(other)) == str(other)
    other.chmod(0o644)
    assert find_claude("", str(tmp_path), told=str(other)) == ""
    assert find_claude("", str(tmp_path), told=str(tmp_path)) == ""
