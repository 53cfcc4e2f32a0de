"""The runtime directory: the owner's, and nobody else's to write in."""

import os
import tempfile
from pathlib import Path

import pytest

from cagewrap.errors import DirectoryError
from cagewrap.paths import paths_from_env


@pytest.fixture
def place():
    """A directory with a short name: sockets below it must be nameable."""
    with tempfile.TemporaryDirectory(prefix="p") as name:
        yield Path(name)


def env(root):
    return {"HOME": str(root), "XDG_RUNTIME_DIR": str(root / "run")}


def test_runtime_directory_of_the_owner_is_taken(place):
    (place / "run").mkdir(mode=0o755)
    assert paths_from_env(env(place), os.getuid()).podman_runtime_dir == str(place / "run")


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_runtime_directory_that_others_can_write_to_is_refused(place, mode):
    (place / "run").mkdir()
    (place / "run").chmod(mode)
    with pytest.raises(DirectoryError) as caught:
        paths_from_env(env(place), os.getuid())
    assert caught.value.hint == f"chmod 700 {place}/run"
