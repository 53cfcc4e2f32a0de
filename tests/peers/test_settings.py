"""Claude's settings, instructions and extensions of the host, in the cage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mock_api import MockApi
from places import Caged, Direct, Place

MARK = "MARKED-SECRET"


@pytest.fixture
def host(env: dict[str, str]) -> Path:
    path = Path(env["HOME"]) / ".claude"
    path.mkdir()
    return path


def write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def say(place: Place, text: str, *args: str) -> list[dict]:
    """One message; every event it printed."""
    done = place.claude("-p", "--output-format", "stream-json", "--verbose", *args, "--", text)
    assert done.returncode == 0, done.stderr.decode() + done.stdout.decode()
    return [json.loads(line) for line in done.stdout.splitlines()]


def init(events: list[dict]) -> dict:
    return next(event for event in events if event.get("subtype") == "init")


def settings_inside(caged: Caged) -> dict:
    done = caged.run("cat", Path(caged.env["HOME"]) / ".claude/settings.json")
    found = json.loads(done.stdout or b"{}")
    found.pop("skipDangerousModePermissionPrompt", None)  # claude moves it here from .claude.json
    return found


def test_instructions_settings_and_skills_are_those_of_the_host(
    place: Place, host: Path, api: MockApi
) -> None:
    write(host / "CLAUDE.md", "The owner likes herons.\n")
    write(host.parent / "src.md", "not an instruction")
    write(host / "settings.json", {"model": "claude-haiku-4-5", "env": {"GREETING": "moin"}})
    write(host / "skills/wader/SKILL.md", "---\nname: wader\ndescription: wades\n---\nWade.\n")
    write(host / "commands/quack.md", "Say quack.\n")
    events = say(place, "@@bash printenv GREETING", "--allowedTools", "Bash(printenv:*)")
    assert "haiku" in init(events)["model"]
    assert {"wader", "quack"} <= {*init(events)["slash_commands"], *init(events)["skills"]}
    assert "The owner likes herons." in str(api.messages[0].body)
    assert "RESULT[ok]: moin" in str(events)


def test_an_edit_on_the_host_is_there_with_the_next_message(
    caged: Caged, host: Path, api: MockApi
) -> None:
    write(host / "CLAUDE.md", "The owner likes herons.\n")
    say(caged, "x")
    write(host / "CLAUDE.md", "The owner likes storks.\n")
    write(host / "settings.json", {"model": "claude-haiku-4-5"})
    events = say(caged, "y")
    assert "likes storks" in str(api.messages[-1].body)
    assert "haiku" in init(events)["model"]


def test_what_the_agent_writes_stays_and_stays_in_the_cage(caged: Caged, host: Path) -> None:
    write(host / "settings.json", {"model": "claude-haiku-4-5", "permissions": {"allow": ["A"]}})
    say(caged, "x")
    own = {**settings_inside(caged), "outputStyle": "mine"}
    own["permissions"]["allow"].append("B")
    caged.put_in_home(".claude/settings.json", json.dumps(own))
    write(
        host / "settings.json", {"model": "claude-opus-4-1", "permissions": {"allow": ["A", "C"]}}
    )
    before = (host / "settings.json").read_text()
    caged.run("true")
    permissions = {"allow": ["A", "C", "B"]}
    wanted = {"model": "claude-opus-4-1", "outputStyle": "mine", "permissions": permissions}
    assert settings_inside(caged) == wanted
    assert (host / "settings.json").read_text() == before


def test_a_hook_that_the_agent_plants_does_not_run_on_the_host(
    caged: Caged, direct: Direct, host: Path, tmp_path: Path
) -> None:
    mark = tmp_path / "ran"
    hook = {"hooks": [{"type": "command", "command": f"touch {mark}"}]}
    caged.put_in_home(".claude/settings.json", json.dumps({"hooks": {"UserPromptSubmit": [hook]}}))
    say(caged, "x")
    say(direct, "x")
    assert not mark.exists()
    write(host / "settings.json", {"hooks": {"UserPromptSubmit": [hook]}})
    say(direct, "x")
    assert mark.exists()  # the test is right


def test_no_secret_of_the_settings_is_in_the_cage(caged: Caged, host: Path) -> None:
    token = "sk-ant-oat01-" + MARK * 2
    write(
        host / "settings.json",
        {
            "apiKeyHelper": f"/bin/echo {MARK}",
            "otelHeadersHelper": f"/bin/echo {MARK}",
            "env": {"MY_TOKEN": MARK, "ANTHROPIC_AUTH_TOKEN": MARK, "PLAIN": token, "OK": "fine"},
            "hooks": {"Stop": [{"hooks": [{"type": "command", "command": f"curl -H {token}"}]}]},
        },
    )
    write(
        host.parent / ".claude.json",
        {
            "primaryApiKey": token,
            "oauthAccount": {"accountUuid": MARK},
            "mcpServers": {
                "birds": {"command": "birds", "env": {"BIRDS_KEY": MARK, "BIRDS_LAND": "de"}},
                "web": {"type": "http", "url": "https://x/", "headers": {"Authorization": MARK}},
                "line": {"command": "x", "args": [token]},
            },
            "projects": {"/elsewhere": {"history": [MARK]}},
        },
    )
    write(host / ".credentials.json", {"claudeAiOauth": {"accessToken": token}})
    write(host / "history.jsonl", MARK)
    write(host / "projects/-elsewhere/x.jsonl", MARK)
    say(caged, "x")
    found = caged.run("grep", "-rlE", MARK, caged.env["HOME"])
    assert found.stdout == b"", found.stdout
    assert settings_inside(caged)["env"] == {"OK": "fine"}
    done = caged.run("cat", Path(caged.env["HOME"]) / ".claude.json")
    servers = json.loads(done.stdout)["mcpServers"]
    assert servers["birds"] == {"command": "birds", "env": {"BIRDS_LAND": "de"}}
    assert set(servers) == {"birds", "web"}


def test_mcp_servers_of_the_owner_and_of_this_project_are_there(
    caged: Caged, host: Path, project: Path
) -> None:
    """One whose program is not in the cage is shown as failed, and the session goes on."""
    local = {"local-birds": {"command": "/nowhere/local-birds"}}
    write(
        host.parent / ".claude.json",
        {
            "mcpServers": {"birds": {"command": "/nowhere/birds"}},
            "projects": {str(project): {"mcpServers": local}},
        },
    )
    events = say(caged, "hello")
    shown = {server["name"]: server["status"] for server in init(events)["mcp_servers"]}
    assert shown == {"birds": "failed", "local-birds": "failed"}
    assert events[-1]["result"] == "echo: hello"


def test_a_hook_whose_program_is_not_there_says_so_and_the_tool_runs(
    caged: Caged, host: Path
) -> None:
    hook = {"matcher": "*", "hooks": [{"type": "command", "command": "/home/me/bin/host-only"}]}
    write(host / "settings.json", {"hooks": {"PreToolUse": [hook]}})
    events = say(
        caged, "@@bash echo fine", "--allowedTools", "Bash(echo:*)", "--include-hook-events"
    )
    assert "RESULT[ok]: fine" in str(events)
    assert "host-only" in str(events)
    assert "not found" in str(events)


def test_a_hook_of_the_owners_runs_in_the_cage(caged: Caged, host: Path) -> None:
    script = host / "hooks/mark.sh"
    write(script, "#!/bin/sh\ntouch ~/hook-ran\n")
    script.chmod(0o755)
    hook = {"hooks": [{"type": "command", "command": f"'{script}'"}]}
    write(host / "settings.json", {"hooks": {"UserPromptSubmit": [hook]}})
    say(caged, "x")
    assert caged.run("ls", Path(caged.env["HOME"]) / "hook-ran").returncode == 0
    assert not (host.parent / "hook-ran").exists()


def test_a_corrupt_file_of_the_hosts_changes_nothing_and_is_said(caged: Caged, host: Path) -> None:
    write(host / "settings.json", {"model": "claude-haiku-4-5"})
    say(caged, "x")
    write(host / "settings.json", "{ corrupt")
    done = caged.claude("-p", "--", "x")
    assert done.returncode == 0
    assert done.stderr.count(b"could not be brought into the cage") == 1
    assert settings_inside(caged) == {"model": "claude-haiku-4-5"}


def test_memory_of_the_host_comes_and_the_cages_stays(
    caged: Caged, direct: Direct, host: Path, api: MockApi
) -> None:
    say(direct, "x")
    (slug,) = (host / "projects").iterdir()
    write(slug / "memory/MEMORY.md", "- [Birds](birds.md) the owner likes avocets\n")
    say(direct, "x")
    assert "likes avocets" in str(api.messages[-1].body)  # the test is right
    say(caged, "y")
    assert "likes avocets" in str(api.messages[-1].body)
    name = f".claude/projects/{slug.name}/memory/own.md"
    caged.put_in_home(name, "planted")
    say(caged, "z")
    assert [path.name for path in (slug / "memory").iterdir()] == ["MEMORY.md"]


def test_sharing_can_be_turned_off(caged: Caged, host: Path) -> None:
    write(host / "CLAUDE.md", "x")
    prefix = (*caged.prefix[:-1], "--share", "no-claude", "--")
    off = Caged(prefix, caged.shim, caged.project, caged.env)
    say(off, "x")
    assert off.run("ls", host / "CLAUDE.md").returncode != 0
    assert not (host / "projects").exists()
