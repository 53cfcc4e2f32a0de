"""A `.git` that came to be while an agent worked: the owner's, or the agent's own.

Until all in the cage was killed, the agent could write to it. So what can name a program is taken
out of it, as far as it was written in that time.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence

from cagewrap import beneath
from cagewrap.gitlayout import Layout
from cagewrap.holding import repositories, tree
from cagewrap.holding.shelf import hold

_SLACK_NS = 1_000_000_000


def is_led_astray(project: str, layout: Layout) -> bool:
    """Whether the `.git` file leads to where an agent can write, or nothing confirms it."""
    return bool(layout.file) and not (
        layout.git_dir and not layout.git_dir.startswith(project + "/")
    )


def put_aside(project: str) -> str:
    """Give `.git` another name; a sentence on it. Raises OSError."""
    aside = f".git.agent-{os.urandom(4).hex()}"
    root = tree.open_project(project)
    try:
        os.rename(".git", aside, src_dir_fd=root, dst_dir_fd=root)
    finally:
        os.close(root)
    return f"a .git file came to be while an agent worked; it is {aside!r} now"


def make_harmless(project: str, since_ns: int, files: str) -> list[str]:
    """Take out what can name a program; sentences on it. No agent lives any more.

    files: where what is taken out is kept, for `cagewrap review`.
    """
    done: list[str] = []
    with contextlib.suppress(OSError):
        root = tree.open_project(project)

        def keep(path: str, *, is_replaced: bool = False) -> None:
            hold(root, path, files, is_replaced=is_replaced)

        try:
            done = repositories.tame_all(root, ".git", since_ns - _SLACK_NS, keep)
        finally:
            os.close(root)
    return [
        f"a .git came to be while an agent worked: {what} is held back; see cagewrap review"
        for what in done
    ]


def make_submodules_harmless(
    project: str, paths: Sequence[str], since_ns: int, files: str
) -> list[str]:
    """The same with the git directories of submodules; sentences on it. No agent lives any more.

    paths: of the submodules from the project's root. since_ns: what is older is the owner's.
    """
    root = tree.open_project(project)
    done: list[str] = []

    def keep(path: str, *, is_replaced: bool = False) -> None:
        hold(root, path, files, is_replaced=is_replaced)

    try:
        for path in paths:
            with contextlib.suppress(OSError):
                git_dir = _git_dir(root, project, path, since_ns)
                if git_dir:
                    done += repositories.tame_all(root, git_dir, since_ns, keep)
                else:
                    keep(f"{path}/.git")
                    done.append(f"{path}/.git")
    finally:
        os.close(root)
    return [f"{what} is held back; see cagewrap review" for what in done]


def _git_dir(root: int, project: str, path: str, since_ns: int) -> str:
    """The git directory of a submodule, from the project's root; "" when an agent's `.git` leads
    to one that lies elsewhere."""
    git = f"{path}/.git"
    stamp = tree.stamp_at(root, git)
    if stamp is None or stat.S_ISDIR(stamp[0]):
        return git
    content = tree.read(root, git) if stat.S_ISREG(stamp[0]) else None
    named = os.fsdecode(content or b"").removeprefix("gitdir: ").rstrip("\r\n")
    real = beneath.real_path(os.path.join(project, path, named))
    if content is not None and real.startswith(f"{project}/.git/"):
        return git  # of the owner's, where no cage can write
    if content is not None and real.startswith(project + "/"):
        return os.path.relpath(real, project)
    return "" if stamp[4] >= since_ns else git
