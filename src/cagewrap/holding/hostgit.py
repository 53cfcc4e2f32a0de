"""Which files of a project the owner's git is told to obey, beside its own directory.

Reads configuration of the host's alone, and runs nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from cagewrap import stamps
from cagewrap.gitsync.configtext import CONFIG_BYTES, ConfigRefusedError, parse
from cagewrap.project import is_git_dir, is_work_tree, read_small

_INCLUDES = 20
_PROGRAMS = 40
_RUNS = re.compile(
    r"filter\..*\.(?:clean|smudge|process)|diff\..*\.(?:textconv|command)|merge\..*\.driver"
    r"|diff\.external|core\.(?:fsmonitor|sshcommand|gitproxy|askpass|pager|editor)|pager\..*"
    r"|sequence\.editor|gpg\.(?:.*\.)?program|credential\.(?:.*\.)?helper",
    re.DOTALL,
)
"""Keys with a program that git runs unasked, from the top of the work tree."""
_BARE = ("config", "config.worktree", "commondir", "info/attributes")
"""What git obeys in a project that is a bare repository itself."""


class NamedByGit(NamedTuple):
    """stamp: of the files it was read from. hooks: a directory in the project, or "".
    files: included files in the project, and programs that the configuration names. Paths are
    relative to the project."""

    stamp: tuple[int, ...]
    hooks: str = ""
    files: tuple[str, ...] = ()


def named_by_git(project: str, home: str, before: NamedByGit | None) -> NamedByGit:
    """What git obeys now; `before` itself if its files have not changed."""
    own = _repository_config(project)
    configs = [
        "/etc/gitconfig",
        os.path.join(home, ".gitconfig"),
        os.path.join(home, ".config", "git", "config"),
        own,
        own + ".worktree",
    ]
    stamp = tuple(number for path in configs for number in stamps.stamp(path))
    if before is not None and before.stamp == stamp:
        return before
    is_bare = is_git_dir(project)
    hooks = "hooks" if is_bare else ""
    # Without a repository of its own, git takes a directory with this file for a bare one.
    files: list[str] = [] if is_work_tree(project) else ["HEAD"]
    files += _BARE if is_bare else ()
    todo = configs
    programs: list[str] = []
    while todo and len(files) < _INCLUDES + len(_BARE):
        path = todo.pop(0)
        for key, values in _read(path).items():
            if key == "core.hookspath":
                hooks = _in_project(project, os.path.join(project, _expand(values[-1], home)))
            elif key == "include.path" or (key.startswith("includeif.") and key.endswith(".path")):
                for value in values:
                    full = os.path.join(os.path.dirname(path), _expand(value, home))
                    inside = _in_project(project, full)
                    if inside:
                        files.append(inside)
                    todo.append(full)
            elif _RUNS.fullmatch(key):
                programs += [one for value in values for one in _programs(project, value, home)]
    return NamedByGit(stamp, hooks, tuple(dict.fromkeys([*files, *programs[:_PROGRAMS]])))


def _programs(project: str, value: str, home: str) -> Iterator[str]:
    """Files of the project among the words of a command."""
    import shlex

    try:
        words = shlex.split(value.removeprefix("!"))
    except ValueError:
        words = value.split()
    for word in words:
        inside = _in_project(project, os.path.join(project, _expand(word, home)))
        if inside and (os.path.isfile(os.path.join(project, inside)) or word.startswith("./")):
            yield inside


def parents(paths: tuple[str, ...]) -> Iterator[str]:
    """The directories on the way to paths."""
    for path in paths:
        above = os.path.dirname(path)
        while above:
            yield above
            above = os.path.dirname(above)


def _repository_config(project: str) -> str:
    if is_git_dir(project):
        return os.path.join(project, "config")
    git = os.path.join(project, ".git")
    text = read_small(git)
    if text.startswith("gitdir:"):
        git = os.path.join(project, text.removeprefix("gitdir:").strip())
        common = read_small(os.path.join(git, "commondir")).strip()
        git = os.path.join(git, common) if common else git
    return os.path.join(git, "config")


def _read(path: str) -> dict[str, tuple[str, ...]]:
    try:
        return parse(read_small(path, CONFIG_BYTES))
    except ConfigRefusedError:
        return {}


def _in_project(project: str, path: str) -> str:
    """The path from the project's root, "" if it does not lie in it."""
    full = os.path.normpath(path)
    return full[len(project) + 1 :] if full.startswith(project + "/") else ""


def _expand(value: str, home: str) -> str:
    return home + value[1:] if value.startswith("~/") else value
