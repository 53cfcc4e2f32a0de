"""Plugins of a marketplace on the owner's disk: in the cage they work, or say what is not there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from places import Caged, Direct
from test_settings import init, say, write

GONE = "/opt/on-the-host-alone/program"


@pytest.fixture
def market(tmp_path: Path) -> Path:
    """Two plugins: one that stands by itself, one whose programs are the host's alone."""
    top = tmp_path / "market"
    plugins = [{"name": name, "source": f"./{name}"} for name in ("whole", "needy")]
    write(
        top / ".claude-plugin/marketplace.json",
        {"name": "birds", "owner": {"name": "me"}, "plugins": plugins},
    )
    for name in ("whole", "needy"):
        write(
            top / name / ".claude-plugin/plugin.json",
            {"name": name, "version": "1.0.0", "description": "of birds"},
        )
        write(top / name / "commands/quack.md", f"Say quack like {name}.\n")
        write(top / name / f"skills/{name}-wader/SKILL.md",
              f"---\nname: {name}-wader\ndescription: wades\n---\nWade.\n")  # fmt: skip
    script = top / "whole/hooks/mark.sh"
    write(script, "#!/bin/sh\ntouch ~/plugin-hook-ran\n")
    script.chmod(0o755)
    for name, command in (("whole", '"${CLAUDE_PLUGIN_ROOT}/hooks/mark.sh"'), ("needy", GONE)):
        hook = {"hooks": [{"type": "command", "command": command}]}
        write(top / name / "hooks/hooks.json", {"hooks": {"UserPromptSubmit": [hook]}})
    write(top / "needy/.mcp.json", {"mcpServers": {"needy-birds": {"command": GONE}}})
    return top


@pytest.fixture
def installed(direct: Direct, market: Path) -> Path:
    """The owner adds the marketplace, and installs both."""
    for words in (
        ("marketplace", "add", str(market)),
        ("install", "whole@birds"),
        ("install", "needy@birds"),
    ):
        done = direct.claude("plugin", *words)
        assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    return Path(direct.env["HOME"]) / ".claude/plugins"


def names(events: list[dict]) -> set[str]:
    """Without those that claude itself has."""
    return {one["name"] for one in init(events)["plugins"] if one["path"] != "builtin"}


def servers(events: list[dict]) -> dict[str, str]:
    return {server["name"]: server["status"] for server in init(events)["mcp_servers"]}


def test_plugins_are_those_of_the_host(caged: Caged, installed: Path) -> None:
    assert installed.is_dir()
    events = say(caged, "hello", "--include-hook-events")
    assert names(events) == {"whole", "needy"}
    assert {"whole:quack", "needy:quack"} <= set(init(events)["slash_commands"])
    assert {"whole:whole-wader", "needy:needy-wader"} <= set(init(events)["skills"])
    ran = caged.run("ls", Path(caged.env["HOME"]) / "plugin-hook-ran")
    assert ran.returncode == 0, "the hook of a plugin whose script is its own"
    assert not (installed.parent.parent / "plugin-hook-ran").exists()


def test_a_plugin_whose_programs_are_not_there_says_so(
    caged: Caged, direct: Direct, installed: Path
) -> None:
    """As it would on a machine without them; the message goes on."""
    assert installed.is_dir()
    for place in (direct, caged):
        events = say(place, "hello", "--include-hook-events")
        assert servers(events) == {"plugin:needy:needy-birds": "failed"}
        responses = [one for one in events if one.get("subtype") == "hook_response"]
        failed = [one for one in responses if one.get("exit_code") == 127]
        assert len(failed) == 1, responses
        assert f"{GONE}: not found" in failed[0]["stderr"]
        assert events[-1]["result"] == "echo: hello"


def test_what_the_owner_changes_is_there_with_the_next_message(
    caged: Caged, direct: Direct, installed: Path, market: Path
) -> None:
    assert names(say(caged, "x")) == {"whole", "needy"}
    direct.claude("plugin", "disable", "whole@birds")
    direct.claude("plugin", "uninstall", "needy@birds")
    write(market / "late/.claude-plugin/plugin.json", {"name": "late", "version": "1.0.0"})
    write(market / "late/commands/late.md", "Say late.\n")
    found = json.loads((market / ".claude-plugin/marketplace.json").read_text())
    found["plugins"].append({"name": "late", "source": "./late"})
    write(market / ".claude-plugin/marketplace.json", found)
    direct.claude("plugin", "marketplace", "update", "birds")
    done = direct.claude("plugin", "install", "late@birds")
    assert done.returncode == 0, done.stderr
    assert installed.is_dir()
    events = say(caged, "y")
    assert names(events) == names(say(direct, "y")) == {"late"}
    assert "late:late" in init(events)["slash_commands"]


def test_what_an_agent_installs_stays_in_the_cage(
    caged: Caged, direct: Direct, installed: Path, market: Path
) -> None:
    """Its hooks do not run on the host, nor do those that it writes into the owner's plugins."""
    inside = Path(caged.env["HOME"]) / "market"
    say(caged, "x")
    script = """
        set -e; cp -r "$1" "$2"; sed -i s/birds/nest/ "$2/.claude-plugin/marketplace.json"
        sed -i 's/hook-ran/evil-ran/' "$2/whole/hooks/mark.sh"
        find ~/.claude/plugins -name mark.sh -exec sed -i 's/hook-ran/evil-ran/' {} +"""
    done = caged.run("sh", "-c", script.replace('"$1"', "./market"), "sh", "", str(inside))
    assert done.returncode != 0, "the marketplace itself is not in the cage"
    shutil.copytree(market, caged.project / "market")
    done = caged.run("sh", "-c", script, "sh", "./market", str(inside))
    assert done.returncode == 0, done.stderr
    for words in (("marketplace", "add", str(inside)), ("install", "whole@nest")):
        done = caged.claude("plugin", *words)
        assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    assert len(say(caged, "y")) > 1
    home = installed.parent.parent
    assert caged.run("ls", home / "plugin-evil-ran").returncode == 0, "the test is right"
    assert not list(installed.rglob("*nest*"))
    say(direct, "z")
    assert not (home / "plugin-evil-ran").exists()
    assert (home / "plugin-hook-ran").exists()
