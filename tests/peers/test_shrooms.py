"""Claude Code and pi in Shrooms: sessions with names, started anew after every idle stop."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import places
import pytest
import shrooms
from endings import HANGING, HANGS_S, assert_nothing_left, hangs
from mock_api import MockApi
from places import CLAUDE, NODE, PEERS, Caged, Place, wait_until
from test_pi import MODEL, PI

MARK = "/opt/mark"
IS_FRESH = f"@@bash test ! -e {MARK} && echo fresh"
MCP_SERVER = Path(__file__).parents[1] / "programs/mcp_server.py"
STOPS_S = 20
GRACE_S = 1.0
"""Instead of Shrooms' ten seconds, after which the same happens."""
New = Callable[..., shrooms.Session]
Kind = type[shrooms.Session]


@pytest.fixture
def programs() -> tuple[Path, ...]:
    return (CLAUDE.parent, PEERS)


@pytest.fixture
def env(env: dict[str, str], tmp_path: Path) -> dict[str, str]:
    text = 'session_env = ["SHROOMS_AGENT_SESSION"]\n'
    (Path(env["HOME"]) / ".pi/agent").mkdir(parents=True)
    return places.configured(env, tmp_path / "config", text) | {"PI_OFFLINE": "1"}


@pytest.fixture
def caged(
    tmp_path: Path, project: Path, env: dict[str, str], api: MockApi, programs: tuple[Path, ...]
) -> Iterator[Caged]:
    place = places.caged(tmp_path / "claude-caged", project, env, api.port, programs)
    yield place
    place.cagewrap("rm", "--all", "--force")


@pytest.fixture
def new(api: MockApi, log: Path) -> Iterator[New]:
    """Makes sessions, which end with the test."""
    made: list[shrooms.Session] = []

    def session(
        place: Place, name: str, kind: type[shrooms.Session] = shrooms.Claude
    ) -> shrooms.Session:
        program, extra = place.shim, ()
        if kind is shrooms.Pi:
            models = {"providers": {"anthropic": {"baseUrl": api.url}}}
            (Path(place.env["HOME"]) / ".pi/agent").mkdir(parents=True, exist_ok=True)
            Path(place.env["HOME"], ".pi/agent/models.json").write_text(json.dumps(models))
            program, extra = place.shim_for("pi", NODE, PI), MODEL
        one = kind(name, place.project, program, place.env, log, extra=extra)
        made.append(one)
        return one

    yield session
    for one in made:
        one.close()


def sessions(place: Caged) -> dict[str, dict[str, Any]]:
    listed = json.loads(place.cagewrap("ls", "--json"))["sessions"]
    return {one["session"]: one for one in listed}


def add_flags(place: Caged, *flags: str) -> None:
    """For each start from now on."""
    place.prefix = (*place.prefix[:-1], *flags, "--")
    place.shim_for(place.shim.name, CLAUDE)


def assert_quiet(session: shrooms.Session) -> None:
    """Nothing that Shrooms would stumble over."""
    process = session.start()
    assert process.busy_children() == []
    assert process.noise == []
    assert not process.is_deaf


def mark(session: shrooms.Session) -> str:
    """Which cage a session is in: what it first wrote outside of the project."""
    answer = session.ask(f"@@bash cat {MARK} 2>/dev/null || echo {session.name} | tee {MARK}")
    return answer.removeprefix("RESULT[ok]: ").strip()


@pytest.mark.parametrize(
    ("where", "kind"),
    [("direct", shrooms.Claude), ("caged", shrooms.Claude), ("caged", shrooms.Pi)],
    ids=["direct-claude", "caged-claude", "caged-pi"],
)
def test_started_anew_after_every_idle_stop(
    request: pytest.FixtureRequest, new: New, api: MockApi, where: str, kind: Kind
) -> None:
    place: Place = request.getfixturevalue(where)
    if isinstance(place, Caged):
        add_flags(place, "--idle-stop", "1s")
    session = new(place, "one", kind)
    answer = session.ask("@@bash echo made inside | tee made.txt")
    assert answer.startswith("RESULT[ok]: made inside"), session.running
    if isinstance(place, Caged):
        assert_quiet(session)
    assert session.become_idle() == 0
    session.ask("remember the snipe")
    assert "echo made inside" in str(api.turns[-1].messages)
    assert session.become_idle() == 0
    if isinstance(place, Caged):
        assert wait_until(lambda: sessions(place)["one"]["status"] == "stopped", STOPS_S)
    session.ask("@@history")
    assert "the snipe" in str(api.turns[-1].messages)
    assert session.stop() == 0
    assert (place.project / "made.txt").read_text() == "made inside\n"


def test_two_sessions_share_a_directory(caged: Caged, new: New, api: MockApi) -> None:
    first, second = new(caged, "one"), new(caged, "two")
    assert [mark(session) for session in (first, second)] == ["one", "two"]
    first.ask("@@bash echo for all > shared.txt")
    assert second.ask("@@bash cat shared.txt") == "RESULT[ok]: for all"
    assert "for all > shared" not in str(api.turns[-1].messages)
    assert sorted(sessions(caged)) == ["one", "two"]
    first.stop()  # and deleted, which Shrooms tells nobody
    caged.cagewrap("rm", "one")
    assert sorted(sessions(caged)) == ["two"]
    assert new(caged, "one").ask(IS_FRESH) == "RESULT[ok]: fresh"


@pytest.mark.parametrize("kind", [shrooms.Claude, shrooms.Pi], ids=["claude", "pi"])
def test_a_renamed_session_keeps_its_cage(caged: Caged, new: New, api: MockApi, kind: Kind) -> None:
    """Also when another session of the directory has the conversation too, from the host."""
    session, other = new(caged, "before", kind), new(caged, "other", kind)
    assert mark(session) == "before"
    session.become_idle()
    assert mark(other) == "other"
    session.name = "after"
    assert mark(session) == "before"
    assert "tee /opt/mark" in str(api.turns[-1].messages[0])
    assert sorted(sessions(caged)) == ["after", "other"]
    again = new(caged, "before", kind)
    assert again.ask(IS_FRESH).strip() == "RESULT[ok]: fresh", "a new session of the old name"
    assert sorted(sessions(caged)) == ["after", "before", "other"]


def test_killed_when_it_does_not_end(caged: Caged, new: New) -> None:
    caged.env["SHROOMS_AGENT_SESSION"] = "one"
    session = new(caged, "one")
    process = session.begin(HANGING)
    assert wait_until(lambda: hangs(caged), HANGS_S), process
    assert process.busy_children() == []
    assert session.stop(GRACE_S) == -signal.SIGKILL
    assert_nothing_left(caged)


def test_no_line_on_stderr_ends_its_reading(caged: Caged, new: New) -> None:
    """Of the many that cagewrap may write, here of links to where no cage may look."""
    home = Path(caged.env["HOME"])
    (home / ".ssh").mkdir()
    (home / ".ssh/key").write_text("secret")
    agents = home / ".claude/agents"
    for number in range(300):
        directory = agents / ("d" * 250) / ("e" * 250) / ("f" * 250)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / (f"{number}-" + "g" * 200 + ".md")).symlink_to(home / ".ssh" / "key")
    session = new(caged, "one")
    assert session.ask("hello") == "echo: hello"
    assert_quiet(session)
    process = session.start()
    assert session.become_idle() == 0
    assert len(process.stderr_lines) == 20
    assert process.stderr_lines[-1].endswith(b"cagewrap logs\n")
    assert not process.is_deaf


@contextmanager
def daemon(path: Path) -> Iterator[None]:
    """A service of this machine on a unix socket."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(path))
        listener.listen()

        def serve() -> None:
            while True:
                try:
                    connection = listener.accept()[0]
                except OSError:
                    return
                with connection:
                    asked = connection.makefile().readline()
                    connection.sendall(f"asked to {asked}".encode())

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize("is_mounted", [True, False], ids=["mounted", "not there"])
def test_mcp_server_of_this_machine(
    caged: Caged, new: New, tmp_path: Path, *, is_mounted: bool
) -> None:
    """As Shrooms names it: a program by its path, which talks to a daemon on a socket."""
    program, sockets = tmp_path / "tools/shrooms-agent", tmp_path / "sockets"
    program.parent.mkdir()
    sockets.mkdir()
    shutil.copy(MCP_SERVER, program)
    flags = ["--env", f"MCP_SOCKET={sockets}/daemon.sock"]
    if is_mounted:
        flags += ["--mount", str(program.parent), "--mount", str(sockets)]
    add_flags(caged, *flags)
    with daemon(sockets / "daemon.sock"):
        session = new(caged, "one")
        session.mcp = program
        answer = session.ask("@@tool mcp__shrooms__list_agents {}")
        [server] = session.start().expect(type="system", subtype="init")["mcp_servers"]
        assert server["status"] == ("connected" if is_mounted else "failed")
        if is_mounted:
            assert answer == "RESULT[ok]: asked to list"
        assert session.ask("@@bash echo goes on") == "RESULT[ok]: goes on"
        assert_quiet(session)
        assert session.become_idle() == 0
