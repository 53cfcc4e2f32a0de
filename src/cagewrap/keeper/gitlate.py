"""A `.git` that came to be while an agent worked: the owner's, or the agent's own.

Until all in the cage was killed, the agent could write to it. So what can name a program is taken
out of it, as far as it was written in that time.
"""

from __future__ import annotations

import contextlib
import os

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
