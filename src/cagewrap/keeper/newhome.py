"""What a new private HOME starts with."""

from __future__ import annotations

import contextlib
import os

from cagewrap import proc
from cagewrap.errors import CagewrapError
from cagewrap.paths import Paths
from cagewrap.sessions import Record
from cagewrap.shares import git_identity_args, parse_git_identity, render_gitconfig

_GIT_S = 2.0
"""How long git may take to say who the owner is."""


def seed_home(record: Record, paths: Paths) -> None:
    """Write `~/.gitconfig`, if there is none. Raises OSError.

    Only while the session has no container: PATH must be the keeper's, without what agents write.
    """
    path = os.path.join(paths.home_dir(record.name), ".gitconfig")
    if os.path.lexists(path):
        return
    identity = ("", "")
    if record.git_identity:
        with contextlib.suppress(CagewrapError):  # no git on the host: no identity to carry
            argv = git_identity_args(record.project)
            done = proc.capture(argv, timeout_s=_GIT_S, env=os.environ)
            identity = parse_git_identity(done.stdout.decode(errors="replace"))
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    with open(fd, "w", encoding="utf-8") as file:
        file.write(render_gitconfig(*identity))
