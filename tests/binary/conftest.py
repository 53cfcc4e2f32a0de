"""Cages of each build, and the proof after each test that nothing is left of them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from podman.cages import Cage

from .builds import BUILDS, FROZEN, source_program


@pytest.fixture(scope="session", autouse=True)
def is_on_a_frozen_host() -> None:
    assert os.getuid() != 0, "tests/binary run on a test host: ./check frozen"
    assert FROZEN.is_dir(), "tests/binary need the frozen program: ./check frozen"


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source install's program."""
    return source_program(tmp_path_factory.mktemp("source"))


@pytest.fixture
def room() -> Iterator[Path]:
    """A directory that is not in /tmp."""
    path = Path(tempfile.mkdtemp(prefix="binary-", dir=Path.home()))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def make_cage(room: Path) -> Iterator[Callable[..., Cage]]:
    """Makes places whose cages are those of a program: make_cage(DIRECTORY, "--user", "owner")."""
    made: list[Cage] = []

    def make(program: Path, *flags: str) -> Cage:
        cage = Cage(room / f"place-{len(made)}", *flags)
        cage.program = str(program)
        made.append(cage)
        return cage

    yield make
    for cage in made:
        cage.remove()


@pytest.fixture(params=BUILDS)
def program(request: pytest.FixtureRequest) -> Path:
    """Each build."""
    return BUILDS[request.param]


@pytest.fixture
def cage(make_cage: Callable[..., Cage], program: Path) -> Cage:
    """A place of this test alone, for each build."""
    return make_cage(program)
