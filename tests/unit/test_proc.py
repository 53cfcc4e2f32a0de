"""Programs of the host: found on absolute entries of PATH alone, and run outside of the project."""

import os
import subprocess
import sys

import pytest

from cagewrap import launch, proc
from cagewrap.errors import PodmanMissingError
from cagewrap.paths import Paths


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A current directory where an agent has put a `podman` that tells of itself."""
    planted = tmp_path / "bin" / "podman"
    planted.parent.mkdir()
    planted.write_text("#!/bin/sh\necho planted\n")
    planted.chmod(0o755)
    (tmp_path / "podman").symlink_to("bin/podman")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("path", ["", ".", "bin", ":/nowhere", "/nowhere:", "/nowhere::bin", "./"])
def test_nothing_is_found_in_the_current_directory(project, path, monkeypatch):
    monkeypatch.setattr(proc, "_DEFAULT_PATH", "/nowhere")
    with pytest.raises(PodmanMissingError):
        proc.capture(("podman",), timeout_s=10, env={"PATH": path})
    with pytest.raises(PodmanMissingError):
        proc.run(("podman",), env={"PATH": path})
    with pytest.raises(FileNotFoundError):
        proc.replace(("podman",), env={"PATH": path})


def test_absolute_entries_keep_their_order():
    assert proc.search_path({"PATH": ".:/b::bin:/a:"}) == "/b:/a"
    assert proc.search_path({}) == proc.search_path({"PATH": "bin"})
    assert proc.search_path({}).startswith("/")


def test_programs_run_outside_of_the_project(project):
    env = {"PATH": "/usr/bin:/bin"}
    assert proc.capture(("pwd",), timeout_s=10, env=env).stdout == b"/\n"
    found = proc.capture(("pwd",), timeout_s=10, env=env, cwd=str(project)).stdout
    assert found == os.fsencode(os.path.realpath(project)) + b"\n"


def test_keeper_gets_absolute_entries_only(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", ".:/usr/bin:bin")
    run = str(tmp_path)
    paths = Paths(run, run, run, run, run)
    assert launch._keeper_environment(paths)["PATH"] == "/usr/bin"


def test_starting_a_keeper_warns_of_nothing(tmp_path):
    log = tmp_path / "log"
    code = (
        "import os; from cagewrap import proc; "
        f"log = os.open({str(log)!r}, os.O_CREAT | os.O_WRONLY); "
        "proc.start_detached(['true'], env=os.environ, log_fd=log, kept_fds=())"
    )
    source = os.path.dirname(os.path.dirname(proc.__file__))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=os.environ | {"PYTHONPATH": source}, capture_output=True, check=True,
    )  # fmt: skip
    assert (done.stderr, log.read_bytes()) == (b"", b"")
