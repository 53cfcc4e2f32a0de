"""pi, kept running for a conversation as harnesses do: `pi --mode rpc`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from endings import HANGING, HANGS_S, assert_made_by_owner, assert_nothing_left, hangs
from json_lines import JsonLines
from mock_api import MockApi
from places import NODE, PEERS, Caged, Place, wait_until

PI = PEERS / "@mariozechner/pi-coding-agent/dist/cli.js"
MODEL = ("--provider", "anthropic", "--model", "claude-sonnet-4-5")


@pytest.fixture
def programs() -> tuple[Path, ...]:
    return (PEERS,)


@pytest.fixture(autouse=True)
def offline(env: dict[str, str]) -> None:
    env["PI_OFFLINE"] = "1"


def started(place: Place, api: MockApi, log: Path, *args: str) -> JsonLines:
    models = {"providers": {"anthropic": {"baseUrl": api.url}}}
    place.put_in_home(".pi/agent/models.json", json.dumps(models))
    shim = place.shim_for("pi", NODE, PI)
    return JsonLines([shim, "--mode", "rpc", *MODEL, *args], place.project, place.env, log)


def ask(pi: JsonLines, text: str) -> str:
    """What it answers in the end."""
    pi.received.clear()
    pi.send({"type": "prompt", "message": text})
    return said(pi.expect(type="agent_end"))


def said(end: dict[str, Any]) -> str:
    return "".join(block.get("text", "") for block in end["messages"][-1]["content"])


def test_conversation(place: Place, api: MockApi, log: Path) -> None:
    with started(place, api, log) as pi:
        answer = ask(pi, "@@bash echo made inside | tee made.txt")
        assert answer.startswith("RESULT[ok]: made inside")
        pi.send({"type": "prompt", "message": "@@slow 20"})
        assert pi.wait_for(lambda: len(pi.all(type="message_update")) > 10)
        asked = time.monotonic()
        pi.received.clear()
        pi.send({"type": "abort"})
        assert pi.expect(type="agent_end")["messages"][-1]["stopReason"] == "aborted"
        assert time.monotonic() - asked < 5
        ask(pi, "@@history")
        assert "echo made inside" in str(api.turns[-1].messages)
        assert pi.end() == 0
    made = place.project / "made.txt"
    assert made.read_text() == "made inside\n"
    assert_made_by_owner(made)
    assert_nothing_left(place)


def test_resume_by_file(place: Place, api: MockApi, log: Path) -> None:
    with started(place, api, log) as pi:
        ask(pi, "remember the dunlin")
        pi.send({"type": "get_state"})
        file = pi.expect(type="response", command="get_state")["data"]["sessionFile"]
        assert pi.end() == 0
    assert Path(file).is_relative_to(Path(place.env["HOME"]) / ".pi/agent/sessions")
    with started(place, api, log, "--session", file) as pi:
        ask(pi, "@@history")
    assert "remember the dunlin" in str(api.turns[-1].messages[0])
    assert_nothing_left(place)


def test_killed_with_a_tool_hanging(caged: Caged, api: MockApi, log: Path) -> None:
    with started(caged, api, log) as pi:
        pi.send({"type": "prompt", "message": HANGING})
        assert wait_until(lambda: hangs(caged), HANGS_S), pi
        pi.process.kill()
        assert_nothing_left(caged)
