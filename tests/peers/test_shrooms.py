"""Claude Code and pi in Shrooms: sessions with names, started anew after every idle stop."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
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
GRACE_S = 1.0
"""Instead of Shrooms' ten seconds, after which the same happens."""
New = Callable[..., shrooms.Session]


@pytest.fixture
def programs() -> tuple[Path, ...]:
    return (CLAUDE.parent, PEERS)


@pytest.fixture
def env(env: dict[str, str], tmp_path: Path) -> dict[str, str]:
    text = 'session_env = ["SHROOMS_AGENT_SESSION"]\n'
    (Path(env["HOME"]) / ".pi/agent").mkdir(parents=True)
    return places.configured(env, tmp_path / "config", text) | {"PI_OFFLINE": "1"}


@pytest.fixture
def caged(caged: Caged) -> Iterator[Caged]:
    yield caged
    caged.cagewrap("rm", "--all", "--force")
    caged.run("true")  # the fixture removes one that is there


@pytest.fixture(params=[shrooms.Claude, shrooms.Pi])
def harness(request: pytest.FixtureRequest) -> type[shrooms.Session]:
    chosen: type[shrooms.Session] = request.param
    return chosen


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
        with one:
            """Its process ends."""


def sessions(place: Caged) -> dict[str, dict[str, Any]]:
    listed = json.loads(place.cagewrap("ls", "--json"))["sessions"]
    return {one["session"]: one for one in listed}


def assert_quiet(session: shrooms.Session) -> None:
    """Nothing that Shrooms would stumble over."""
    process = session.start()
    assert process.busy_children() == []
    assert process.noise == []
    assert not process.is_deaf


def test_started_anew_after_every_idle_stop(
    place: Place, new: New, harness: type[shrooms.Session], api: MockApi
) -> None:
    session = new(place, "one", harness)
    answer = session.ask("@@bash echo made inside | tee made.txt")
    assert answer.startswith("RESULT[ok]: made inside"), session.running
    if isinstance(place, Caged):
        assert_quiet(session)
    assert session.become_idle() == 0
    session.ask("remember the snipe")
    assert "echo made inside" in str(api.turns[-1].messages)
    assert session.become_idle() == 0
    session.ask("@@history")
    assert "the snipe" in str(api.turns[-1].messages)
    assert session.stop() == 0
    assert (place.project / "made.txt").read_text() == "made inside\n"
    assert_nothing_left(place)
