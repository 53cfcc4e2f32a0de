"""acpx: an ACP client on the command line."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest
from endings import assert_made_by_owner, assert_nothing_left
from places import CLAUDE, NODE, PEERS, Caged
from test_acp_claude import NEW

ACPX = PEERS / "acpx/dist/cli.js"


@pytest.fixture
def programs() -> tuple[Path, ...]:
    return (CLAUDE.parent, PEERS)


def run(place: Caged, *args: str) -> str:
    done = subprocess.run(
        [NODE, ACPX, "--approve-all", "--format", "quiet", *args],
        cwd=place.project,
        env=os.environ | place.env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout.decode()


def test_agent_with_cagewrap_in_front(caged: Caged) -> None:
    caged.env["CLAUDE_CODE_EXECUTABLE"] = str(CLAUDE)
    command = shlex.join([*caged.prefix, str(NODE), str(NEW)])
    run_and_look(caged, "--no-terminal", "--no-fs", "--agent", command)


def test_agent_of_the_configuration(caged: Caged) -> None:
    """The built-in `claude`, replaced: the agent itself is on the host, and Claude in the cage."""
    caged.env["CLAUDE_CODE_EXECUTABLE"] = str(caged.shim)
    config = Path(caged.env["HOME"]) / ".acpx/config.json"
    config.parent.mkdir()
    config.write_text(json.dumps({"agents": {"claude": {"argv": [str(NODE), str(NEW)]}}}))
    run_and_look(caged, "claude")


def run_and_look(place: Caged, *agent: str) -> None:
    prompt = "@@bash echo made inside | tee made.txt"
    said = run(place, *agent, "exec", "--config-option", "mode=default", prompt)
    assert "RESULT[ok]: made inside" in said
    assert (place.project / "made.txt").read_text() == "made inside\n"
    assert_made_by_owner(place.project / "made.txt")
    assert_nothing_left(place)
