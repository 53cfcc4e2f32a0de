"""Claude behind the Agent Client Protocol, as editors have it.

Two packages that translate, a new one and an old one, each in the two ways there are: on the
host, where Claude's program is our shim to it; or in the cage, where it is the editor's shim.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import acp
import pytest
from endings import HANGING, HANGS_S, assert_nothing_left, hangs
from mock_api import MockApi
from places import CLAUDE, NODE, PEERS, Caged, Place, wait_until

NEW = PEERS / "@agentclientprotocol/claude-agent-acp/dist/index.js"
OLD = PEERS / "@zed-industries/claude-code-acp/dist/index.js"  # stays when its stdin is closed
STAYS_S, END_S = 2, 20
ON_HOST, IN_CAGE = "on the host", "in the cage"
TRANSLATORS = [
    pytest.param((NEW, ON_HOST), id="new-host"),
    pytest.param((NEW, IN_CAGE), id="new-cage"),
    pytest.param((OLD, ON_HOST), id="old-host"),
    pytest.param((OLD, IN_CAGE), id="old-cage"),
]


@pytest.fixture
def programs() -> tuple[Path, ...]:
    return (CLAUDE.parent, PEERS)


@pytest.fixture(params=TRANSLATORS)
def translator(request: pytest.FixtureRequest) -> tuple[Path, str]:
    chosen: tuple[Path, str] = request.param
    return chosen


@contextmanager
def client(place: Place, translator: tuple[Path, str], log: Path) -> Iterator[acp.Client]:
    """An editor, of which nothing is left afterwards."""
    program, where = translator
    if where == ON_HOST:
        argv, claude = [NODE, program], place.shim
    else:
        argv, claude = [place.shim_for("acp", NODE, program)], CLAUDE
    try:
        with acp.Client(place, argv, log, CLAUDE_CODE_EXECUTABLE=claude) as editor:
            yield editor
    finally:
        assert_nothing_left(place)


def test_conversation(place: Place, translator: tuple[Path, str], log: Path, api: MockApi) -> None:
    ends = translator[0] == NEW
    with client(place, translator, log) as editor:
        session = editor.new_session(mode="default")
        done = editor.ask(session, "@@bash echo made inside | tee made.txt")
        assert done["stopReason"] == "end_turn"
        assert "RESULT[ok]: made inside" in editor.texts(), editor
        assert len(editor.permissions) == 1
        prompt = editor.begin_prompt(session, "@@slow 20")
        assert editor.heard("word3"), editor
        cancelled, took_s = acp.cancel(editor, session, prompt)
        assert cancelled["stopReason"] == "cancelled"
        assert took_s < 5
        editor.ask(session, "@@history")
        assert "echo made inside" in str(api.turns[-1].messages)
        editor.close()
        assert editor.ended(END_S if ends else STAYS_S) is ends
        assert editor.exit == ({"code": 0, "signal": None} if ends else {})
    made = place.project / "made.txt"
    assert made.read_text() == "made inside\n"
    assert made.stat().st_uid == os.getuid()


def test_two_sessions_of_one_editor(place: Place, translator: tuple[Path, str], log: Path) -> None:
    with client(place, translator, log) as editor:
        first = editor.new_session(mode="default")
        second = editor.new_session(mode="default")
        slow = editor.begin_prompt(first, "@@slow 2")
        editor.ask(second, "@@bash echo second > second.txt && cat second.txt")
        assert "RESULT[ok]: second" in editor.texts()
        assert editor.answer(slow)["stopReason"] == "end_turn"


@pytest.mark.parametrize("signal", ["SIGTERM", "SIGKILL"])
def test_ended_with_a_tool_hanging(
    caged: Caged, translator: tuple[Path, str], log: Path, signal: str
) -> None:
    with client(caged, translator, log) as editor:
        session = editor.new_session(mode="default")
        editor.begin_prompt(session, HANGING)
        assert wait_until(lambda: hangs(caged), HANGS_S), editor
        editor.signal(signal)
        assert_nothing_left(caged, by_itself=signal == "SIGTERM")


def test_load_session(place: Place, translator: tuple[Path, str], log: Path, api: MockApi) -> None:
    """On the host it reads the transcripts itself, of an owner who has used Claude before."""
    Path(place.env["HOME"], ".claude").mkdir()
    with client(place, translator, log) as editor:
        session = editor.new_session()
        editor.ask(session, "remember the wagtail")
        editor.close()
        editor.ended(END_S if translator[0] == NEW else STAYS_S)
    with client(place, translator, log) as editor:
        editor.call("initialize", protocolVersion=1, clientCapabilities={})
        loaded: dict[str, Any] = {"cwd": str(place.project), "mcpServers": []}
        editor.call("loadSession", sessionId=session, **loaded)
        assert "remember the wagtail" in editor.texts("user_message_chunk"), editor
        editor.ask(session, "@@history")
    assert "remember the wagtail" in str(api.turns[-1].messages[0])
