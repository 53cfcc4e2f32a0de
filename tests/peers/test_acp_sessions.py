"""Editors have one process for sessions in many directories, and offer to act for the agent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import acp
import places
import pytest
from endings import assert_made_by_owner
from mock_api import MockApi
from places import CLAUDE, NODE, PEERS, Caged
from test_acp_claude import NEW, OLD

EVERYTHING = {"fs": {"readTextFile": True, "writeTextFile": True}, "terminal": True}
WHERE = 'test -e "$HOME/.on-the-host" && echo host || echo cage'


@pytest.fixture
def programs() -> tuple[Path, ...]:
    return (CLAUDE.parent, PEERS)


@pytest.fixture
def caged(
    tmp_path: Path, project: Path, env: dict[str, str], api: MockApi, programs: tuple[Path, ...]
) -> Iterator[Caged]:
    (Path(env["HOME"]) / ".on-the-host").touch()
    place = places.caged(tmp_path / "claude-caged", project, env, api.port, programs)
    yield place
    place.cagewrap("rm", "--all", "--force")


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A second project."""
    path = tmp_path / "other"
    path.mkdir()
    (path / "theirs.txt").touch()
    return path


def test_each_directory_is_its_own_cage(caged: Caged, other: Path, log: Path) -> None:
    """With the agent's program replaced. What the editor offers to do itself is not asked for."""
    with acp.Client(caged, [NODE, NEW], log, CLAUDE_CODE_EXECUTABLE=caged.shim) as editor:
        first = editor.new_session("default", offered=EVERYTHING)
        editor.ask(first, f"@@bash pwd; {WHERE}; ls '{other}'; true")
        assert f"RESULT[ok]: {caged.project}\ncage\nls: cannot access" in editor.texts()
        file = {"file_path": str(caged.project / "made.txt"), "content": "made inside\n"}
        editor.ask(first, f"@@tool Write {json.dumps(file)}")
        assert (caged.project / "made.txt").read_text() == "made inside\n"
        second = editor.new_session("default", cwd=other, offered=EVERYTHING)
        editor.ask(second, f"@@bash pwd; ls; ls '{caged.project}'; true")
        assert f"RESULT[ok]: {other}\ntheirs.txt\nls: cannot access" in editor.texts()
        assert editor.asked == []
        home = Path(caged.env["HOME"])
        with pytest.raises(acp.AcpError, match=r"cagewrap: The project .* whole home directory"):
            editor.new_session(cwd=home)
        with pytest.raises(acp.AcpError, match="does not exist"):
            editor.new_session(cwd=other / "nowhere")
    rows = json.loads(caged.cagewrap("ls", "--json"))["sessions"]
    assert {row["project"] for row in rows} == {str(caged.project), str(other)}


def test_whole_agent_in_a_cage_has_one_project(
    caged: Caged, other: Path, log: Path, tmp_path: Path
) -> None:
    """Which may hold several directories. The editor runs anywhere: `env -C` goes there first."""
    above = tmp_path / "work"
    for name in ("one", "two"):
        (above / name).mkdir(parents=True)
    agent = ["env", "-C", above, *caged.prefix[:-1], "--project", above, "--", NODE, NEW]
    with acp.Client(caged, agent, log, CLAUDE_CODE_EXECUTABLE=CLAUDE) as editor:
        for name in ("one", "two"):
            session = editor.new_session("default", cwd=above / name)
            editor.ask(session, "@@bash pwd; touch made")
            assert f"RESULT[ok]: {above / name}" in editor.texts()
            assert_made_by_owner(above / name / "made")
        with pytest.raises(acp.AcpError, match="does not exist on the machine running the agent"):
            editor.new_session(cwd=other)


def test_an_old_agent_has_the_editor_run_commands_on_this_machine(caged: Caged, log: Path) -> None:
    """Which is why the documentation warns of it: no cage contains what its editor does."""
    with acp.Client(caged, [NODE, OLD], log, CLAUDE_CODE_EXECUTABLE=caged.shim) as editor:
        session = editor.new_session("default", offered=EVERYTHING)
        call = {"command": WHERE, "timeout": 5000}
        editor.ask(session, f"@@tool mcp__acp__Bash {json.dumps(call)}")
        assert [asked["asked"] for asked in editor.asked] == ["createTerminal"]
        assert "\nhost\n" in editor.texts()
