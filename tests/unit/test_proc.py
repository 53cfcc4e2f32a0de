"""Programs of the host: found on absolute entries of PATH alone, and run outside of the project."""

import os
import subprocess
import sys

import pytest

from cagewrap import ahead, childenv, launch, proc
from cagewrap.errors import KeeperError, PodmanMissingError
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
    monkeypatch.setattr(childenv, "DEFAULT_PATH", "/nowhere")
    with pytest.raises(PodmanMissingError):
        proc.capture(("podman",), timeout_s=10, env={"PATH": path})
    with pytest.raises(PodmanMissingError):
        proc.run(("podman",), env={"PATH": path}, line=print)
    with pytest.raises(FileNotFoundError):
        proc.replace(("podman",), env={"PATH": path})


def test_absolute_entries_keep_their_order():
    assert childenv.search_path({"PATH": ".:/b::bin:/a:"}) == "/b:/a"
    assert childenv.search_path({}) == childenv.search_path({"PATH": "bin"})
    assert childenv.search_path({}).startswith("/")


def test_no_entry_of_path_leads_through_a_project(tmp_path):
    """An agent can give a symlink another text after it was looked at."""
    for name in ("bin", "project"):
        (tmp_path / name).mkdir()
    (tmp_path / "project/tools").symlink_to(tmp_path / "bin")
    (tmp_path / "back").symlink_to("project/../project/tools")
    entries = [str(tmp_path / name) for name in ("project/tools", "back", "back/..", "bin")]
    env = {"PATH": ":".join(entries)}
    assert childenv.search_path(env, [str(tmp_path / "project")]) == entries[-1]
    assert childenv.search_path(env) == env["PATH"]


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


def test_a_keeper_that_is_not_needed_ends_and_nothing_is_said(tmp_path):
    """Nothing on our stderr, no child of ours, and gone once nobody can tell it its cage."""
    code = (
        "import os; from cagewrap.ahead import Ahead\n"
        "with Ahead() as ahead:\n"
        "    try: os.waitpid(-1, 0)\n"
        "    except ChildProcessError: print('childless')\n"
    )
    source = os.path.dirname(os.path.dirname(proc.__file__))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=os.environ | {"PYTHONPATH": source, "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True, check=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == (b"childless\n", b"")


def test_a_keeper_that_cannot_start_says_why(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    log = tmp_path / "log"
    with (
        log.open("wb") as file,
        ahead.Ahead() as keeper,
        pytest.raises(KeeperError, match="No such file"),
    ):
        keeper.take("cagewrap-x", {"PATH": "/bin"}, file.fileno(), file.fileno())
    assert b"No such file" in log.read_bytes()
