"""A shim of one build and a keeper of another, of the same version, are one cagewrap."""

from collections.abc import Callable
from itertools import permutations
from pathlib import Path

import pytest

from podman.cages import Cage, wait_until

from .builds import BUILDS, executable

PAIRS = list(permutations((*BUILDS, "source"), 2))


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=map(" then ".join, PAIRS))
def test_keeper_of_one_and_shim_of_another(
    make_cage: Callable[..., Cage], source: Path, first: str, second: str
) -> None:
    programs = BUILDS | {"source": source}
    cage = make_cage(programs[first])
    cage.text("sh", "-c", "echo kept >/root/file; echo kept >~/file")
    keeper = cage.keeper()
    assert ("python" in Path(executable(keeper)).name) == (first == "source")
    cage.program = str(programs[second])
    assert cage.text("cat", "/root/file") == "kept\n"
    assert cage.run("sh", "-c", "kill -TERM $$").code == -15
    assert cage.run("cat", stdin=b"\0\xff" * 50000).out == b"\0\xff" * 50000
    assert cage.keeper() == keeper
    assert b"running" in cage.cagewrap("ls").out
    assert cage.cagewrap("stop").code == 0
    assert wait_until(lambda: cage.keeper() == 0, 10)
    assert cage.text("cat", "/root/file") == "kept\n"
    assert ("python" in Path(executable(cage.keeper())).name) == (second == "source")
    cage.program = str(programs[first])
    assert cage.cagewrap("rm", "--force").code == 0
    assert cage.names() == []
