"""Opt-in pieces of the owner's set-up in a cage: git identity, git configuration, gh, ssh-agent."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping

from cagewrap.errors import MountRefusedError
from cagewrap.model import Mount, Owner, Share
from cagewrap.paths import Paths

SSH_AGENT_TARGET = "/run/cagewrap/ssh-agent.sock"
"""Where the agent's socket is inside; it does not depend on where it is outside."""

GITCONFIG_TARGET = "/etc/gitconfig"
"""Where the owner's `~/.gitconfig` is inside: as the system's configuration, so that the cage's
own `~/.gitconfig` stays a plain file and `git config --global` works."""

NIX_STORE = "/nix/store"

GIT_FILES = ("config", "ignore", "attributes")
"""What is taken of `~/.config/git`; `credentials` beside them is never mounted."""


def share_mounts(
    share: Share, *, owner: Owner, paths: Paths, env: Mapping[str, str]
) -> tuple[Mount, ...]:
    """The mounts of what was asked for; MountRefusedError if it is not there."""
    config_home = os.path.dirname(paths.config_file)
    mounts: list[Mount] = []
    if share.gitconfig:
        mounts += _gitconfig_mounts(owner, config_home, env)
    if share.gh:
        mounts.append(_gh_mount(owner, config_home, env))
    if share.ssh_agent:
        source = find_ssh_agent(env)
        mounts.append(Mount(source, SSH_AGENT_TARGET, readonly=True, why="ssh-agent"))
    if share.nix:
        mounts.append(_nix_mount())
    return tuple(mounts)


def _nix_mount() -> Mount:
    """The store alone: beside it lies the socket of a daemon that acts outside of the cage."""
    if not os.path.isdir(NIX_STORE):
        raise MountRefusedError(
            f"The nix store is to be shared, but there is no {NIX_STORE} on this machine.",
            "take nix out of share",
        )
    return Mount(os.path.realpath(NIX_STORE), NIX_STORE, readonly=True, why="nix store")


def share_env(share: Share) -> tuple[tuple[str, str], ...]:
    """Variables that the agent needs for what is shared."""
    return (("SSH_AUTH_SOCK", SSH_AGENT_TARGET),) if share.ssh_agent else ()


def find_ssh_agent(env: Mapping[str, str]) -> str:
    """The real path of the owner's ssh-agent socket."""
    named = env.get("SSH_AUTH_SOCK", "")
    if not named:
        raise MountRefusedError(
            "The ssh-agent is to be shared, but SSH_AUTH_SOCK is not set where cagewrap was "
            "started.",
            "eval $(ssh-agent) && ssh-add, or take ssh-agent out of share",
        )
    path = os.path.realpath(named)
    try:
        found = os.stat(path)
    except OSError as error:
        raise MountRefusedError(
            f"The ssh-agent is to be shared, but SSH_AUTH_SOCK is {named!r}: {error.strerror}.",
            "eval $(ssh-agent) && ssh-add, or take ssh-agent out of share",
        ) from error
    if not stat.S_ISSOCK(found.st_mode):
        raise MountRefusedError(
            f"The ssh-agent is to be shared, but SSH_AUTH_SOCK {named!r} is not a socket.",
            "eval $(ssh-agent) && ssh-add, or take ssh-agent out of share",
        )
    return path


def _gitconfig_mounts(owner: Owner, config_home: str, env: Mapping[str, str]) -> Iterator[Mount]:
    named = env.get("GIT_CONFIG_GLOBAL", "")
    main = named if named.startswith("/") else os.path.join(owner.home, ".gitconfig")
    inside = os.path.join(owner.home, ".config", "git")
    wanted = ((main, GITCONFIG_TARGET), *(
        (os.path.join(config_home, "git", name), os.path.join(inside, name)) for name in GIT_FILES
    ))  # fmt: skip
    there = [(os.path.realpath(path), target) for path, target in wanted if os.path.isfile(path)]
    if not there:
        raise MountRefusedError(
            f"The git configuration is to be shared, but there is no {main!r} and nothing in "
            f"{os.path.join(config_home, 'git')!r}.",
            "git config --global user.name NAME, or take gitconfig out of share",
        )
    for source, target in there:
        yield Mount(source, target, readonly=True, why="git configuration")


def _gh_mount(owner: Owner, config_home: str, env: Mapping[str, str]) -> Mount:
    path = env.get("GH_CONFIG_DIR") or os.path.join(config_home, "gh")
    if not os.path.isdir(path):
        raise MountRefusedError(
            f"The login of gh is to be shared, but {path!r} is not a directory.",
            "gh auth login, or take gh out of share",
        )
    target = os.path.join(owner.home, ".config", "gh")
    return Mount(os.path.realpath(path), target, readonly=True, why="gh login")


def git_identity_args(cwd: str) -> tuple[str, ...]:
    """The command that prints who the owner is to git in `cwd`, with `includeIf` respected.

    For `parse_git_identity`. It reads the project's own configuration too, which an agent can
    write: nothing there is run or believed, but an included FIFO blocks, so give it a time limit.
    """
    return (
        "git", "--no-pager", "-C", cwd,
        "config", "--show-scope", "--null", "--get-regexp", r"^user\.(name|email)$",
    )  # fmt: skip


def parse_git_identity(output: str) -> tuple[str, str]:
    """Name and email from what `git_identity_args` printed; "" for what is not set.

    What the project's own configuration says is left out: it is in the cage anyway, and the
    agent may have written it.
    """
    found = {"user.name": "", "user.email": ""}
    fields = output.split("\0")
    for scope, item in zip(fields[::2], fields[1::2], strict=False):
        name, _, value = item.partition("\n")
        if name in found and scope not in ("local", "worktree"):
            found[name] = value
    return found["user.name"], found["user.email"]


def render_gitconfig(name: str, email: str) -> str:
    """The `~/.gitconfig` that a new private HOME starts with."""
    known = [(key, value) for key, value in (("name", name), ("email", email)) if value]
    user = "".join(f"\t{key} = {_quoted(value)}\n" for key, value in known)
    return (
        "# Written by cagewrap when this HOME was made. It is yours; cagewrap leaves it alone.\n"
        + (f"[user]\n{user}" if user else "")
        + "[safe]\n\t# What is in the cage was put there on purpose, whoever owns it.\n"
        "\tdirectory = *\n"
        "[gc]\n\t# Work trees that the cage does not see are not gone.\n"
        "\tworktreePruneExpire = never\n"
    )


def _quoted(value: str) -> str:
    """A value of git's configuration that can hold anything but NUL."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
