"""Kills at random moments. `./check chaos --chaos-seed N` makes the same choices again."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from arena import MADE

HERE = Path(__file__).parent
KILLS = int(os.environ.get("CAGEWRAP_CHAOS_KILLS") or 50)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--chaos-seed", type=int, default=None, help="the choices of an earlier run")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("chaos")
            item.add_marker(pytest.mark.timeout(300 + KILLS * 15))


@pytest.fixture(autouse=True)
def nothing_for_the_next() -> Iterator[None]:
    yield
    while MADE:
        MADE.pop().verb("rm", "--all", "--force")


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    given = request.config.getoption("--chaos-seed")
    return random.SystemRandom().randrange(10**6) if given is None else int(given)
