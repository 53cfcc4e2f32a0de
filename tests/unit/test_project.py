"""Which directory is the project."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cagewrap.errors import DirectoryError, UsageError
from cagewrap.project import caller_cwd, find_project, read_small
from homes import Machine, write


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_project_is_the_enclosing_work_tree(machine: Machine) -> None:
    deep = machine.project / "a" / "b"
    deep.mkdir(parents=True)
    found = machine.find(deep)
    assert (found.path, found.cwd, found.spelled) == (str(machine.project), str(deep), ())
    assert machine.git("rev-parse", "--show-toplevel", cwd=deep).strip() == found.path


def test_project_from_inside_the_git_directory(machine: Machine) -> None:
    assert machine.find(machine.project / ".git" / "refs").path == str(machine.project)


def test_project_without_git_is_the_cwd(machine: Machine) -> None:
    plain = machine.home / "notes"
    plain.mkdir()
    assert machine.find(plain).path == str(plain)


def test_project_is_never_a_repository_at_home_or_above(machine: Machine) -> None:
    machine.git("init", "-q", str(machine.home))
    machine.git("init", "-q", str(machine.root))
    plain = machine.home / "notes"
    plain.mkdir()
    assert machine.find(plain).path == str(plain)
    assert machine.find(machine.home).path == str(machine.home)
    assert machine.find(machine.project).path == str(machine.project)


def test_project_ignores_a_git_directory_that_is_no_repository(machine: Machine) -> None:
    inner = machine.project / "inner"
    (inner / ".git" / "hooks").mkdir(parents=True)
    assert machine.find(inner).path == str(machine.project)
    write(inner / "deeper" / ".git", "not a git file")
    assert machine.find(inner / "deeper").path == str(machine.project)


def test_project_ignores_a_git_fifo(machine: Machine) -> None:
    inner = machine.project / "inner"
    inner.mkdir()
    os.mkfifo(inner / ".git")
    assert machine.find(inner).path == str(machine.project)
    assert read_small(str(inner / ".git")) == ""


@pytest.mark.skipif(os.getuid() != 0, reason="needs another user's directory")
def test_project_ends_at_another_users_directory(machine: Machine) -> None:
    inner = machine.project / "inner"
    inner.mkdir()
    os.chown(machine.project, 12345, 12345)
    assert machine.find(inner).path == str(inner)
    assert machine.find(machine.project).path == str(machine.project)


def test_project_override(machine: Machine) -> None:
    sub = machine.project / "sub"
    sub.mkdir()
    assert machine.find(sub, "..").path == str(machine.project)
    assert machine.find(sub, ".").path == str(sub)
    assert machine.find(sub, "~/src").path == str(machine.home / "src")
    assert machine.find(sub, str(machine.home / "src")).path == str(machine.home / "src")


@pytest.mark.parametrize("override", ["/nonexistent", "../other", "file"])
def test_refuses_an_override_that_cannot_hold_the_cwd(machine: Machine, override: str) -> None:
    (machine.home / "src" / "other").mkdir()
    write(machine.project / "file")
    with pytest.raises(UsageError) as caught:
        machine.find(machine.project, override)
    assert caught.value.hint


def test_project_spelled_by_a_symlinked_cwd(machine: Machine) -> None:
    (machine.project / "a").mkdir()
    link = machine.root / "link"
    link.symlink_to(machine.project)
    found = machine.find(link / "a")
    assert found.path == str(machine.project)
    assert found.spelled == (str(link),)
    assert found.cwd == str(machine.project / "a")
    assert found.pwd == str(link / "a")


def test_project_spelled_by_a_symlinked_parent_and_home(machine: Machine) -> None:
    (machine.root / "h").symlink_to(machine.home)
    machine.env["HOME"] = str(machine.root / "h")
    assert machine.find(machine.project).spelled == (str(machine.root / "h/src/proj"),)
    (machine.root / "s").symlink_to(machine.home / "src")
    assert set(machine.find(machine.root / "s" / "proj").spelled) == {
        str(machine.root / "s/proj"),
        str(machine.root / "h/src/proj"),
    }


def test_project_spelled_by_a_symlinked_override(machine: Machine) -> None:
    link = machine.root / "link"
    link.symlink_to(machine.project)
    assert machine.find(machine.project, str(link)).spelled == (str(link),)


def test_cwd_that_is_gone(machine: Machine) -> None:
    with pytest.raises(DirectoryError, match="cannot be used") as caught:
        machine.find(machine.project / "gone")
    assert caught.value.hint


def test_caller_cwd_believes_pwd_only_if_it_is_true(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = machine.root / "link"
    link.symlink_to(machine.project)
    monkeypatch.chdir(machine.project)
    here = str(machine.project)
    assert caller_cwd({"PWD": str(link)}) == str(link)
    for lie in (
        "",
        "relative",
        "/nonexistent",
        str(machine.home),
        f"{link}/../link",
        "/proc/self/cwd",
    ):
        assert caller_cwd({"PWD": lie}) == here
    assert caller_cwd({}) == here
    gone = machine.project / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(DirectoryError):
        caller_cwd({"PWD": str(gone)})
    os.chdir("/")


def test_removed_git_does_not_widen_a_known_project(machine: Machine) -> None:
    inner = machine.project / "inner"
    machine.git("init", "-q", str(inner))
    assert machine.find(inner).path == str(inner)
    (inner / ".git").rename(machine.root / "taken")
    assert machine.find(inner).path == str(machine.project)
    (inner / "a").mkdir()
    assert machine.find(inner / "a", known=(str(inner),)).path == str(inner)


def test_refuses_a_symlink_that_leads_out_of_a_known_project(machine: Machine) -> None:
    other = machine.home / "src" / "other"
    other.mkdir()
    trap = machine.project / "sub"
    trap.symlink_to(other)
    with pytest.raises(DirectoryError, match="symlink"):
        machine.find(trap, known=(str(machine.project),))
    assert machine.find(trap).path == str(other)
    inside = machine.project / "here"
    inside.symlink_to(machine.project / ".git")
    assert machine.find(inside, known=(str(machine.project),)).path == str(machine.project)


@pytest.mark.parametrize("name", ["a b", "a:b", "a,b", 'a"b', "-a", "a\\b", "ü\N{SNOWMAN}", "a\nb"])
def test_project_with_a_nasty_name(machine: Machine, name: str) -> None:
    nasty = machine.home / "src" / name
    machine.git("init", "-q", str(nasty))
    (nasty / "in").mkdir()
    assert find_project(str(nasty / "in"), str(machine.home)).path == str(nasty)
