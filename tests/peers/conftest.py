"""Real agents, driven as harnesses drive them, against an API on loopback.

Each test that takes `place` runs twice: against the agent as it is, which shows that the test is
right, and against the agent in a cage.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import places
import pytest
from driving import Callbacks
from mock_api import MockApi


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker("peers")


@pytest.fixture(autouse=True)
def no_settings_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("ANTHROPIC_", "CLAUDE", "CAGEWRAP_", "XDG_STATE_")):
            monkeypatch.delenv(name)


@pytest.fixture
def api() -> Iterator[MockApi]:
    with MockApi() as server:
        yield server
    assert server.faults == []


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """With a space in its name, as people have them."""
    path = tmp_path / "the project"
    path.mkdir()
    return path


@pytest.fixture
def env(api: MockApi, tmp_path: Path) -> dict[str, str]:
    """A home of the test's own, from where podman still finds its images."""
    home = tmp_path / "home"
    home.mkdir()
    owner = Path.home()
    return {
        "HOME": str(home),
        "XDG_CONFIG_HOME": os.environ.get("XDG_CONFIG_HOME") or str(owner / ".config"),
        "XDG_DATA_HOME": os.environ.get("XDG_DATA_HOME") or str(owner / ".local/share"),
        "ANTHROPIC_BASE_URL": api.url,
        "ANTHROPIC_API_KEY": "sk-test-dummy",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_RETRIES": "1",
    }


@pytest.fixture
def direct(tmp_path: Path, project: Path, env: dict[str, str]) -> places.Direct:
    # What podman needs of the owner's is not for the agent: in a cage it has none of it either.
    bare = {name: value for name, value in env.items() if not name.startswith("XDG_")}
    return places.direct(tmp_path / "claude-direct", project, bare)


@pytest.fixture
def programs() -> tuple[Path, ...]:
    """The directories of programs that the cage gets. Tests of other agents have their own."""
    return (places.CLAUDE.parent,)


@pytest.fixture
def caged(
    tmp_path: Path,
    project: Path,
    env: dict[str, str],
    api: MockApi,
    programs: tuple[Path, ...],
) -> Iterator[places.Caged]:
    place = places.caged(tmp_path / "claude-caged", project, env, api.port, programs)
    yield place
    place.cagewrap("rm")


@pytest.fixture(params=["direct", "caged"])
def place(request: pytest.FixtureRequest) -> places.Place:
    chosen: places.Place = request.getfixturevalue(request.param)
    return chosen


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """For the stderr of what a test starts."""
    return tmp_path / "stderr.log"


@pytest.fixture
def callbacks() -> Callbacks:
    return Callbacks()
