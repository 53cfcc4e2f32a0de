"""A conversation of pi's begun on the host goes on in the cage, and the other way round."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from mock_api import MockApi
from places import PEERS, Caged, Direct, Place
from test_pi import ask, started


@pytest.fixture
def programs() -> tuple[Path, ...]:
    return (PEERS,)


@pytest.fixture(autouse=True)
def host(env: dict[str, str]) -> Path:
    env["PI_OFFLINE"] = "1"
    path = Path(env["HOME"]) / ".pi/agent"
    path.mkdir(parents=True)
    return path


def say(place: Place, api: MockApi, log: Path, text: str, *args: str) -> str:
    """One message in a process of its own; the file of its conversation."""
    with started(place, api, log, *args) as pi:
        ask(pi, text)
        pi.send({"type": "get_state"})
        file = str(pi.expect(type="response", command="get_state")["data"]["sessionFile"])
        assert pi.end() == 0
    return file


@pytest.mark.parametrize("how", ["session", "continue"])
def test_host_and_cage(direct: Direct, caged: Caged, api: MockApi, log: Path, how: str) -> None:
    def go_on(place: Place, text: str) -> None:
        again = ["--session", first] if how == "session" else ["--continue"]
        assert say(place, api, log, text, *again) == first

    first = say(direct, api, log, "remember the wren")
    go_on(caged, "remember the tern")
    assert "the wren" in str(api.turns[-1].messages)
    go_on(direct, "remember the crane")
    assert "the tern" in str(api.turns[-1].messages)
    go_on(caged, "@@history")
    assert "the crane" in str(api.turns[-1].messages)


def test_begun_in_the_cage(direct: Direct, caged: Caged, api: MockApi, log: Path) -> None:
    first = say(caged, api, log, "remember the wren")
    assert os.path.isfile(first)
    caged.cagewrap("rm")
    assert say(direct, api, log, "go on", "--session", first) == first
    assert "the wren" in str(api.turns[-1].messages)
    caged.run("true")  # the fixture removes one that is there


def test_settings_and_instructions_come_and_no_secret(
    caged: Caged, host: Path, api: MockApi, log: Path
) -> None:
    mark = "MARKED-SECRET"
    (host / "AGENTS.md").write_text("The owner likes herons.\n")
    (host / "auth.json").write_text(json.dumps({"anthropic": {"type": "api_key", "key": mark}}))
    settings = {"hideThinkingBlock": True, "theme": "light", "someToken": mark}
    (host / "settings.json").write_text(json.dumps(settings))
    other = {"baseUrl": "https://x/", "api": "openai-completions", "apiKey": mark, "models": []}
    (host / "models.json").write_text(json.dumps({"providers": {"other": other}}))
    caged.run("true")
    home = Path(caged.env["HOME"])
    assert caged.run("grep", "-rl", mark, home).stdout == b""
    models = json.loads(caged.run("cat", home / ".pi/agent/models.json").stdout)
    assert models == {"providers": {"other": {**other, "apiKey": "KEY_NOT_IN_THE_CAGE"}}}
    (host / "models.json").unlink()
    say(caged, api, log, "hello")
    assert "The owner likes herons." in str(api.turns[-1].body)
    inside = json.loads(caged.run("cat", home / ".pi/agent/settings.json").stdout)
    assert inside["theme"] == "light"
    assert "someToken" not in inside
