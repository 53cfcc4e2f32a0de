"""Claude's files in a cage, against an agent that puts whatever it likes where they belong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import uuid
from pathlib import Path

import pytest

from .cages import Cage, wait_until

SECRET = "HOST-SECRET"

SWAP = r"""
# What the keeper opens is, again and again, something else.
target=$1
cd ~ && mkdir -p .claude/projects kept
while :; do
  for name in .claude .claude/projects .claude/skills .claude/settings.json .claude.json; do
    mv -T $name kept/x 2>/dev/null
    ln -s $target $name 2>/dev/null; rm -f $name
    mkfifo $name 2>/dev/null; rm -f $name
    ln -s /etc $name 2>/dev/null; rm -f $name
    mv -T kept/x $name 2>/dev/null
  done
done
"""


@pytest.fixture
def host(cage: Cage, tmp_path: Path) -> Path:
    """The owner's directory of Claude's."""
    path = tmp_path / "claude"
    path.mkdir()
    cage.env["CLAUDE_CONFIG_DIR"] = str(path)
    (path / ".credentials.json").write_text(SECRET)
    (path / "settings.json").write_text(json.dumps({"env": {"A_TOKEN": SECRET, "PLAIN": "1"}}))
    return path


def slug(cage: Cage) -> str:
    return "".join(c if c.isalnum() and c.isascii() else "-" for c in str(cage.project))


def conversation(cage: Cage, host: Path, text: str) -> Path:
    path = host / "projects" / slug(cage) / f"{uuid.uuid4()}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    entry = {"type": "user", "cwd": str(cage.project), "message": text}
    path.write_text(json.dumps(entry, separators=(",", ":")) + "\n")
    return path


def tree(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def test_a_swapping_agent_leads_the_keeper_nowhere(cage: Cage, host: Path) -> None:
    first = conversation(cage, host, "hello")
    cage.text("true")
    keeper = cage.keeper()
    with cage.popen(
        "sh", "-c", SWAP, "sh", host, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as agent:  # fmt: skip
        for number in range(25):
            (host / "CLAUDE.md").write_text(f"edit {number}")
            (host / "settings.json").write_text(
                json.dumps({"env": {"A_TOKEN": SECRET}, "number": number})
            )
            conversation(cage, host, f"message {number}")
            before = tree(host)
            assert cage.run("true").code == 0
            assert tree(host) == before
        agent.send_signal(signal.SIGTERM)
        agent.wait(10)
    found = [
        path
        for path in cage.private_home().rglob("*")
        if path.is_file() and not path.is_symlink() and SECRET.encode() in path.read_bytes()
    ]
    assert found == []
    assert cage.keeper() == keeper
    conversation(cage, host, "last")
    (host / "CLAUDE.md").write_text("last edit")
    cage.text("sh", "-c", "rm -rf ~/.claude ~/.claude.json ~/kept")
    cage.run("true")
    assert first.exists()
    inside = cage.private_home() / ".claude/projects" / slug(cage)
    assert len(list(inside.glob("*.jsonl"))) == 27


def test_a_killed_keeper_loses_and_doubles_nothing(cage: Cage, host: Path) -> None:
    """The next one carries on where it was."""
    first = conversation(cage, host, "hello")
    cage.text("true")
    entry = {"type": "user", "cwd": str(cage.project), "message": "from the cage"}
    line = json.dumps(entry, separators=(",", ":"))
    inside = f"~/.claude/projects/{slug(cage)}/{first.name}"
    with cage.popen(
        "sh", "-c", f"echo '{line}' >>{inside}; sleep 60", stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ):  # fmt: skip
        assert wait_until(lambda: first.read_text().endswith(line + "\n"), 5)
        os.kill(cage.keeper(), signal.SIGKILL)
    cage.text("sh", "-c", f"echo '{line.replace('from', 'again from')}' >>{inside}")
    cage.text("true")
    assert [json.loads(one)["message"] for one in first.read_text().splitlines()] == [
        "hello", "from the cage", "again from the cage",
    ]  # fmt: skip


def test_what_is_planted_in_the_way_is_said_and_the_message_goes_on(cage: Cage, host: Path) -> None:
    (host / "CLAUDE.md").write_text("one")
    cage.text("true")
    cage.text("sh", "-c", "rm -rf ~/.claude && ln -s /etc ~/.claude")
    (host / "CLAUDE.md").write_text("two")
    done = cage.run("true")
    assert done.code == 0
    assert b"could not be brought into the cage" in done.err
    assert not (Path("/etc") / "CLAUDE.md").exists()
    done = cage.run("true")
    assert (done.code, done.err) == (0, b"")
