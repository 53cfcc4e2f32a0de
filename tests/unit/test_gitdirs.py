"""Git directories outside of the project, with real git, and attacks on the way to them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from cagewrap.gitdirs import core_worktree, find_git_dirs
from cagewrap.model import Mount
from homes import Machine, settings, write


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    made.git("commit", "-q", "--allow-empty", "-m", "first", cwd=made.project)
    return made


def add_worktree(machine: Machine, path: Path) -> Path:
    machine.git("worktree", "add", "-q", str(path), cwd=machine.project)
    return path


def add_submodule(machine: Machine, name: str = "sub") -> Path:
    other = machine.home / "src" / "other"
    if not other.exists():
        machine.git("init", "-q", str(other))
        machine.git("commit", "-q", "--allow-empty", "-m", "first", cwd=other)
    machine.git("submodule", "add", "-q", str(other), name, cwd=machine.project)
    return machine.project / name


def shared(path: Path) -> list[str]:
    return [one for one, _ in find_git_dirs(str(path)).dirs]


def test_plain_repository_needs_nothing(machine: Machine) -> None:
    found = find_git_dirs(str(machine.project))
    assert (found.dirs, found.notes) == ((), ())
    assert (found.repository, found.place) == (str(machine.project / ".git"), "")
    assert find_git_dirs(str(machine.home)).repository == ""
    assert shared(machine.project) == []


def test_linked_worktree_shares_the_common_directory(machine: Machine) -> None:
    worktree = add_worktree(machine, machine.home / "src" / "wt")
    common = str(machine.project / ".git")
    assert shared(worktree) == [common]
    plan = machine.plan(cwd=worktree)
    found = next(mount for mount in plan.mounts if mount.target == common)
    assert (found.source, found.readonly) == (common, False)
    assert plan.notes == ()


def test_worktree_inside_the_main_project(machine: Machine) -> None:
    worktree = add_worktree(machine, machine.project / ".claude" / "worktrees" / "x")
    assert shared(worktree) == [str(machine.project / ".git")]
    assert shared(machine.project) == []


def test_worktree_with_relative_links(machine: Machine) -> None:
    worktree = add_worktree(machine, machine.home / "src" / "wt")
    write(worktree / ".git", "gitdir: ../proj/.git/worktrees/wt\n")
    write(machine.project / ".git/worktrees/wt/gitdir", "../../../../wt/.git\n")
    assert shared(worktree) == [str(machine.project / ".git")]


def test_worktree_named_by_a_symlinked_path(machine: Machine) -> None:
    (machine.root / "s").symlink_to(machine.home / "src")
    worktree = add_worktree(machine, machine.root / "s" / "wt")
    write(machine.project / ".git/worktrees/wt/gitdir", f"{worktree}/.git\n")
    assert shared(Path(os.path.realpath(worktree))) == [str(machine.project / ".git")]


def test_worktree_of_a_bare_repository(machine: Machine) -> None:
    bare = machine.home / "src" / "all" / ".bare"
    machine.git("clone", "-q", "--bare", str(machine.project), str(bare))
    worktree = bare.parent / "main"
    machine.git("worktree", "add", "-q", "-b", "main2", str(worktree), cwd=bare)
    assert shared(worktree) == [str(bare)]


def test_worktree_of_a_submodule(machine: Machine) -> None:
    sub = add_submodule(machine)
    worktree = machine.home / "src" / "subwt"
    machine.git("worktree", "add", "-q", "-b", "b2", str(worktree), cwd=sub)
    assert shared(worktree) == [str(machine.project / ".git/modules/sub")]


@pytest.mark.parametrize("name", ["sub", "a b", 'q"u', "semi;colon", "ha#sh", "deep/er"])
def test_submodule_shares_its_own_git_directory(machine: Machine, name: str) -> None:
    sub = add_submodule(machine, name)
    assert machine.find(sub).path == str(sub)
    assert shared(sub) == [str(machine.project / ".git/modules" / name)]
    assert str(machine.project / ".git/modules" / name) in machine.targets(cwd=sub)
    assert machine.plan(cwd=sub).notes == ()


def test_submodule_in_a_linked_worktree(machine: Machine) -> None:
    add_submodule(machine)
    machine.git("commit", "-q", "-am", "with a submodule", cwd=machine.project)
    worktree = add_worktree(machine, machine.home / "src" / "wt")
    machine.git("submodule", "update", "-q", "--init", cwd=worktree)
    assert shared(worktree / "sub") == [str(machine.project / ".git/worktrees/wt/modules/sub")]


def test_separate_git_directory_is_left_out_until_it_names_the_work_tree(machine: Machine) -> None:
    worktree = machine.home / "src" / "sep"
    git_dir = machine.home / "src" / "sep.git"
    machine.git("init", "-q", "--separate-git-dir", str(git_dir), str(worktree))
    found = find_git_dirs(str(worktree))
    assert found.dirs == ()
    assert "core.worktree" in found.notes[0]
    machine.git("config", "core.worktree", str(worktree), cwd=worktree)
    assert shared(worktree) == [str(git_dir)]


def left_out(path: Path) -> str:
    found = find_git_dirs(str(path))
    assert found.dirs == ()
    (note,) = found.notes
    return note


def test_refuses_a_git_file_that_names_another_worktree(machine: Machine) -> None:
    """An agent in `evil` would like the repository that belongs to `wt`."""
    add_worktree(machine, machine.home / "src" / "wt")
    evil = machine.home / "src" / "evil"
    write(evil / ".git", f"gitdir: {machine.project}/.git/worktrees/wt\n")
    assert "does not name this work tree back" in left_out(evil)


@pytest.mark.parametrize("where", [".ssh", "src/proj", "src/proj/.git", "src/nothing", "."])
def test_refuses_a_git_file_that_names_anything_else(machine: Machine, where: str) -> None:
    write(machine.home / ".ssh" / "id")
    evil = machine.home / "src" / "evil"
    write(evil / ".git", f"gitdir: {machine.home / where}\n")
    assert "git will not work in the cage" in left_out(evil)
    assert not [one for one in machine.targets(cwd=evil) if ".ssh" in one or "/proj" in one]


def test_refuses_a_common_directory_that_is_no_repository(machine: Machine) -> None:
    """A project called `worktrees` must not open the directory it lies in."""
    trap = machine.home / "src" / "worktrees"
    evil = machine.home / "src" / "evil"
    write(trap / "x" / "commondir", "../..\n")
    write(trap / "x" / "gitdir", f"{evil}/.git\n")
    write(evil / ".git", f"gitdir: {trap}/x\n")
    assert "not a work tree of a repository" in left_out(evil)


def test_refuses_a_commondir_that_leads_elsewhere(machine: Machine) -> None:
    worktree = add_worktree(machine, machine.home / "src" / "wt")
    write(machine.project / ".git/worktrees/wt/commondir", f"{machine.home}/.ssh\n")
    assert "not a work tree of a repository" in left_out(worktree)


def test_refuses_a_back_link_through_a_symlink_file(machine: Machine) -> None:
    worktree = add_worktree(machine, machine.home / "src" / "wt")
    back = machine.project / ".git/worktrees/wt/gitdir"
    back.rename(machine.root / "elsewhere")
    back.symlink_to(machine.root / "elsewhere")
    assert "does not name" in left_out(worktree)


def test_moved_worktree_is_left_out_with_the_repair(machine: Machine) -> None:
    worktree = add_worktree(machine, machine.home / "src" / "wt")
    moved = machine.home / "src" / "moved"
    worktree.rename(moved)
    assert "worktree repair" in left_out(moved)
    machine.git("worktree", "repair", cwd=moved)
    assert shared(moved) == [str(machine.project / ".git")]


def test_worktree_of_a_removed_repository(machine: Machine) -> None:
    worktree = add_worktree(machine, machine.home / "src" / "wt")
    shutil.rmtree(machine.project)
    assert "not a directory" in left_out(worktree)


def test_refuses_a_symlinked_git_directory(machine: Machine) -> None:
    evil = machine.home / "src" / "evil"
    evil.mkdir()
    (evil / ".git").symlink_to(machine.project / ".git")
    assert "symlink" in left_out(evil)


def test_refuses_a_git_directory_in_a_protected_place(machine: Machine) -> None:
    hidden = machine.home / ".local" / "repo"
    machine.git("clone", "-q", "--bare", str(machine.project), str(hidden))
    worktree = machine.home / "src" / "wt"
    machine.git("worktree", "add", "-q", "-b", "b2", str(worktree), cwd=hidden)
    plan = machine.plan(cwd=worktree)
    assert not [mount for mount in plan.mounts if mount.source == str(hidden)]
    assert "git will not work" in plan.notes[0]


def test_git_directory_inside_the_project_is_not_mounted_again(machine: Machine) -> None:
    worktree = machine.home / "src" / "w"
    git_dir = worktree / "store"
    machine.git("init", "-q", "--separate-git-dir", str(git_dir), str(worktree))
    machine.git("config", "core.worktree", str(worktree), cwd=worktree)
    assert shared(worktree) == []


def test_a_mount_asked_for_wins_over_the_automatic_one(machine: Machine) -> None:
    worktree = add_worktree(machine, machine.home / "src" / "wt")
    common = str(machine.project / ".git")
    asked = Mount(common, common, readonly=True, why="asked for")
    plan = machine.plan(settings(mounts=(asked,)), worktree)
    assert [mount for mount in plan.mounts if mount.target == common] == [asked]


def test_borrowed_objects_are_said(machine: Machine) -> None:
    clone = machine.home / "src" / "clone"
    machine.git("clone", "-q", "--shared", str(machine.project), str(clone))
    (note,) = find_git_dirs(str(clone)).notes
    assert str(machine.project / ".git/objects") in note


@pytest.mark.parametrize(
    ("config", "value"),
    [
        ("[core]\n\tworktree = ../x\n", "../x"),
        ('[core]\n\tworktree = "../a \\"b\\" ;#"\n', '../a "b" ;#'),
        ("[Core]\n WorkTree=/a ; comment\n", "/a"),
        ("[core]\nworktree = /a\n[core]\nworktree = /b\n", "/b"),
        ('[core "x"]\nworktree = /a\n', ""),
        ("[other]\nworktree = /a\n", ""),
        ('[core]\nworktree = "a\\\\b\\tc"\n', "a\\b\tc"),
        ("[core]\nworktree\n", ""),
        ("", ""),
    ],
)
def test_core_worktree(config: str, value: str) -> None:
    assert core_worktree(config) == value
