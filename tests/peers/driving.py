"""Drives the real Agent SDK the way a harness does, and keeps what came back to assert on."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from claude_agent_sdk import (
    AssistantMessage,
    ClaudeAgentOptions,
    ClaudeSDKClient,
    HookMatcher,
    Message,
    PermissionResultAllow,
    ResultMessage,
    TextBlock,
    ToolResultBlock,
    UserMessage,
)
from claude_agent_sdk.types import StreamEvent
from places import Place, wait_until

TEST_S = 90
T = TypeVar("T")


def drive(work: Coroutine[Any, Any, T]) -> T:
    """Run a test's coroutine.

    A pipe that something still holds open when the agent has ended shows as a transport that was
    not closed; collected here, it fails this test and not a later one.
    """

    async def in_time() -> T:
        async with asyncio.timeout(TEST_S):
            return await work

    try:
        return asyncio.run(in_time())
    finally:
        gc.collect()


@dataclass
class Turn:
    """Everything the client received for one query."""

    messages: list[Message] = field(default_factory=list)

    @property
    def result(self) -> ResultMessage:
        last = self.messages[-1]
        assert isinstance(last, ResultMessage), last
        return last

    @property
    def texts(self) -> list[str]:
        said = [message for message in self.messages if isinstance(message, AssistantMessage)]
        return [
            block.text
            for message in said
            for block in message.content
            if isinstance(block, TextBlock)
        ]

    @property
    def tool_results(self) -> list[ToolResultBlock]:
        users = [message for message in self.messages if isinstance(message, UserMessage)]
        return [
            block for user in users for block in user.content if isinstance(block, ToolResultBlock)
        ]

    @property
    def partial_text(self) -> str:
        events = [message.event for message in self.messages if isinstance(message, StreamEvent)]
        return "".join(event.get("delta", {}).get("text", "") for event in events)


@dataclass
class Callbacks:
    """What the agent called back for: permission questions, hooks, lines on its stderr."""

    permissions: list[str] = field(default_factory=list)
    hooks: list[str] = field(default_factory=list)
    stderr: list[str] = field(default_factory=list)

    def options(self) -> dict[str, Any]:
        return {
            "can_use_tool": self._allow,
            "hooks": {"PreToolUse": [HookMatcher(hooks=[self._pre_tool_use])]},
            "stderr": self.stderr.append,
        }

    async def _allow(
        self, tool: str, arguments: dict[str, Any], _context: object
    ) -> PermissionResultAllow:
        self.permissions.append(tool)
        return PermissionResultAllow(updated_input=arguments)

    async def _pre_tool_use(self, call: Any, _tool_use_id: str | None, _context: object) -> Any:
        self.hooks.append(call["tool_name"])
        return {}


@asynccontextmanager
async def connected(place: Place, **options: Any) -> AsyncIterator[ClaudeSDKClient]:
    """A client with the agent running; closed as a harness closes it."""
    chosen = ClaudeAgentOptions(cli_path=place.shim, cwd=place.project, env=place.env, **options)
    async with ClaudeSDKClient(chosen) as client:
        yield client


async def ask(client: ClaudeSDKClient, prompt: str) -> Turn:
    await client.query(prompt)
    return await rest_of_turn(client)


async def rest_of_turn(client: ClaudeSDKClient) -> Turn:
    return Turn([message async for message in client.receive_response()])


async def history(client: ClaudeSDKClient) -> int:
    """How many messages the agent sends along: more than 2 or so if it remembers anything."""
    turn = await ask(client, "@@history")
    return int(turn.texts[-1].removeprefix("HISTORY "))


async def eventually(condition: Callable[[], bool], within_s: float) -> bool:
    """As wait_until, while the client goes on: the agent may be waiting for its callbacks."""
    return await asyncio.to_thread(wait_until, condition, within_s)
