"""One conversation with everything in it that goes over the agent's pipes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from claude_agent_sdk import create_sdk_mcp_server, tool
from driving import Callbacks, ask, connected, drive
from mock_api import MockApi
from places import Place, arguments


def assert_made_by_owner(file: Path) -> None:
    assert file.stat().st_uid == os.getuid()
    assert file.stat().st_gid == os.getgid()


def test_bash_tool_writes_into_the_project(
    place: Place, api: MockApi, callbacks: Callbacks
) -> None:
    async def work() -> None:
        async with connected(place, **callbacks.options()) as client:
            turn = await ask(client, "@@bash echo made inside | tee made.txt; id -u")
            assert turn.result.subtype == "success", callbacks.stderr
            [result] = turn.tool_results
            assert not result.is_error
            assert "made inside" in str(result.content)
            assert turn.texts[-1].startswith("RESULT[ok]: made inside")

    drive(work())
    made = place.project / "made.txt"
    assert made.read_text() == "made inside\n"
    assert_made_by_owner(made)
    assert callbacks.permissions == ["Bash"]
    assert callbacks.hooks == ["Bash"]
    assert api.messages[-1].api_key == "sk-test-dummy"


def test_write_tool_and_a_changed_permission_mode(place: Place, callbacks: Callbacks) -> None:
    target = place.project / "sub" / "written.txt"
    script = "@@tool Write " + json.dumps({"file_path": str(target), "content": "ä\nzwei\n"})

    async def work() -> None:
        async with connected(place, **callbacks.options()) as client:
            await client.set_permission_mode("acceptEdits")
            turn = await ask(client, script)
            assert turn.texts[-1].startswith("RESULT[ok]"), turn.texts

    drive(work())
    assert target.read_text() == "ä\nzwei\n"
    assert_made_by_owner(target)
    assert callbacks.permissions == []
    assert callbacks.hooks == ["Write"]


def test_mcp_tool_of_the_harness_itself(place: Place, callbacks: Callbacks) -> None:
    """Its traffic goes back over the same pipes."""
    asked: list[Any] = []

    @tool("add", "Add two numbers", {"a": int, "b": int})
    async def add(call: dict[str, Any]) -> dict[str, Any]:
        asked.append(call)
        return {"content": [{"type": "text", "text": f"sum {call['a'] + call['b']}"}]}

    servers = {"calc": create_sdk_mcp_server("calc", tools=[add])}

    async def work() -> None:
        async with connected(place, mcp_servers=servers, **callbacks.options()) as client:
            turn = await ask(client, '@@tool mcp__calc__add {"a": 20, "b": 22}')
            assert turn.texts[-1] == "RESULT[ok]: sum 42", callbacks.stderr

    drive(work())
    assert asked == [{"a": 20, "b": 22}]
    assert callbacks.permissions == ["mcp__calc__add"]


def test_partial_messages_arrive_as_they_are_made(place: Place) -> None:
    async def work() -> None:
        async with connected(place, include_partial_messages=True) as client:
            turn = await ask(client, "@@slow 1")
            assert len(turn.partial_text.split()) == 200
            assert turn.partial_text == turn.texts[-1]

    drive(work())


def test_a_long_line_arrives_whole(place: Place) -> None:
    async def work() -> None:
        async with connected(place, max_buffer_size=8 << 20) as client:
            turn = await ask(client, "@@big 3000000")
            assert turn.texts[-1] == "x" * 3_000_000

    drive(work())


def test_an_empty_argument_arrives(place: Place, api: MockApi) -> None:
    """Without a system prompt of its own the SDK passes an empty one: `--system-prompt ""`."""

    async def work() -> None:
        async with connected(place) as client:
            await ask(client, "hello")
            [agent] = [
                argv for argv in map(arguments, place.processes()) if "--system-prompt" in argv
            ]
            assert agent[agent.index("--system-prompt") + 1] == ""

    drive(work())
    assert len(api.messages[-1].system) < 1000


def test_a_system_prompt_arrives_unchanged(place: Place, api: MockApi) -> None:
    prompt = "Say \"yes\" and 'no'.\n\t$HOME `id` \\ * -- é 漢"

    async def work() -> None:
        async with connected(place, system_prompt=prompt) as client:
            await ask(client, "hello")

    drive(work())
    assert prompt in api.messages[-1].system
