"""Hidden paths."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from cagewrap import hidden
from cagewrap.errors import MountRefusedError
from cagewrap.hidden import HIDDEN_LIMIT
from cagewrap.model import Mount
from cagewrap.mounts import empty_file
from homes import Machine, settings, write


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def covers(machine: Machine, *patterns: str, mounts: tuple[Mount, ...] = ()) -> dict[str, str]:
    """Covered path -> kind, paths relative to the project where they lie in it."""
    plan = machine.plan(settings(hide=patterns, mounts=mounts))
    return {
        os.path.relpath(mount.target, machine.project)
        if mount.target.startswith(str(machine.project))
        else mount.target: mount.kind
        for mount in plan.mounts
        if mount.why.startswith("hidden")
    }


def pinned(machine: Machine, *patterns: str) -> list[str]:
    plan = machine.plan(settings(hide=patterns))
    return [
        os.path.relpath(mount.target, machine.project)
        for mount in plan.mounts
        if mount.why == "holds a hidden path in its place"
    ]


def test_hidden_file_is_covered_by_an_empty_one(machine: Machine) -> None:
    write(machine.project / ".env")
    plan = machine.plan(settings(hide=(".env",)))
    assert plan.mounts[-1] == Mount(
        empty_file(machine.home_dir),
        str(machine.project / ".env"),
        readonly=True,
        why="hidden: .env",
    )
    assert plan.notes == ()


def test_hidden_directory_is_covered_by_an_empty_one(machine: Machine) -> None:
    write(machine.project / "secrets" / "key")
    for pattern in (
        "secrets",
        "secrets/",
        str(machine.project / "secrets"),
        "./secrets/.",
        "secrets/**",
    ):
        assert covers(machine, pattern) == {"secrets": "tmpfs"}


def test_slash_at_the_end_means_directories_only(machine: Machine) -> None:
    write(machine.project / "secrets")
    assert covers(machine, "secrets/") == {}


def test_hidden_patterns(machine: Machine) -> None:
    for name in (".env", "a/.env", "a/b/.env", "a/.env.local", "c/key.pem", ".git/.env"):
        write(machine.project / name)
    assert set(covers(machine, "**/.env")) == {".env", "a/.env", "a/b/.env"}
    assert set(covers(machine, "*/.env")) == {"a/.env", ".git/.env"}
    assert set(covers(machine, "a/.env*")) == {"a/.env", "a/.env.local"}
    assert set(covers(machine, "**/**/*.pem", ".env")) == {"c/key.pem", ".env"}
    assert set(covers(machine, "a/**/.env")) == {"a/.env", "a/b/.env"}
    assert set(covers(machine, "[ac]/key.pem")) == {"c/key.pem"}


def test_parents_of_a_hidden_path_are_held_in_place(machine: Machine) -> None:
    write(machine.project / "a" / "b" / ".env")
    assert pinned(machine, ".env", "a/b/.env") == ["a", "a/b"]
    assert pinned(machine, "a") == []


def test_nothing_is_hidden_twice(machine: Machine) -> None:
    write(machine.project / "s" / "t" / ".env")
    assert covers(machine, "s", "s/t/.env", "**/.env", "s/") == {"s": "tmpfs"}


def test_missing_path_is_said(machine: Machine) -> None:
    plan = machine.plan(settings(hide=(".env", "**/*.pem")))
    assert covers(machine, ".env") == {}
    assert len(plan.notes) == 2
    assert "later" in plan.notes[0]


def test_symlink_in_the_project_hides_what_it_leads_to(machine: Machine) -> None:
    write(machine.project / "config" / "env")
    (machine.project / ".env").symlink_to("config/env")
    assert covers(machine, ".env") == {"config/env": "bind"}


def test_symlink_out_of_the_project_hides_nothing_elsewhere(machine: Machine) -> None:
    secret = write(machine.home / "elsewhere" / "env")
    (machine.project / ".env").symlink_to(secret)
    plan = machine.plan(settings(hide=(".env",)))
    assert not [mount for mount in plan.mounts if mount.why.startswith("hidden")]
    assert str(secret) in plan.notes[0]


def test_symlink_into_another_mount_is_hidden_there(machine: Machine) -> None:
    secret = write(machine.home / "data" / "env")
    (machine.project / ".env").symlink_to(secret)
    data = Mount(str(machine.home / "data"), "/srv/data", readonly=True)
    assert covers(machine, ".env", mounts=(data,)) == {"/srv/data/env": "bind"}


def test_hidden_in_every_spelling_and_mount_that_shows_it(machine: Machine) -> None:
    write(machine.project / "in" / ".env")
    link = machine.root / "link"
    link.symlink_to(machine.project)
    again = Mount(str(machine.home / "src"), "/srv/src", readonly=True)
    plan = machine.plan(settings(hide=("in/.env",), mounts=(again,)), link)
    hidden = {mount.target for mount in plan.mounts if mount.why.startswith("hidden")}
    assert hidden == {
        f"{machine.project}/in/.env",
        f"{link}/in/.env",
        "/srv/src/proj/in/.env",
    }


@pytest.mark.parametrize(
    "pattern", [".", "", "/", "**", "../other", "a/../../x", "/etc/passwd", "up", "~/x/../y"]
)
def test_refuses_to_hide_the_project_or_what_is_not_in_it(machine: Machine, pattern: str) -> None:
    (machine.project / "up").symlink_to("..")
    with pytest.raises(MountRefusedError) as caught:
        covers(machine, pattern)
    assert caught.value.hint


def test_refuses_to_hide_a_place_with_a_mount_in_it(machine: Machine) -> None:
    (machine.project / "s" / "data").mkdir(parents=True)
    (machine.home / "data").mkdir()
    data = Mount(str(machine.home / "data"), str(machine.project / "s" / "data"), readonly=True)
    with pytest.raises(MountRefusedError, match="would hide"):
        covers(machine, "s", mounts=(data,))


def test_refuses_more_than_a_cage_can_hide(machine: Machine) -> None:
    for number in range(HIDDEN_LIMIT + 1):
        write(machine.project / f"{number}.key")
    with pytest.raises(MountRefusedError, match="256"):
        covers(machine, "*.key")


@pytest.mark.skipif(os.getuid() == 0, reason="root looks everywhere")
def test_directory_that_cannot_be_looked_into_is_said(machine: Machine) -> None:
    closed = machine.project / "closed"
    closed.mkdir(mode=0)
    try:
        notes = machine.plan(settings(hide=("**/.env",))).notes
    finally:
        closed.chmod(0o700)
    assert str(closed) in notes[0]


def test_symlink_loops_end(machine: Machine) -> None:
    (machine.project / "loop").symlink_to(".")
    (machine.project / "self").symlink_to("self")
    write(machine.project / "a" / ".env")
    assert set(covers(machine, "**/.env", "*/nothing", "self")) == {"a/.env"}


def nest(directory: Path, depth: int) -> None:
    """Directories `d/d/d…` below one, deeper than a path can name."""
    fd = os.open(directory, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)


def unnest(directory: Path) -> None:
    subprocess.run(["rm", "-rf", "--", directory], check=True)


@pytest.mark.parametrize("depth", [1500, 4000])
def test_looks_into_directories_however_deep(machine: Machine, depth: int) -> None:
    write(machine.project / "deep" / ".env")
    nest(machine.project / "deep", depth)
    try:
        assert covers(machine, "**/.env") == {"deep/.env": "bind"}
    finally:
        unnest(machine.project / "deep")


def test_refuses_to_look_into_any_number_of_directories(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hidden, "WALK_LIMIT", 50)
    for number in range(60):
        (machine.project / f"d{number}").mkdir()
    with pytest.raises(MountRefusedError, match="more than 50 directories") as caught:
        covers(machine, "**/.env")
    assert "hide = " in caught.value.hint
