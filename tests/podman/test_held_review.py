"""`cagewrap review`: what is held back is shown, handed over or thrown away."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from .cages import Cage
from .test_held_directories import contents, settle, write

pytestmark = pytest.mark.host_side


def review(cage: Cage, *words: str, code: int = 0) -> dict[str, Any]:
    done = cage.cagewrap("review", *words, "--json")
    assert done.code == code, (done.out, done.err)
    found: dict[str, Any] = json.loads(done.out)
    return found


def held(cage: Cage) -> dict[str, str]:
    """What is held back of files, with the differences."""
    return {
        one["path"]: one["diff"]
        for one in review(cage)["held"]
        if not one["path"].startswith(".git/")
    }


@pytest.fixture
def changed(cage: Cage) -> Cage:
    """A cage whose agent has changed, made and removed what the host would run."""
    write(cage.project / ".claude/settings.json", "{}\n")
    write(cage.project / ".claude/old.md", "old\n")
    write(cage.project / ".mcp.json", "{}\n")
    script = """
        echo '{"a": 1}' >.claude/settings.json; rm .claude/old.md; mkdir -p .zed/deep
        printf '#!/bin/sh\\n' >.claude/run; chmod +x .claude/run
        echo t >.zed/deep/tasks.json; echo '{"b": 2}' >.mcp.json; echo e >.envrc
        mkdir sub; echo '{"c": 3}' >sub/.mcp.json
    """
    cage.text("sh", "-c", script)
    settle(cage)
    return cage


EVERYTHING = {
    ".claude/old.md",
    ".claude/run",
    ".claude/settings.json",
    ".envrc",
    ".mcp.json",
    ".zed/deep/tasks.json",
    "sub/.mcp.json",
}


def test_everything_is_shown_with_what_would_change(changed: Cage) -> None:
    found = held(changed)
    assert set(found) == EVERYTHING
    assert found[".mcp.json"].splitlines() == [
        "--- a/.mcp.json", "+++ b/.mcp.json", "@@ -1 +1 @@", "-{}", '+{"b": 2}',
    ]  # fmt: skip
    assert found[".claude/old.md"].splitlines()[1] == "+++ /dev/null"
    done = changed.cagewrap("review")
    assert b'+{"b": 2}' in done.out
    assert b"claude starts the servers it names" in done.out
    listed = json.loads(changed.cagewrap("ls", "--json").out)["sessions"]
    assert listed[0]["held"] == len(EVERYTHING)


def test_what_is_accepted_comes_to_the_project(changed: Cage) -> None:
    review(changed)
    done = review(changed, "--accept-all")["done"]
    assert {one["path"] for one in done} >= EVERYTHING
    assert contents(changed.project) == {
        ".claude/settings.json": '{"a": 1}\n',
        ".claude/run": "#!/bin/sh\n",
        ".zed/deep/tasks.json": "t\n",
        ".mcp.json": '{"b": 2}\n',
        ".envrc": "e\n",
        "sub/.mcp.json": '{"c": 3}\n',
    }
    assert (changed.project / ".claude/run").stat().st_mode & 0o111
    assert held(changed) == {}
    done = changed.run("sh", "-c", "cat .mcp.json sub/.mcp.json .zed/deep/tasks.json; sleep 1")
    assert done.out == b'{"b": 2}\n{"c": 3}\nt\n'
    assert done.err == b""
    settle(changed)
    assert held(changed) == {}


def test_what_is_dropped_is_gone(changed: Cage) -> None:
    before = contents(changed.project)
    review(changed, "--drop-all")
    assert held(changed) == {}
    assert contents(changed.project) == before
    script = "cat .claude/settings.json .claude/old.md .mcp.json; ls -A .zed"
    assert changed.text("sh", "-c", script) == "{}\nold\n{}\n"


def test_one_is_accepted_and_one_dropped(changed: Cage) -> None:
    review(changed)
    review(changed, "--accept", ".mcp.json", "--drop", ".claude/settings.json")
    assert set(held(changed)) == EVERYTHING - {".mcp.json", ".claude/settings.json"}
    assert (changed.project / ".mcp.json").read_text() == '{"b": 2}\n'
    assert (changed.project / ".claude/settings.json").read_text() == "{}\n"


def test_only_what_was_shown_can_be_accepted(changed: Cage) -> None:
    refused = review(changed, "--accept", ".claude/settings.json", code=120)
    assert "not shown yet" in refused["error"]["message"]
    review(changed)
    changed.text("sh", "-c", "echo worse >.claude/settings.json; echo worse >.mcp.json")
    settle(changed)
    for path in (".claude/settings.json", ".mcp.json"):
        review(changed, "--accept", path, code=120)
    assert (changed.project / ".claude/settings.json").read_text() == "{}\n"
    review(changed)
    review(changed, "--accept", ".claude/settings.json")
    assert (changed.project / ".claude/settings.json").read_text() == "worse\n"


def test_both_have_changed_the_same_file(changed: Cage) -> None:
    write(changed.project / ".claude/settings.json", "host\n")
    changed.text("true")
    settle(changed)
    assert held(changed)[".claude/settings.json"].splitlines()[3:] == ["-host", '+{"a": 1}']


def test_nothing_is_accepted_through_a_symlink(changed: Cage, tmp_path: Path) -> None:
    """One that an agent has put in the place of a directory on the way."""
    changed.text("sh", "-c", "mkdir -p .claude/x sub2; echo e >.claude/x/f; echo e >sub2/.mcp.json")
    settle(changed)
    outside = tmp_path / "outside"
    outside.mkdir()
    (changed.project / ".claude/x").symlink_to(outside)
    changed.text("sh", "-c", f"rmdir sub2; ln -s {outside} sub2")
    review(changed)
    for path in (".claude/x/f", "sub2/.mcp.json"):
        done = changed.cagewrap("review", "--accept", path)
        assert done.code == 120, (path, done.out, done.err)
    assert list(outside.iterdir()) == []


def test_escape_sequences_are_shown_and_not_sent(cage: Cage) -> None:
    cage.text(
        "sh",
        "-c",
        "printf 'x\\033]0;evil\\007\\n' >.envrc; printf x >\"$(printf '.claude/\\033[2J')\"",
    )
    settle(cage)
    done = cage.cagewrap("review")
    assert done.code == 0, done.err
    assert b"\x1b" not in done.out + done.err
    assert b"\\x1b]0;evil" in done.out


def test_a_file_with_a_line_in_its_name_makes_no_line(cage: Cage) -> None:
    cage.text("sh", "-c", 'echo x >".claude/a\n0 held back"')
    settle(cage)
    assert b"\n0 held back" not in cage.cagewrap("review").out


def test_usage(changed: Cage) -> None:
    review(changed, "--accept-all", "--drop", ".envrc", code=110)
    review(changed, "--accept", "nothing", code=120)
    review(changed, "nosuch", code=120)


def test_a_review_while_the_agent_works(cage: Cage) -> None:
    write(cage.project / ".mcp.json", "{}\n")
    script = "echo '{\"a\": 1}' >.mcp.json; sleep 1.5; echo up; read line; cat .mcp.json; sleep 1"
    with cage.popen("sh", "-c", script, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        assert agent.stdin is not None
        assert agent.stdout.readline() == b"up\n"
        assert set(held(cage)) == {".mcp.json"}
        review(cage, "--accept", ".mcp.json")
        agent.stdin.write(b"on\n")
        agent.stdin.close()
        assert agent.stdout.read() == b'{"a": 1}\n'
    settle(cage)
    assert contents(cage.project) == {".mcp.json": '{"a": 1}\n'}


def test_ls_counts_what_review_shows(cage: Cage) -> None:
    """At once after a message, and after each decision; of git's and of files."""
    subprocess.run(["git", "init", "-q", str(cage.project)], check=True)
    write(cage.project / ".claude/settings.json", "{}\n")

    def counts() -> tuple[int, int]:
        done = cage.cagewrap("ls", "--json")
        [one] = json.loads(done.out)["sessions"]
        return one["held"], len(review(cage)["held"])

    cage.text(
        "sh", "-c", "echo x >.claude/settings.json; git config core.pager evil; echo e >.envrc"
    )
    assert counts() == (3, 3)
    cage.text("sh", "-c", "echo y >.claude/more; echo z >.vscode/tasks.json")
    assert counts() == (5, 5)
    for path in (".git/config:core.pager", ".vscode/tasks.json", ".envrc"):
        review(cage, "--drop", path)
        assert counts()[0] == counts()[1]
    review(cage, "--accept", ".claude/more")
    assert counts() == (1, 1)
    cage.text("sh", "-c", "echo {} >.claude/settings.json")
    assert counts() == (0, 0)
