"""What a conversation survives: an interrupt, and a new process."""

from __future__ import annotations

import time

import pytest
from claude_agent_sdk import ClaudeSDKClient
from claude_agent_sdk.types import StreamEvent
from driving import Callbacks, ask, connected, drive, eventually, history, rest_of_turn
from mock_api import MockApi
from places import Place, arguments


async def until_streaming(client: ClaudeSDKClient) -> None:
    async for message in client.receive_messages():
        if isinstance(message, StreamEvent) and message.event["type"] == "content_block_delta":
            return


def test_interrupt_in_a_streaming_answer(place: Place, api: MockApi) -> None:
    async def work() -> None:
        async with connected(place, include_partial_messages=True) as client:
            await ask(client, "remember the heron")
            await client.query("@@slow 20")
            await until_streaming(client)
            asked = time.monotonic()
            await client.interrupt()
            turn = await rest_of_turn(client)
            assert time.monotonic() - asked < 5
            assert turn.result.subtype == "error_during_execution"
            assert await history(client) >= 3

    drive(work())
    assert "remember the heron" in str(api.messages[-1].messages[0])


def test_interrupt_in_a_hanging_tool(place: Place, callbacks: Callbacks) -> None:
    def tools() -> list[int]:
        return [pid for pid in place.processes() if arguments(pid)[:2] == ["tail", "-f"]]

    async def work() -> None:
        async with connected(place, **callbacks.options()) as client:
            await client.query("@@bash tail -f /dev/null")
            assert await eventually(lambda: bool(tools()), 20)
            await client.interrupt()
            turn = await rest_of_turn(client)
            assert turn.result.subtype == "error_during_execution"
            assert await eventually(lambda: not tools(), 2)
            assert await history(client) >= 3

    drive(work())


@pytest.mark.parametrize("fork", [False, True], ids=["resumed", "forked"])
def test_resume_in_a_new_process(place: Place, api: MockApi, fork: bool) -> None:
    async def begin() -> str:
        async with connected(place) as client:
            turn = await ask(client, "remember the kingfisher")
            return turn.result.session_id

    async def resume(session: str) -> str:
        async with connected(place, resume=session, fork_session=fork) as client:
            turn = await ask(client, "@@history")
            assert turn.texts == [f"HISTORY {len(api.messages[-1].messages)}"]
            return turn.result.session_id

    session = drive(begin())
    assert (drive(resume(session)) == session) is not fork
    assert "remember the kingfisher" in str(api.messages[-1].messages[0])


def test_continue_the_latest(place: Place, api: MockApi) -> None:
    async def begin() -> None:
        async with connected(place) as client:
            await ask(client, "remember the dipper")

    async def go_on() -> None:
        async with connected(place, continue_conversation=True) as client:
            await ask(client, "@@history")

    drive(begin())
    drive(go_on())
    assert "remember the dipper" in str(api.messages[-1].messages[0])
