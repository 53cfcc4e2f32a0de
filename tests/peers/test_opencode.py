"""opencode, for one message (`opencode run`) and as an editor's agent (`opencode acp`)."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import acp
import pytest
from endings import HANGING, HANGS_S, assert_made_by_owner, assert_nothing_left, hangs
from mock_api import MockApi
from places import PEERS, Caged, Place, wait_until

OPENCODE = PEERS / "opencode-linux-x64-baseline/bin/opencode"


@pytest.fixture
def programs() -> tuple[Path, ...]:
    return (OPENCODE.parent,)


@pytest.fixture(autouse=True)
def offline(env: dict[str, str]) -> None:
    env["OPENCODE_DISABLE_MODELS_FETCH"] = "1"


def shim(place: Place, api: MockApi) -> Path:
    anthropic = {"options": {"baseURL": f"{api.url}/v1", "apiKey": "sk-test-opencode"}}
    config = {
        "autoupdate": False,
        "share": "disabled",
        "model": "anthropic/claude-sonnet-4-5",
        "provider": {"anthropic": anthropic},
    }
    place.put_in_home(".config/opencode/opencode.json", json.dumps(config))
    return place.shim_for("opencode", OPENCODE)


@contextmanager
def told(place: Place, api: MockApi, text: str, *args: str) -> Iterator[subprocess.Popen[bytes]]:
    """`opencode run`, which has read this on its stdin."""
    with subprocess.Popen(
        [shim(place, api), "run", *args],
        cwd=place.project,
        env=os.environ | place.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        process.stdin.write(text.encode())
        process.stdin.close()
        process.stdin = None
        yield process


def run(place: Place, api: MockApi, text: str, *args: str) -> str:
    with told(place, api, text, *args) as process:
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr.decode()
    return stdout.decode()


def test_run(place: Place, api: MockApi) -> None:
    said = run(place, api, "@@bash echo made inside | tee made.txt")
    assert "RESULT[ok]: made inside" in said
    made = place.project / "made.txt"
    assert made.read_text() == "made inside\n"
    assert_made_by_owner(made)
    assert api.turns[-1].api_key == "sk-test-opencode"
    run(place, api, "@@history", "--continue")
    assert "echo made inside" in str(api.turns[-1].messages)
    assert_nothing_left(place)


def test_run_killed_with_a_tool_hanging(caged: Caged, api: MockApi) -> None:
    with told(caged, api, HANGING) as process:
        assert wait_until(lambda: hangs(caged), HANGS_S)
        process.kill()
        assert_nothing_left(caged)


def test_acp(place: Place, api: MockApi, log: Path) -> None:
    with acp.Client(place, [shim(place, api), "acp"], log) as editor:
        session = editor.new_session()
        done = editor.ask(session, "@@bash echo made inside | tee made.txt")
        assert done["stopReason"] == "end_turn"
        assert "RESULT[ok]: made inside" in editor.texts(), editor
        prompt = editor.begin_prompt(session, "@@slow 20")
        assert editor.heard("word3"), editor
        cancelled, took_s = acp.cancel(editor, session, prompt)
        assert cancelled["stopReason"] == "cancelled"
        assert took_s < 5
        editor.close()
        assert editor.ended(20)
    assert_made_by_owner(place.project / "made.txt")
    assert_nothing_left(place)


def test_acp_load_session(place: Place, api: MockApi, log: Path) -> None:
    with acp.Client(place, [shim(place, api), "acp"], log) as editor:
        session = editor.new_session()
        editor.ask(session, "remember the wagtail")
        editor.close()
        assert editor.ended(20)
    with acp.Client(place, [shim(place, api), "acp"], log) as editor:
        editor.call("initialize", protocolVersion=1, clientCapabilities={})
        editor.call("loadSession", sessionId=session, cwd=str(place.project), mcpServers=[])
        assert "remember the wagtail" in editor.texts("user_message_chunk"), editor
        editor.ask(session, "@@history")
    assert "remember the wagtail" in str(api.turns[-1].messages[0])
    assert_nothing_left(place)


def test_acp_killed_with_a_tool_hanging(caged: Caged, api: MockApi, log: Path) -> None:
    with acp.Client(caged, [shim(caged, api), "acp"], log) as editor:
        editor.begin_prompt(editor.new_session(), HANGING)
        assert wait_until(lambda: hangs(caged), HANGS_S), editor
        editor.signal("SIGKILL")
        assert_nothing_left(caged)
