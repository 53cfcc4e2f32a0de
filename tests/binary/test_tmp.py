"""/tmp is not needed: it may be full, and nothing of it may be executable."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from podman.cages import Cage

from .builds import over


@pytest.fixture(params=["noexec", "full"])
def bad_tmp(request: pytest.FixtureRequest) -> Iterator[None]:
    options = ("noexec",) if request.param == "noexec" else ("size=4k",)
    with over("/tmp", *options):
        if request.param == "full":
            with contextlib.suppress(OSError), Path("/tmp/filling").open("wb") as file:
                file.write(bytes(8192))
            with pytest.raises(OSError, match="No space left"):
                Path("/tmp/more").write_bytes(bytes(4096))
        yield


def test_works_with_a_bad_tmp(bad_tmp: None, cage: Cage) -> None:
    cage.env["XDG_CACHE_HOME"] = str(cage.place.root / "cache")  # the single file unpacks itself
    assert cage.text("echo", "cold") == "cold\n"
    assert cage.text("echo", "warm") == "warm\n"
    assert cage.run("sh", "-c", "exit 3").code == 3
    assert cage.cagewrap("ls").code == 0
    assert cage.cagewrap("rm").code == 0
