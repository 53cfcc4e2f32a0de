"""The workbench is built once, by the first messages that need it, and shared by the tests."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from podman.cages import Done, podman

from .benches import FIGURES, LIMIT_S, NAME, Bench, image_id, wait_for_line


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if FIGURES.lines:
        terminalreporter.section("figures of the workbench")
        for line in FIGURES.lines:
            terminalreporter.line(line)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test waits for the whole build."""
    for item in items:
        if Path(__file__).parent in item.path.parents and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(LIMIT_S + 100))


@pytest.fixture(scope="session", autouse=True)
def is_unprivileged() -> None:
    assert os.getuid() != 0, "tests/image run on a test host: ./check image"


@dataclass
class First:
    """Three messages at once on a machine that has no image yet, and one that lost patience."""

    bench: Bench
    done: list[Done]
    killed_code: int


@pytest.fixture(scope="session")
def first(tmp_path_factory: pytest.TempPathFactory) -> Iterator[First]:
    bench = Bench(tmp_path_factory.mktemp("first") / "bench")
    assert image_id() == ""
    began = time.monotonic()
    impatient = bench.popen("--network", "none", "--rm", "--", "true")
    wait_for_line(bench, "making a base")
    others = []
    for number in range(3):
        project = bench.root / f"project-{number}"
        project.mkdir()
        others.append(bench.popen("--network", "none", "--", "echo", str(number), cwd=project))
    time.sleep(2)
    impatient.send_signal(signal.SIGKILL)
    impatient.communicate(timeout=10)
    done = []
    for one in others:
        out, err = one.communicate(timeout=LIMIT_S)
        done.append(Done(one.returncode, out, err))
    FIGURES.timed("three first messages, with the build (cold)", began)
    yield First(bench, done, impatient.returncode)
    bench.remove()


@pytest.fixture(scope="session")
def workbench(first: First) -> str:
    """The id of the image that every test finds as NAME, and leaves there."""
    assert [one.code for one in first.done] == [0, 0, 0], [one.err.decode() for one in first.done]
    return image_id()


@pytest.fixture
def bench(tmp_path: Path, workbench: str) -> Iterator[Bench]:
    """A bench on which the shipped image was built."""
    made = Bench(tmp_path / "bench")
    (made.state / "cagewrap").mkdir(parents=True)
    recipe = json.loads(podman("image", "inspect", NAME).stdout)[0]["Labels"]["cagewrap.recipe"]
    notes = {NAME: {"recipe": recipe, "id": workbench}}
    (made.state / "cagewrap/images.json").write_text(json.dumps(notes))
    yield made
    left = made.left()
    made.settings()
    made.run("image", "build")  # the name is the shipped one's again
    made.remove()
    assert left == []
    assert image_id() == workbench
