"""Cages of a test's own, and the proof after each test that nothing is left of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .cages import GONE_S, IDENTITIES, RUNTIMES, Cage, podman, wait_until
from .terminals import Terminals

HERE = Path(__file__).parent


class Latencies:
    """How long things took to end; shown after the run."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, what: str, seconds: float) -> None:
        self.lines.append(f"{seconds:6.3f} s  {what}")


_LATENCIES = Latencies()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _LATENCIES.lines:
        terminalreporter.section("how long until all was gone")
        for line in _LATENCIES.lines:
            terminalreporter.line(line)


@pytest.fixture
def latencies() -> Latencies:
    return _LATENCIES


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("podman")


@pytest.fixture(scope="session", autouse=True)
def is_unprivileged() -> None:
    assert os.getuid() != 0, "tests/podman run on a test host: ./check podman-4.3"


@pytest.fixture(scope="session")
def nothing_before() -> None:
    found = podman("ps", "--all", "--quiet", "--filter", "label=cagewrap.name").stdout
    assert found == "", "containers of an earlier run: ./check starts with a fresh home"


@pytest.fixture
def make_cage(tmp_path: Path, nothing_before: None) -> Iterator[Callable[..., Cage]]:
    """Makes places with cages: make_cage("--user", "owner"). Each is removed and checked."""
    made: list[Cage] = []

    def make(*flags: str) -> Cage:
        made.append(Cage(tmp_path / f"place-{len(made)}", *flags))
        return made[-1]

    yield make
    for cage in made:
        cage.remove()


@pytest.fixture
def cage(make_cage: Callable[..., Cage]) -> Cage:
    """A place of this test alone, whose cage starts with the first command."""
    return make_cage()


@pytest.fixture(scope="module")
def shared_cage(tmp_path_factory: pytest.TempPathFactory, nothing_before: None) -> Iterator[Cage]:
    """A cage that runs already and that a module's tests share; each leaves nothing running."""
    cage = Cage(tmp_path_factory.mktemp("shared") / "place")
    cage.text("true")
    yield cage
    cage.remove()


@pytest.fixture(scope="module", params=IDENTITIES)
def identity_cage(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, nothing_before: None
) -> Iterator[Cage]:
    """As shared_cage, once as root inside and once as the owner."""
    cage = Cage(tmp_path_factory.mktemp(request.param) / "place", "--user", request.param)
    cage.text("true", timeout_s=110)
    yield cage
    cage.remove()


@pytest.fixture(autouse=True)
def nothing_running(request: pytest.FixtureRequest) -> Iterator[None]:
    """In a shared cage no test leaves a process behind."""
    yield
    for name in ("shared_cage", "identity_cage"):
        if name in request.fixturenames:
            cage: Cage = request.getfixturevalue(name)
            wait_until(lambda cage=cage: not cage.inside_pids(), 1)  # type: ignore[misc]
            left = cage.inside_pids()
            for pid in left:  # or every later test fails for the same reason
                os.kill(pid, signal.SIGKILL)
            assert left == []
            assert cage.keeper() != 0


@pytest.fixture(
    scope="module",
    params=[(user, runtime) for user in IDENTITIES for runtime in RUNTIMES],
    ids="-".join,
)
def every_cage(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, nothing_before: None
) -> Iterator[Cage]:
    """A running cage of each identity and runtime."""
    user, runtime = request.param
    cage = Cage(
        tmp_path_factory.mktemp("-".join(request.param)) / "place",
        "--user",
        user,
        "--runtime",
        runtime,
    )
    cage.text("true", timeout_s=110)
    yield cage
    cage.remove()


@pytest.fixture
def terminals(every_cage: Cage) -> Iterator[Terminals]:
    found = Terminals(every_cage)
    yield found
    found.remove()
    assert wait_until(lambda: every_cage.inside_pids() == [], GONE_S), every_cage.inside_pids()
    assert every_cage.keeper() != 0
