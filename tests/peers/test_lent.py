"""Agents by their names, with nothing mounted for them: the cage has this machine's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from endings import assert_made_by_owner
from json_lines import JsonLines
from mock_api import MockApi
from places import CLAUDE, PEERS, Caged
from test_codex import CONFIG, FREELY, items
from test_pi import MODEL, ask

OPENCODE = PEERS / "opencode-linux-x64-baseline/bin/opencode"
MADE = "@@bash echo made inside | tee made.txt"


@pytest.fixture
def programs() -> tuple[Path, ...]:
    return ()


@pytest.fixture(autouse=True)
def installed(env: dict[str, str]) -> None:
    """As a person has them: links in `~/.local/bin`, and the directory that npm makes."""
    directory = Path(env["HOME"]) / ".local/bin"
    directory.mkdir(parents=True)
    for name, target in (("claude", CLAUDE), ("opencode", OPENCODE)):
        (directory / name).symlink_to(target)
    env |= {
        "PATH": f"{directory}:{PEERS}/.bin:/usr/bin:/bin",
        "OPENAI_API_KEY": "sk-test",
        "PI_OFFLINE": "1",
        "TMPDIR": "/var/tmp",
    }


def assert_made(place: Caged) -> None:
    made = place.project / "made.txt"
    assert made.read_text() == "made inside\n"
    assert_made_by_owner(made)


def test_claude(caged: Caged) -> None:
    done = caged.run("claude", "-p", "--permission-mode", "bypassPermissions", MADE)
    assert done.stdout.startswith(b"RESULT[ok]: made inside"), done
    assert_made(caged)


def test_codex(caged: Caged, api: MockApi) -> None:
    """npm's launcher is a script of node's; what runs is the program for this platform."""
    caged.put_in_home(".codex/config.toml", CONFIG.format(url=api.url))
    done = caged.run("codex", "exec", *FREELY, MADE)
    assert done.returncode == 0, done
    events: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    assert "made inside" in items(events, "agent_message")[-1]["text"]
    assert_made(caged)


def test_pi(caged: Caged, api: MockApi, log: Path) -> None:
    """A script whose parts lie beside its package, with the node of that directory."""
    models = {"providers": {"anthropic": {"baseUrl": api.url}}}
    caged.put_in_home(".pi/agent/models.json", json.dumps(models))
    shim = caged.shim_for("pi-caged", "pi")
    with JsonLines([shim, "--mode", "rpc", *MODEL], caged.project, caged.env, log) as pi:
        assert ask(pi, MADE).startswith("RESULT[ok]: made inside")
        assert pi.end() == 0
    assert_made(caged)


def test_opencode(caged: Caged, api: MockApi) -> None:
    options = {"baseURL": f"{api.url}/v1", "apiKey": "sk-test"}
    config = {
        "autoupdate": False,
        "provider": {"anthropic": {"options": options}},
        "model": "anthropic/claude-sonnet-4-5",
    }
    caged.put_in_home(".config/opencode/opencode.json", json.dumps(config))
    caged.env["OPENCODE_DISABLE_MODELS_FETCH"] = "1"
    done = subprocess.run(
        [*caged.prefix, "opencode", "run"],
        cwd=caged.project, env=os.environ | caged.env, input=MADE.encode(), capture_output=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done
    assert_made(caged)


def test_an_acp_agent_whole(caged: Caged, log: Path) -> None:
    shim = caged.shim_for("acp-caged", "claude-agent-acp")
    with JsonLines([shim], caged.project, caged.env, log) as agent:
        agent.send(
            {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "initialize",
                "params": {"protocolVersion": 1, "clientCapabilities": {}},
            }
        )
        assert agent.expect(id=1)["result"]["protocolVersion"] == 1


def test_a_program_that_is_gone_is_gone(caged: Caged, env: dict[str, str]) -> None:
    """Also where an earlier keeper lent it; what was mounted for it stays in the cage."""
    link = Path(env["HOME"]) / ".local/bin/opencode"
    link.unlink()
    program = link.parent.parent / "opencode"
    shutil.copy(OPENCODE, program)
    link.symlink_to(program)
    look = ("sh", "-c", "command -v opencode; command -v claude")
    assert caged.run(*look).stdout.count(b"/run/cagewrap/bin/") == 2
    link.unlink()
    program.unlink()
    assert caged.run(*look).stdout == b"/run/cagewrap/bin/claude\n"
