"""`cagewrap login`, `login status` and `logout`, with the real claude."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import places
import ptyprocess
import pytest
from mock_api import MockApi
from mock_login import ACCESS, CODE, MockLogin, credentials
from test_login_access import QUESTION, env, login, put, said, store

__all__ = ("env", "login", "store")
TOKEN = "sk-ant-oat01-MARKED-" + "x" * 60


def cagewrap(caged: places.Caged, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [places.CAGEWRAP, *words],
        cwd=caged.project,
        env=os.environ | caged.env,
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def status(caged: places.Caged) -> dict[str, object]:
    document = json.loads(cagewrap(caged, "login", "status", "--json").stdout)
    found: dict[str, object] = document["login"]
    return found


class Terminal:
    def __init__(self, caged: places.Caged, *words: str) -> None:
        self.process = ptyprocess.PtyProcess.spawn(
            [str(places.CAGEWRAP), *words],
            cwd=str(caged.project),
            env=os.environ | caged.env,
            dimensions=(40, 300),
        )
        self.shown = b""

    def until(self, pattern: bytes, within_s: float = 40) -> re.Match[bytes]:
        deadline = time.monotonic() + within_s
        while not (found := re.search(pattern, self.shown)):
            assert time.monotonic() < deadline, self.shown
            with contextlib.suppress(EOFError):
                self.shown += self.process.read(4096)
        return found


@pytest.fixture
def online(caged: places.Caged, login: MockLogin) -> Iterator[None]:
    """Cages of this owner reach the login's proxy."""
    port = login.env["HTTPS_PROXY"].rpartition(":")[2]
    config = Path(caged.env["XDG_CONFIG_HOME"]) / "cagewrap.toml"
    assert not config.exists()
    authority = login.env["NODE_EXTRA_CA_CERTS"]
    config.write_text(
        f'image = "{places.IMAGE}"\nnetwork = "none"\n'
        f'host_port = [{port}]\nmount = ["{authority}"]\n'
        f'[env]\nHTTPS_PROXY = "{login.env["HTTPS_PROXY"]}"\nNODE_EXTRA_CA_CERTS = "{authority}"\n'
        'ANTHROPIC_API_KEY = "sk-ant-api03-not-for-this"\n'
    )
    yield
    config.unlink()
    caged.run("true")  # for the fixture, which removes it


def test_login_on_a_terminal(
    caged: places.Caged, api: MockApi, login: MockLogin, online: None
) -> None:
    terminal = Terminal(caged, "login")
    state = terminal.until(rb"authorize\?z-([A-Za-z0-9_-]{43})")[1]
    terminal.until(rb"Paste code")
    terminal.process.write(CODE.encode() + b"#" + state + b"\r")
    terminal.until(rb"logged in claude \(ends in 7 h 59 min\)")
    assert terminal.process.wait() == 0
    home = Path(caged.env["HOME"]) / ".local/state/cagewrap"
    assert {one.name for one in (home / "login").iterdir()} == {"claude"}
    assert (home / "login/claude/.credentials.json").stat().st_mode & 0o777 == 0o600
    assert places.wait_until(lambda: not list((home / "cages").iterdir()), 20)
    (Path(caged.env["XDG_CONFIG_HOME"]) / "cagewrap.toml").write_text("")
    done = caged.claude(*QUESTION)
    assert (done.returncode, said(done)) == (0, "")
    assert api.messages[-1].authorization == f"Bearer {login.granted[0]}"
    found = status(caged)
    assert (found["mode"], found["source"], found["state"]) == ("access", "login", "valid")
    assert found["claude"] == str(Path(caged.env["HOME"]) / ".local/bin/claude")


def test_a_login_that_is_given_up_changes_nothing(
    caged: places.Caged, login: MockLogin, store: Path, online: None
) -> None:
    file = put(store, credentials(3600))
    before = file.read_bytes()
    terminal = Terminal(caged, "login")
    terminal.until(rb"Paste code")
    terminal.process.write(b"\x03")
    terminal.until(rb"nothing has changed")
    assert terminal.process.wait() == 109
    assert file.read_bytes() == before
    assert {one.name for one in store.parent.iterdir()} == {"claude"}


def test_no_login_without_a_claude_to_renew_it(caged: places.Caged, store: Path) -> None:
    (Path(caged.env["HOME"]) / ".local/bin/claude").unlink()
    terminal = Terminal(caged, "login")
    terminal.until(rb"(?s)There is no claude on this machine.*cagewrap login --token", 10)
    assert terminal.process.wait() == 109
    caged.run("true")  # for the fixture, which removes it


@pytest.mark.parametrize("broken", [False, True], ids=["whole", "in two lines"])
def test_a_token_on_stdin(caged: places.Caged, api: MockApi, broken: bool) -> None:
    text = TOKEN[:40] + "\n" + TOKEN[40:] if broken else TOKEN
    done = cagewrap(caged, "login", given=f"  {text}\n")
    assert (done.returncode, done.stdout) == (
        0,
        "kept claude (a token, passed as CLAUDE_CODE_OAUTH_TOKEN)\n",
    )
    file = Path(caged.env["HOME"]) / ".local/state/cagewrap/login/claude/token"
    assert file.read_text() == TOKEN + "\n"
    assert file.stat().st_mode & 0o777 == 0o600
    done = caged.claude(*QUESTION)
    assert (done.returncode, said(done)) == (0, "")
    assert api.messages[-1].authorization == f"Bearer {TOKEN}"
    assert (status(caged)["mode"], status(caged)["has_token"]) == ("token", True)
    assert cagewrap(caged, "logout").stdout == "removed claude (token)\n"
    assert status(caged)["mode"] == "none"
    assert caged.claude(*QUESTION).returncode == 1


def test_an_api_key_on_stdin(caged: places.Caged, api: MockApi) -> None:
    key = "sk-ant-api03-MARKED"
    assert cagewrap(caged, "login", "--token", given=key).returncode == 0
    assert caged.claude(*QUESTION).returncode == 0
    assert api.messages[-1].api_key == key
    assert api.messages[-1].authorization == ""


@pytest.mark.parametrize("text", ["", "sk-ant-ort01-x", "hello", "sk-ant-oat01-ä"])
def test_refuses_what_is_no_token(caged: places.Caged, text: str) -> None:
    done = cagewrap(caged, "login", "--token", given=text)
    assert done.returncode == 109
    assert not text or text not in done.stderr
    caged.run("true")


def test_logout_takes_it_from_cages_that_run(caged: places.Caged, store: Path) -> None:
    put(store, credentials(3600))
    look = ("sh", "-c", "echo up; read x; cat /run/cagewrap/login/.credentials.json")
    with subprocess.Popen(
        [*caged.prefix, *look],
        cwd=caged.project,
        env=os.environ | caged.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"up\n"
        assert cagewrap(caged, "logout").stdout == "removed claude (login)\n"
        out, err = running.communicate(b"\n", 20)
    assert ACCESS.encode() not in out
    assert b"No such file" in err
    assert cagewrap(caged, "logout").stdout == "unchanged claude (none there)\n"
