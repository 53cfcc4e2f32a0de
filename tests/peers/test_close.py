"""Nothing of a message stays behind, however it ended; other messages of the cage live on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from driving import Callbacks, ask, connected, drive, eventually
from endings import HANGING, HANGS_S, assert_nothing_left, hangs
from places import Caged, Place, wait_until


def test_close_on_a_hanging_tool(place: Place, callbacks: Callbacks) -> None:
    async def work() -> None:
        async with connected(place, **callbacks.options()) as client:
            await client.query(HANGING)
            assert await eventually(lambda: hangs(place), HANGS_S), callbacks.stderr

    drive(work())
    assert_nothing_left(place)


def test_close_leaves_another_message_alone(place: Place, callbacks: Callbacks) -> None:
    async def work() -> None:
        async with connected(place, **callbacks.options()) as stays:
            await ask(stays, "hello")
            others = frozenset(place.processes())
            assert others
            async with connected(place, **callbacks.options()) as goes:
                await goes.query(HANGING)
                assert await eventually(lambda: hangs(place), HANGS_S), callbacks.stderr
            assert_nothing_left(place, but=others)
            turn = await ask(stays, "@@bash echo still here")
            assert turn.texts[-1] == "RESULT[ok]: still here"

    drive(work())
    assert_nothing_left(place)


# --- a harness that does not come to closing -----------------------------------------------------

HARNESS = """
import asyncio, sys
from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient

async def main(shim, cwd, prompt):
    options = ClaudeAgentOptions(cli_path=shim, cwd=cwd, allowed_tools=["Bash(*)"])
    async with ClaudeSDKClient(options) as client:
        await client.query(prompt)
        async for message in client.receive_messages():
            print(message, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
def harness(caged: Caged) -> Iterator[subprocess.Popen[bytes]]:
    """A harness in a process of its own, whose agent has a tool hanging."""
    argv = [sys.executable, "-c", HARNESS, str(caged.shim), str(caged.project), HANGING]
    env = os.environ | caged.env
    with subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL) as process:
        try:
            assert wait_until(lambda: hangs(caged), HANGS_S)
            yield process
        finally:
            process.kill()


def test_harness_killed(caged: Caged, harness: subprocess.Popen[bytes]) -> None:
    harness.kill()
    assert_nothing_left(caged)


def test_shim_killed(caged: Caged, harness: subprocess.Popen[bytes]) -> None:
    children = Path(f"/proc/{harness.pid}/task/{harness.pid}/children").read_text().split()
    [shim] = map(int, children)
    os.kill(shim, signal.SIGKILL)
    assert_nothing_left(caged)
