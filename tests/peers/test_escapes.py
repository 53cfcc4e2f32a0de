"""What an agent plants does not run when its owner works on the host, with the real claude.

Each attack is first shown to work without a cage: the test is right.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from claude_agent_sdk import PermissionResultAllow, PermissionUpdate
from claude_agent_sdk.types import PermissionRuleValue
from driving import ask, connected, drive
from places import Caged, Direct, wait_until

Attack = Callable[[Path], str]
"""From the file that proves it to the script that plants it."""


def hooks(proof: Path) -> str:
    """Settings whose hook runs at every prompt."""
    hook = {"hooks": [{"type": "command", "command": f"touch {str(proof)!r}"}]}
    return json.dumps({"hooks": {"UserPromptSubmit": [hook], "SessionStart": [hook]}})


def servers(proof: Path) -> str:
    """A server that is a program of the agent's."""
    server = {"command": "sh", "args": ["-c", f"touch {str(proof)!r}"]}
    return json.dumps({"mcpServers": {"evil": server}})


ATTACKS: dict[str, Attack] = {
    "the user's settings": lambda proof: (
        f"mkdir -p ~/.claude; cat >~/.claude/settings.json <<'E'\n{hooks(proof)}\nE"
    ),
    "the project's settings": lambda proof: (
        f"mkdir -p .claude; cat >.claude/settings.json <<'E'\n{hooks(proof)}\nE"
    ),
    "the project's local settings": lambda proof: (
        f"mkdir -p .claude; cat >.claude/settings.local.json <<'E'\n{hooks(proof)}\nE"
    ),
    "a server": lambda proof: f"cat >.mcp.json <<'E'\n{servers(proof)}\nE",
    "a git hook and a file watcher": lambda proof: (
        f"git init -q .; printf '#!/bin/sh\\ntouch \"{proof}\"\\n' >.git/hooks/post-commit; "
        f"chmod +x .git/hooks/post-commit; git config core.fsmonitor 'touch \"{proof}\"; false'"
    ),
}


def owner_works(direct: Direct) -> None:
    """claude, a prompt, a commit, on the host."""
    done = direct.claude("-p", "--", "hello")
    assert done.returncode == 0, done.stderr.decode()
    for words in (("status",), ("add", "-A"), ("commit", "-q", "--allow-empty", "-m", "mine")):
        direct.run("git", "-c", "user.name=o", "-c", "user.email=o@example.org", *words)


@pytest.fixture
def proof(tmp_path: Path) -> Path:
    return tmp_path / "proof"


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_without_a_cage_it_runs(direct: Direct, proof: Path, attack: Attack) -> None:
    assert direct.run("sh", "-c", attack(proof)).returncode == 0
    owner_works(direct)
    assert proof.exists()


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_from_a_cage_it_does_not_run(
    caged: Caged, direct: Direct, proof: Path, attack: Attack
) -> None:
    assert caged.run("sh", "-c", attack(proof)).returncode == 0
    owner_works(direct)
    assert not proof.exists()


def test_claude_itself_writes_it(caged: Caged, direct: Direct, proof: Path) -> None:
    """With its own tool; it reads there what it wrote."""
    target = caged.project / ".claude/settings.json"
    wanted = {"file_path": str(target), "content": hooks(proof)}
    done = caged.claude(
        "-p", "--dangerously-skip-permissions", "--", f"@@tool Write {json.dumps(wanted)}"
    )
    assert done.returncode == 0, done.stderr.decode()
    assert b"RESULT[ok]" in done.stdout
    assert caged.run("cat", target).stdout.decode() == hooks(proof)
    assert not target.exists()
    owner_works(direct)
    assert not proof.exists()


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_nor_while_the_agent_works(
    caged: Caged, direct: Direct, proof: Path, attack: Attack
) -> None:
    """The file that a claude would start servers of is put back within a second."""
    caged.run("true")
    script = f"while :; do {attack(proof)}\nsleep 2; done"
    with subprocess.Popen(
        [*caged.prefix, "sh", "-c", script], cwd=caged.project, env=os.environ | caged.env,
        stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as agent:  # fmt: skip
        time.sleep(1.5)
        until = time.monotonic() + 6
        while time.monotonic() < until:
            assert wait_until(lambda: not (caged.project / ".mcp.json").exists(), 2)
            owner_works(direct)
        agent.terminate()
    assert not proof.exists()


def test_claude_remembers_a_permission(caged: Caged) -> None:
    """In the cage, for the session; not for the host."""

    async def allow(_tool: str, arguments: dict[str, object], _context: object) -> object:
        rule = PermissionRuleValue(tool_name="Bash", rule_content="touch:*")
        update = PermissionUpdate(
            type="addRules", rules=[rule], behavior="allow", destination="localSettings"
        )
        return PermissionResultAllow(updated_input=arguments, updated_permissions=[update])

    async def work(prompt: str, **options: object) -> None:
        async with connected(caged, **options) as client:
            turn = await ask(client, prompt)
            assert not turn.tool_results[0].is_error, turn

    drive(work("@@bash touch one", can_use_tool=allow))
    assert (caged.project / "one").exists()
    assert not (caged.project / ".claude/settings.local.json").exists()
    kept = caged.run("cat", ".claude/settings.local.json").stdout
    assert json.loads(kept)["permissions"]["allow"] == ["Bash(touch:*)"]

    asked: list[str] = []

    async def refuse(tool: str, arguments: dict[str, object], _context: object) -> object:
        asked.append(tool)
        return PermissionResultAllow(updated_input=arguments)

    drive(work("@@bash touch two", can_use_tool=refuse, setting_sources=["local"]))
    assert asked == []
    assert (caged.project / "two").exists()
