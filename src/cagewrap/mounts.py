"""What of the host is mounted where in a cage, and what is refused.

Planners: they look at the file system, change nothing and start nothing. Every source in a plan
is a real path; `check_sources` says whether it still is one when the container starts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from cagewrap.asked import covers_system, judge_mount, refuse_spelling
from cagewrap.auth import LOGIN_TARGET, SHARED_TARGET
from cagewrap.caches import cache_mounts
from cagewrap.errors import MountRefusedError
from cagewrap.gitdirs import find_git_dirs
from cagewrap.hidden import find_hidden
from cagewrap.model import LoginMode, LoginSettings, Mount, Owner, Settings
from cagewrap.mountargs import mount_args
from cagewrap.paths import Paths
from cagewrap.project import Project, caller_cwd, find_project
from cagewrap.protected import (
    Place,
    lies_in,
    protected_paths,
    protected_places,
    refuse_protected,
)
from cagewrap.shares import share_mounts
from cagewrap.sources import check_source_paths

__all__ = [
    "MountPlan",
    "Project",
    "build_mount_plan",
    "caller_cwd",
    "check_project",
    "check_sources",
    "empty_file",
    "find_project",
    "mount_args",
    "plan_mounts",
    "protected_paths",
]


class MountPlan(NamedTuple):
    """The mounts of a cage, outer ones first, and a sentence on each thing that was left out."""

    mounts: tuple[Mount, ...]
    notes: tuple[str, ...] = ()


def plan_mounts(
    project: Project,
    settings: Settings,
    *,
    owner: Owner,
    paths: Paths,
    home_dir: str,
    env: Mapping[str, str],
) -> tuple[Mount, ...]:
    """The mounts of a cage, outer ones first (`build_mount_plan` without the notes)."""
    return build_mount_plan(
        project, settings, owner=owner, paths=paths, home_dir=home_dir, env=env
    ).mounts


def build_mount_plan(
    project: Project,
    settings: Settings,
    *,
    owner: Owner,
    paths: Paths,
    home_dir: str,
    env: Mapping[str, str],
) -> MountPlan:
    """Everything that is mounted in the cage of `project`; MountRefusedError if something cannot.

    home_dir: the cage's private HOME on the host; need not exist yet, nor `empty_file(home_dir)`.
    env: the caller's environment; says where the owner's directories and sockets are.
    """
    places = protected_places(owner, paths, env)
    refuse_project(project, places)
    asked = tuple(judge_mount(mount, project, owner, places) for mount in settings.mounts)
    git_mounts, git_notes = _git_mounts(project, places, asked)
    seen = (
        *_home_mounts(owner, home_dir),
        *_login_mounts(settings.login, home_dir, paths),
        *_project_mounts(project),
        *asked,
        *git_mounts,
        *share_mounts(settings.share, owner=owner, paths=paths, env=env),
        *cache_mounts(settings.caches, owner=owner, paths=paths),
    )
    _refuse_conflicts(seen)
    hidden = find_hidden(project, settings.hide, seen, empty_file=empty_file(home_dir))
    mounts = sorted((*seen, *hidden.mounts), key=lambda mount: mount.target.split("/"))
    for mount in mounts:
        refuse_spelling(mount.source)
        refuse_spelling(mount.target)
    return MountPlan(tuple(mounts), (*git_notes, *hidden.notes))


def empty_file(home_dir: str) -> str:
    """The empty file that covers hidden files: beside the private HOME, mode 0444."""
    return os.path.join(os.path.dirname(os.path.realpath(home_dir)), "empty")


def check_project(project: Project, *, owner: Owner, paths: Paths, env: Mapping[str, str]) -> None:
    """Raise MountRefusedError if no cage may hold this directory."""
    refuse_project(project, protected_places(owner, paths, env))


def refuse_project(project: Project, places: tuple[Place, ...]) -> None:
    """`check_project` with the protected places at hand."""
    for path in (project.path, *project.spelled):
        refuse_spelling(path)
        refuse_protected(f"The project {path!r}", path, places, readonly=False)
    if not os.path.isdir(project.path):
        raise MountRefusedError(
            f"The project {project.path!r} is not a directory.",
            "cd into one, or pass --project DIR",
        )
    if not os.access(project.path, os.R_OK | os.X_OK):
        raise MountRefusedError(
            f"The project {project.path!r} cannot be read by you.", f"ls -ld {project.path!r}"
        )


def check_sources(mounts: tuple[Mount, ...]) -> None:
    """Raise MountRefusedError unless every source is there and still a real path."""
    check_source_paths(tuple(mount.source for mount in mounts if mount.kind == "bind"))


def _home_mounts(owner: Owner, home_dir: str) -> tuple[Mount, ...]:
    """The private HOME, at each spelling of the owner's."""
    source = os.path.realpath(home_dir)
    homes = dict.fromkeys((os.path.normpath(owner.home), os.path.realpath(owner.home)))
    for home in homes:
        if home != "/root" and covers_system(home):
            raise MountRefusedError(
                f"Your home directory is {home!r}, which a cage has of its own.",
                "export HOME=DIR, a directory of yours",
            )
    return tuple(Mount(source, home, readonly=False, why="private HOME") for home in homes)


def _login_mounts(login: LoginSettings, home_dir: str, paths: Paths) -> Iterator[Mount]:
    """Where a login is handed over. Of every cage, so that a change of mode needs no new one."""
    own = os.path.join(os.path.dirname(os.path.realpath(home_dir)), "login")
    yield Mount(own, LOGIN_TARGET, readonly=True, why="login")
    if login.mode is LoginMode.DIRECTORY:
        shared = os.path.realpath(login.directory or paths.shared_login_dir)
        yield Mount(shared, SHARED_TARGET, readonly=False, why="shared login")


def _project_mounts(project: Project) -> tuple[Mount, ...]:
    return (
        Mount(project.path, project.path, readonly=False, why="project"),
        *(
            Mount(project.path, path, readonly=False, why="project, as you spell it")
            for path in project.spelled
        ),
    )


def _git_mounts(
    project: Project, places: tuple[Place, ...], asked: tuple[Mount, ...]
) -> tuple[tuple[Mount, ...], tuple[str, ...]]:
    """Git directories outside of the project, unless asked for by hand or protected."""
    found = find_git_dirs(project.path)
    taken = {mount.target for mount in asked}
    mounts: list[Mount] = []
    notes = list(found.notes)
    for path, why in found.dirs:
        if path in taken:
            continue
        try:
            refuse_protected(f"The git directory {path!r}", path, places, readonly=False)
        except MountRefusedError as error:
            notes.append(f"git will not work in the cage: {error.message}")
            continue
        mounts.append(Mount(path, path, readonly=False, why=why))
    return tuple(mounts), tuple(notes)


def _refuse_conflicts(mounts: tuple[Mount, ...]) -> None:
    """Two mounts at one target, or one that needs a mountpoint which cannot be made."""
    seen: dict[str, Mount] = {}
    for mount in mounts:
        other = seen.setdefault(mount.target, mount)
        if other is not mount:
            raise MountRefusedError(
                f"Two mounts have the target {mount.target!r}: "
                f"{_named(other)} and {_named(mount)}.",
                "take one of them out, or give it another target",
            )
    for mount in mounts:
        around = [one for one in mounts if one is not mount and lies_in(mount.target, one.target)]
        if not around:
            continue
        outer = max(around, key=lambda one: len(one.target))
        mountpoint = outer.source + mount.target[len(outer.target) :]
        is_file = outer.kind == "bind" and os.path.isfile(outer.source)
        if is_file or (outer.readonly and not os.path.exists(mountpoint)):
            raise MountRefusedError(
                f"{_named(mount)} cannot be mounted at {mount.target!r}: {_named(outer)} is at "
                f"{outer.target!r}, read-only and without a place for it.",
                f"mkdir -p {mountpoint!r}, or give it another target",
            )


def _named(mount: Mount) -> str:
    return f"{mount.source or 'an empty directory'!r} ({mount.why})"
