"""codex, run for one message as harnesses do: `codex exec --json`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from endings import HANGING, HANGS_S, assert_made_by_owner, assert_nothing_left, hangs
from mock_api import MockApi
from places import PEERS, Caged, Place, wait_until

CODEX = PEERS / "@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl"
REPORTING = ("--json", "--skip-git-repo-check")
FREELY = (*REPORTING, "--dangerously-bypass-approvals-and-sandbox")
CONFIG = """
model = "mock"
model_provider = "mock"
[analytics]
enabled = false  # or it tries for seconds where there is no network
[model_providers.mock]
name = "mock"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "OPENAI_API_KEY"
supports_websockets = false
request_max_retries = 0
stream_max_retries = 0
"""


@pytest.fixture
def programs() -> tuple[Path, ...]:
    return (CODEX,)


@pytest.fixture(autouse=True)
def key(env: dict[str, str]) -> None:
    env["OPENAI_API_KEY"] = "sk-test-codex"
    env["TMPDIR"] = "/var/tmp"  # codex keeps no helpers below it, and HOME is in /tmp


def started(place: Place, api: MockApi, *args: str) -> subprocess.Popen[bytes]:
    place.put_in_home(".codex/config.toml", CONFIG.format(url=api.url))
    return subprocess.Popen(
        [place.shim_for("codex", CODEX / "bin/codex"), *args],
        cwd=place.project,
        env=os.environ | place.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def run(place: Place, api: MockApi, *args: str) -> list[dict[str, Any]]:
    """What it reports, one event a line."""
    with started(place, api, *args) as process:
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, (stdout, stderr)
    return [json.loads(line) for line in stdout.splitlines()]


def items(events: Sequence[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Those that were completed."""
    done = [event["item"] for event in events if event["type"] == "item.completed"]
    return [item for item in done if item["type"] == kind]


def test_message(place: Place, api: MockApi) -> None:
    events = run(place, api, "exec", *FREELY, "@@bash echo made inside | tee made.txt")
    [command] = items(events, "command_execution")
    assert (command["exit_code"], command["aggregated_output"]) == (0, "made inside\n")
    assert "made inside" in items(events, "agent_message")[-1]["text"]
    made = place.project / "made.txt"
    assert made.read_text() == "made inside\n"
    assert_made_by_owner(made)
    assert api.turns[-1].authorization == "Bearer sk-test-codex"
    assert_nothing_left(place)


def test_its_own_sandbox(place: Place, api: MockApi) -> None:
    """It puts an empty `.codex` into the project while a command runs, and removes it, unless it
    finds one."""
    script = "@@bash echo made inside > made.txt; echo out > /etc/out.txt; sleep 1; cat made.txt"
    events = run(place, api, "exec", *REPORTING, "--sandbox", "workspace-write", script)
    [command] = items(events, "command_execution")
    assert command["exit_code"] == 0, command
    assert (place.project / "made.txt").read_text() == "made inside\n"
    assert place.run("sh", "-c", "test -e /etc/out.txt").returncode == 1


def test_resume(place: Place, api: MockApi) -> None:
    [thread] = [
        event["thread_id"]
        for event in run(place, api, "exec", *FREELY, "remember the plover")
        if event["type"] == "thread.started"
    ]
    events = run(place, api, "exec", "resume", *FREELY, thread, "@@history")
    assert items(events, "agent_message")[-1]["text"].startswith("HISTORY")
    assert "remember the plover" in str(api.turns[-1].messages)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_ended_with_a_command_hanging(caged: Caged, api: MockApi, number: signal.Signals) -> None:
    with started(caged, api, "exec", *FREELY, HANGING) as process:
        assert wait_until(lambda: hangs(caged), HANGS_S)
        process.send_signal(number)
        assert_nothing_left(caged)
        process.communicate(timeout=10)
        assert process.returncode != 0
