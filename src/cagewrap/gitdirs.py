"""Git directories that a work tree needs and that lie outside of it.

A `.git` file names one, but an agent can write that file. So a directory is shared only if it
names this work tree back, and has the shape of a repository: a linked work tree's administrative
directory holds the path of the `.git` file, a submodule's configuration holds `core.worktree`.
Reads small files, follows no symlink for its decisions, runs nothing.
"""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from cagewrap.project import is_git_dir, read_small

CONFIG_LIMIT = 1 << 20
"""Bytes read of a repository's configuration."""


class GitDirs(NamedTuple):
    """Real paths to share, with what each is, and what was left out and why (a sentence each).

    repository: the git directory with the refs and the configuration, wherever it lies, if it is
    to be used in the cage. place: `worktrees/NAME` in it, when the work tree is a linked one.
    """

    dirs: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    repository: str = ""
    place: str = ""


def find_git_dirs(work_tree: str) -> GitDirs:
    """The git directory outside of `work_tree` (a real path) that git needs there."""
    git = os.path.join(work_tree, ".git")
    try:
        found = os.lstat(git)
    except OSError:
        return GitDirs()
    if stat.S_ISLNK(found.st_mode):
        return _symlinked(git, work_tree)
    if stat.S_ISDIR(found.st_mode):
        return GitDirs(notes=_alternates(git, work_tree), repository=git)
    return _named_dir(git, read_small(git), work_tree)


def _named_dir(git: str, text: str, work_tree: str) -> GitDirs:
    """What the text of a `.git` file leads to."""
    if not text.startswith("gitdir:"):
        return GitDirs()
    named = os.path.join(work_tree, text.removeprefix("gitdir:").strip(" \t").rstrip("\r\n"))
    git_dir = os.path.realpath(named)
    if not os.path.isdir(git_dir):
        return _left_out(git, git_dir, "which is not a directory", "git worktree repair")
    if os.path.lexists(os.path.join(git_dir, "commondir")):
        return _linked(git, git_dir, work_tree)
    return _submodule(git, git_dir, work_tree)


def _linked(git: str, git_dir: str, work_tree: str) -> GitDirs:
    """A linked work tree: `COMMON/worktrees/NAME`, and its `gitdir` file names `git`."""
    common = os.path.dirname(os.path.dirname(git_dir))
    said = _line(os.path.join(git_dir, "commondir"))
    if (
        os.path.basename(os.path.dirname(git_dir)) != "worktrees"
        or not said
        or os.path.realpath(os.path.join(git_dir, said)) != common
        or not is_git_dir(common)
    ):
        return _left_out(git, git_dir, "which is not a work tree of a repository")
    back = _line(os.path.join(git_dir, "gitdir"))
    if not back or not _names(os.path.join(git_dir, back), work_tree):
        repair = f"git -C {work_tree!r} worktree repair"
        return _left_out(git, git_dir, "which does not name this work tree back", repair)
    if not _is_ours(common):
        return _left_out(git, common, "which belongs to another user")
    place = "worktrees/" + os.path.basename(git_dir)
    return _shared(common, "the repository of this linked git work tree", work_tree, place)


def _submodule(git: str, git_dir: str, work_tree: str) -> GitDirs:
    """A submodule: its git directory's `core.worktree` names the work tree."""
    if not is_git_dir(git_dir) or not _is_ours(git_dir):
        return _left_out(git, git_dir, "which is not a repository of yours")
    for name in ("config.worktree", "config"):
        said = core_worktree(read_small(os.path.join(git_dir, name), CONFIG_LIMIT))
        if said and os.path.realpath(os.path.join(git_dir, said)) == work_tree:
            return _shared(git_dir, "the repository of this git submodule", work_tree)
    set_it = f"git --git-dir={git_dir!r} config core.worktree {work_tree!r}"
    return _left_out(git, git_dir, "whose core.worktree does not name this work tree back", set_it)


def _shared(git_dir: str, why: str, work_tree: str, place: str = "") -> GitDirs:
    is_inside = git_dir.startswith(work_tree + "/")
    dirs = () if is_inside else ((git_dir, why),)
    return GitDirs(dirs, _alternates(git_dir, work_tree), git_dir, place)


def _names(back: str, work_tree: str) -> bool:
    """Whether the back-link is the `.git` of this work tree, however spelled."""
    return os.path.basename(back) == ".git" and os.path.realpath(os.path.dirname(back)) == work_tree


def _symlinked(git: str, work_tree: str) -> GitDirs:
    real = os.path.realpath(git)
    if real.startswith(work_tree + "/") and is_git_dir(real):
        return GitDirs(repository=real)
    if real.startswith(work_tree + "/"):
        return GitDirs()
    return _left_out(git, real, "by a symlink, which nothing there confirms")


def _alternates(git_dir: str, work_tree: str) -> tuple[str, ...]:
    """Object stores that are borrowed from elsewhere: never shared, since nothing names us back."""
    listed = read_small(os.path.join(git_dir, "objects", "info", "alternates")).splitlines()
    base = os.path.join(git_dir, "objects")
    named = (line for line in listed if line and not line.startswith("#"))
    outside = (os.path.realpath(os.path.join(base, line)) for line in named)
    return tuple(
        f"git in the cage will miss objects borrowed from {store!r}. To make the repository "
        "complete: git repack -a -d && rm .git/objects/info/alternates"
        for store in outside
        if not store.startswith((work_tree + "/", os.path.realpath(git_dir) + "/"))
    )


def _left_out(git: str, named: str, reason: str, repair: str = "") -> GitDirs:
    mend = f"To mend it: {repair}" if repair else "Mount it with --mount if it is right"
    return GitDirs(
        notes=(f"git will not work in the cage: {git!r} points to {named!r}, {reason}. {mend}.",)
    )


def _line(path: str) -> str:
    """The one line of a file of git's, without its end."""
    return read_small(path).rstrip("\r\n")


def _is_ours(path: str) -> bool:
    return os.stat(path).st_uid == os.getuid()


def core_worktree(config: str) -> str:
    """`core.worktree` in the text of a repository's configuration; the last one counts."""
    section, value = "", ""
    for raw in config.split("\n"):
        line = raw.strip(" \t\r")
        if line.startswith("["):
            section = line.partition("]")[0].removeprefix("[").strip().lower()
        elif section == "core":
            key, sign, rest = line.partition("=")
            if sign and key.strip().lower() == "worktree":
                value = unquote(rest.strip())
    return value


def unquote(value: str) -> str:
    """A value as git writes it: quotes around it where needed, backslash before `"` and itself."""
    escapes = {"n": "\n", "t": "\t", "b": "\b"}
    text, position, is_quoted = "", 0, False
    while position < len(value):
        letter = value[position]
        if letter == '"':
            is_quoted = not is_quoted
        elif letter == "\\" and position + 1 < len(value):
            position += 1
            text += escapes.get(value[position], value[position])
        elif letter in "#;" and not is_quoted:
            return text.rstrip(" \t")
        else:
            text += letter
        position += 1
    return text
