"""cagewrap's own login on the host: what is read, what is handed on, what is never lost."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from cagewrap.auth import LoginState
from cagewrap.errors import DirectoryError
from cagewrap.loginstore import LoginStore, Status, parse_credentials, read_private
from cagewrap.paths import Paths

VALUES = {
    "accessToken": "sk-ant-oat01-A",
    "refreshToken": "sk-ant-ort01-R",
    "expiresAt": 4102444800000,
    "scopes": ["user:inference", "user:profile"],
    "subscriptionType": "max",
    "rateLimitTier": "t",
    "subscriptionTypeSource": "s",
    "other": {"refreshToken": "sk-ant-ort01-other"},
}


def text(**changes: object) -> bytes:
    return json.dumps({"claudeAiOauth": VALUES | changes, "mcpOAuth": {"x": "secret"}}).encode()


@pytest.fixture
def store(tmp_path: Path) -> LoginStore:
    return LoginStore(Paths("/h", "/c", str(tmp_path / "state"), "/r", "/p"))


def test_an_agent_gets_what_is_known_and_no_refresh_token() -> None:
    found = parse_credentials(text())
    assert found is not None
    handed = json.loads(found.for_agent())
    assert set(handed) == {"claudeAiOauth"}
    kept = {name: value for name, value in VALUES.items() if name not in ("refreshToken", "other")}
    assert handed["claudeAiOauth"] == kept | {"refreshToken": None}
    assert b"ort01" not in found.for_agent()


def test_what_is_not_there_is_not_invented() -> None:
    found = parse_credentials(text(subscriptionType=None))
    assert found is not None
    assert json.loads(found.for_agent())["claudeAiOauth"]["subscriptionType"] is None
    values = {name: VALUES[name] for name in ("accessToken", "scopes")}
    found = parse_credentials(json.dumps({"claudeAiOauth": values}).encode())
    assert found is not None
    assert set(json.loads(found.for_agent())["claudeAiOauth"]) == {*values, "refreshToken"}
    assert found.expires_at == 0


def test_no_token_is_shown() -> None:
    found = parse_credentials(text())
    assert "sk-ant" not in f"{found} {found!r}"
    assert found is not None
    assert "sk-ant" not in found.digest


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"claudeAiOauth": 1}',
        text(accessToken=""),
        text(accessToken=None),
        text(scopes=["user:profile"]),
        text(scopes=None),
    ],
)
def test_what_claude_would_not_use_is_no_login(content: bytes) -> None:
    assert parse_credentials(content) is None


def test_files_are_of_the_owner_alone(store: LoginStore) -> None:
    found = parse_credentials(text())
    assert found is not None
    assert store.read() is None
    os.umask(os.umask(0))  # whatever the umask
    store.write(found)
    store.write_token("sk-ant-oat01-T")
    store.write_status(Status(outcome="ok"))
    for path in Path(store.directory).iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
    assert Path(store.directory).stat().st_mode & 0o777 == 0o700
    assert store.read() == found
    assert store.read_token() == "sk-ant-oat01-T"
    assert store.read_status().outcome == "ok"
    assert store.forget() == ("login", "token")
    assert store.forget() == ()
    assert store.read() is None


@pytest.mark.parametrize("wrong", ["group", "link", "fifo"])
def test_refuses_a_file_that_others_could_have_read(tmp_path: Path, wrong: str) -> None:
    file = tmp_path / "file"
    if wrong == "fifo":
        os.mkfifo(file, 0o600)
    else:
        target = file if wrong == "group" else tmp_path / "target"
        target.write_bytes(text())
        target.chmod(0o640 if wrong == "group" else 0o600)
        if wrong == "link":
            file.symlink_to(target)
    with pytest.raises(DirectoryError):
        read_private(str(file))


def test_state(store: LoginStore) -> None:
    now = time.time()

    def put(**changes: object) -> None:
        found = parse_credentials(text(**changes))
        assert found is not None
        store.write(found)

    assert store.state(now) is LoginState.ABSENT
    put()
    assert store.state(now) is LoginState.VALID
    put(expiresAt=1000)
    assert store.state(now) is LoginState.EXPIRED
    found = store.read()
    assert found is not None
    store.write_status(Status(outcome="dead", digest=found.digest))
    assert store.state(now) is LoginState.DEAD
    put(expiresAt=1000, refreshToken="sk-ant-ort01-new")
    assert store.state(now) is LoginState.EXPIRED, "another login is not dead because one was"
    put(expiresAt=1000, refreshToken="")
    assert store.state(now) is LoginState.DEAD
    put(refreshToken=None)
    assert store.state(now) is LoginState.VALID, "while its token lives"


def test_a_status_that_cannot_be_read_is_none(store: LoginStore) -> None:
    store.write_status(Status())
    for content in ("{", "[]", "1"):
        (Path(store.directory) / "status.json").write_text(content)
        assert store.read_status() == Status()
