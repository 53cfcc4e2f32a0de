"""Opt-in pieces of the owner's set-up."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from cagewrap.errors import MountRefusedError
from cagewrap.model import Mount, Share
from cagewrap.shares import (
    SSH_AGENT_TARGET,
    git_identity_args,
    parse_git_identity,
    render_gitconfig,
    share_env,
)
from homes import Machine, settings, write


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def shared(machine: Machine, share: Share) -> dict[str, Mount]:
    plain = set(machine.targets())
    plan = machine.plan(settings(share=share))
    return {mount.target: mount for mount in plan.mounts if mount.target not in plain}


def test_nothing_is_shared_by_default(machine: Machine) -> None:
    write(machine.home / ".gitconfig")
    write(machine.home / ".config/gh/hosts.yml")
    machine.env["SSH_AUTH_SOCK"] = "/nonexistent"
    assert shared(machine, Share()) == {}
    assert share_env(Share()) == ()


def test_ssh_agent(machine: Machine, tmp_path: Path) -> None:
    path = tmp_path / "agent"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        (tmp_path / "link").symlink_to(path)
        machine.env["SSH_AUTH_SOCK"] = str(tmp_path / "link")
        found = shared(machine, Share(ssh_agent=True))
    assert list(found) == [SSH_AGENT_TARGET]
    assert found[SSH_AGENT_TARGET].source == os.path.realpath(path)
    assert share_env(Share(ssh_agent=True)) == (("SSH_AUTH_SOCK", SSH_AGENT_TARGET),)


def test_refuses_an_ssh_agent_that_is_not_there(machine: Machine) -> None:
    for value in ("", "/nonexistent", str(write(machine.root / "file"))):
        machine.env["SSH_AUTH_SOCK"] = value
        with pytest.raises(MountRefusedError, match="ssh-agent") as caught:
            machine.plan(settings(share=Share(ssh_agent=True)))
        assert "ssh-add" in caught.value.hint


def test_gh(machine: Machine) -> None:
    with pytest.raises(MountRefusedError, match="gh") as caught:
        machine.plan(settings(share=Share(gh=True)))
    assert "gh auth login" in caught.value.hint
    write(machine.home / ".config/gh/hosts.yml")
    (found,) = shared(machine, Share(gh=True)).values()
    assert (found.target, found.readonly) == (str(machine.home / ".config/gh"), True)
    machine.env["GH_CONFIG_DIR"] = str(write(machine.root / "gh" / "hosts.yml").parent)
    (found,) = shared(machine, Share(gh=True)).values()
    assert (found.source, found.target) == (
        str(machine.root / "gh"),
        str(machine.home / ".config/gh"),
    )


def test_gitconfig_is_shared_without_the_stored_credentials(machine: Machine) -> None:
    with pytest.raises(MountRefusedError, match="git configuration"):
        machine.plan(settings(share=Share(gitconfig=True)))
    dotfile = write(machine.home / "dotfiles" / "gitconfig")
    (machine.home / ".gitconfig").symlink_to(dotfile)
    write(machine.home / ".config/git/ignore")
    write(machine.home / ".config/git/credentials")
    found = shared(machine, Share(gitconfig=True))
    assert {mount.target: mount.source for mount in found.values()} == {
        "/etc/gitconfig": str(dotfile),
        str(machine.home / ".config/git/ignore"): str(machine.home / ".config/git/ignore"),
    }
    assert all(mount.readonly for mount in found.values())


def identity(machine: Machine, cwd: Path) -> tuple[str, str]:
    done = subprocess.run(
        git_identity_args(str(cwd)),
        env={"HOME": str(machine.home), "PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return parse_git_identity(done.stdout)


def test_git_identity_respects_include_if(machine: Machine) -> None:
    write(
        machine.home / ".gitconfig",
        "[user]\n\tname = Me\n\temail = private@example.com\n\tsigningkey = S\n"
        "[credential]\n\thelper = store\n"
        f'[includeIf "gitdir:{machine.home}/src/"]\n\tpath = ~/work\n',
    )
    write(machine.home / "work", "[user]\n\temail = me@work.example\n")
    assert identity(machine, machine.home) == ("Me", "private@example.com")
    assert identity(machine, machine.project) == ("Me", "me@work.example")


def test_git_identity_does_not_believe_the_project(machine: Machine) -> None:
    write(machine.home / ".gitconfig", "[user]\n\tname = Me\n")
    machine.git("config", "user.name", "Mallory", cwd=machine.project)
    machine.git("config", "user.email", "m@example.com", cwd=machine.project)
    assert identity(machine, machine.project) == ("Me", "")


def test_git_identity_of_nobody(machine: Machine) -> None:
    assert identity(machine, machine.project) == ("", "")
    assert parse_git_identity("garbage") == ("", "")


@pytest.mark.parametrize("name", ["Me", 'Jo "X" \\ ; # Ünal', " spaced ", "two\nlines", "[core]"])
def test_rendered_gitconfig_is_read_back_by_git(machine: Machine, name: str) -> None:
    write(machine.home / ".gitconfig", render_gitconfig(name, "me@example.com"))
    assert identity(machine, machine.home) == (name, "me@example.com")
    assert machine.git("config", "--get-all", "safe.directory").strip() == "*"
    assert machine.git("config", "gc.worktreePruneExpire").strip() == "never"


def test_rendered_gitconfig_without_an_identity(machine: Machine) -> None:
    assert "[user]" not in render_gitconfig("", "")
    write(machine.home / ".gitconfig", render_gitconfig("Me", ""))
    assert identity(machine, machine.home) == ("Me", "")
