"""The Agent SDK for TypeScript, given a shim by `pathToClaudeCodeExecutable`."""

from __future__ import annotations

from pathlib import Path

from endings import HANGING, HANGS_S, assert_made_by_owner, assert_nothing_left, hangs
from json_lines import JsonLines
from mock_api import MockApi
from places import NODE, PEERS, Caged, wait_until

SDK = PEERS / "@anthropic-ai/claude-agent-sdk/sdk.mjs"
PROGRAM = Path(__file__).parent / "node/agent_sdk.mjs"


def query(place: Caged, log: Path, prompt: str, *resume: str) -> JsonLines:
    argv = [NODE, PROGRAM, SDK, place.shim, place.project, prompt, *resume]
    return JsonLines(argv, "/", place.env, log)


def test_query_and_resume(caged: Caged, log: Path, api: MockApi) -> None:
    with query(caged, log, "@@bash echo made inside | tee made.txt") as sdk:
        end = sdk.expect(type="result")
        assert end["result"].startswith("RESULT[ok]: made inside"), sdk
        assert [asked["tool"] for asked in sdk.all(type="asked")] == ["Bash"]
        assert sdk.process.wait(20) == 0
    assert_made_by_owner(caged.project / "made.txt")
    with query(caged, log, "@@history", end["session_id"]) as sdk:
        assert sdk.expect(type="result")["session_id"] == end["session_id"]
    assert "echo made inside" in str(api.turns[-1].messages)
    assert_nothing_left(caged)


def test_aborted_with_a_tool_hanging(caged: Caged, log: Path) -> None:
    with query(caged, log, HANGING) as sdk:
        assert wait_until(lambda: hangs(caged), HANGS_S), sdk
        assert sdk.end() == 0
        assert "abort" in sdk.expect(type="failed")["error"], sdk
        assert_nothing_left(caged, by_itself=True)
