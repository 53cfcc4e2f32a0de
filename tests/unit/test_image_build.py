"""A build as those see it who wait for it, and what of it others can read or change."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from cagewrap import sessions
from cagewrap.errors import CagewrapError, ConfigInvalidError, ImageMissingError
from cagewrap.image import first, tidy
from cagewrap.image.build import Builder
from cagewrap.image.progress import Progress
from cagewrap.image.recipe import Recipe, read_recipe
from cagewrap.image.store import Images
from cagewrap.image.work import Work
from cagewrap.model import ImageSettings
from cagewrap.paths import Paths, paths_from_env
from cagewrap.sessions import Record

PLAIN = ImageSettings()


@pytest.fixture
def env(tmp_path: Path) -> Iterator[dict[str, str]]:
    for name in ("home", "state", "tmp", "project"):
        (tmp_path / name).mkdir(mode=0o700)
    with tempfile.TemporaryDirectory(dir="/tmp") as run:  # the path of a socket must be short
        yield {
            "HOME": str(tmp_path / "home"),
            "PATH": "/nowhere",
            "XDG_STATE_HOME": str(tmp_path / "state"),
            "XDG_RUNTIME_DIR": run,
            "TMPDIR": str(tmp_path / "tmp"),
        }


@pytest.fixture
def paths(env: dict[str, str]) -> Paths:
    found = paths_from_env(env, os.getuid())
    sessions.make_directories(found)
    return found


def make_session(paths: Paths, project: Path) -> None:
    os.makedirs(paths.home_dir("one"))
    one = Record(
        name="one", project=str(project), session="", created_at=1.0, image="img", runtime="crun",
        identity="root", network="none", config_hash="0" * 16, home="/home/me",
        run_args=("podman", "run", "img"),
    )  # fmt: skip
    sessions.write_record(paths, one)


def builder(paths: Paths, env: dict[str, str]) -> Builder:
    return Builder(paths, env, lambda _: None)


def events(one: Builder) -> list[dict[str, object]]:
    return [json.loads(line) for line in Path(one.places.events).read_text().splitlines()]


def pid_in(path: str) -> str:
    return Path(path).read_text().strip()


def test_the_pid_is_that_of_the_build_that_runs(paths: Paths, env: dict[str, str]) -> None:
    """Ctrl-c of who waits goes to it: it must be right, and nothing when no build runs."""
    one, other = builder(paths, env), builder(paths, env)
    with one._locked():
        assert pid_in(one.places.lock) == str(os.getpid())
        child = os.fork()
        if child == 0:
            os.closerange(3, 256)  # the lock of ours, too
            with other._locked():
                os._exit(0)
        time.sleep(0.2)
        assert os.waitpid(child, os.WNOHANG) == (0, 0)  # it waits for the lock
        assert pid_in(one.places.lock) == str(os.getpid())
    os.waitpid(child, 0)
    with one._locked():
        pass
    assert pid_in(one.places.lock) == ""


def test_the_pid_of_a_killed_build_is_not_believed(paths: Paths, env: dict[str, str]) -> None:
    places = builder(paths, env).places
    Path(places.lock).write_text("4194304\n")
    with tidy.unless_building(places) as is_free:
        assert is_free
        assert pid_in(places.lock) == ""


def test_why_a_build_cannot_begin_is_told_to_who_waits(
    paths: Paths, env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.makedirs(os.path.dirname(paths.config_file), exist_ok=True)
    Path(paths.config_file).write_text(f"[image]\ncontainerfile = '{tmp_path}/none'\n")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert first.main() == ImageMissingError.exit_code
    [event] = events(builder(paths, env))
    assert (event["event"], event["exit_code"]) == ("failed", ImageMissingError.exit_code)
    assert f"{tmp_path}/none cannot be read" in str(event["message"])


@pytest.mark.parametrize("way", ["file", "symlink", "directory"])
def test_no_agent_has_a_say_in_the_containerfile(
    paths: Paths, env: dict[str, str], tmp_path: Path, way: str
) -> None:
    project = tmp_path / "project"
    make_session(paths, project)
    (tmp_path / "own").mkdir()
    (tmp_path / "own/Containerfile").write_text("FROM x")
    file = project / "Containerfile"
    if way == "file":
        file.write_text("FROM x")
    elif way == "symlink":
        file.symlink_to(tmp_path / "own/Containerfile")
    else:
        (project / "files").symlink_to(tmp_path / "own")
        file = project / "files/Containerfile"
    one = builder(paths, env)
    asked = read_recipe(PLAIN._replace(containerfile=str(file)))
    with pytest.raises(ConfigInvalidError, match="where an agent can write"):
        one.build(asked, "localhost/none:latest")
    assert events(one)[-1]["event"] == "failed"  # who waits is told


def test_no_agent_has_a_say_in_what_a_build_makes_on_the_way(
    paths: Paths, env: dict[str, str], tmp_path: Path
) -> None:
    assert builder(paths, env).env["TMPDIR"] == env["TMPDIR"]
    make_session(paths, tmp_path / "project")
    (tmp_path / "link").symlink_to(tmp_path / "project")
    for directory in (tmp_path / "project", tmp_path / "project/tmp", tmp_path / "link"):
        assert "TMPDIR" not in builder(paths, env | {"TMPDIR": str(directory)}).env


def test_other_users_read_no_password_of_an_index(env: dict[str, str], tmp_path: Path) -> None:
    """They may enter the directory: apt downloads as a user of its own."""
    scratch = tmp_path / "scratch"
    scratch.mkdir(mode=0o711)
    images = Images(env | {"PIP_INDEX_URL": "https://me:secret@index.example/simple"})
    before = os.umask(0)
    try:
        Work(images, "", recipe(), cast("Progress", None), str(scratch), fresh=False)
    finally:
        os.umask(before)
    assert "secret" in (scratch / "env").read_text()
    assert stat.S_IMODE((scratch / "env").stat().st_mode) == 0o600


def recipe() -> Recipe:
    return read_recipe(PLAIN)


def test_a_lock_is_let_go_after_an_error(paths: Paths, env: dict[str, str]) -> None:
    one = builder(paths, env)
    error = ConfigInvalidError("it is wrong")
    with pytest.raises(CagewrapError) as raised:
        one.fail(error)
    assert raised.value is error
    with open(one.places.lock, encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
