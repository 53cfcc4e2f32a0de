"""Starting a program of cagewrap's own as a keeper's child: of this build, or of another."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from cagewrap import ahead
from cagewrap.builds import Build
from cagewrap.keeper import spawn

Whose = Callable[[], Build]
"""Says of which build the programs are to be: files of the keeper's own may be gone by now."""


def spawn_own(
    build: Build,
    words: Sequence[str],
    env: Mapping[str, str],
    fds: Sequence[tuple[int, int]] = (),
    *,
    with_site: bool = False,
) -> int:
    """Start the hidden verb `words`; returns its pid. fds: see `spawn.spawn`. Raises OSError."""
    argv = ahead.self_command(
        *words, with_site=with_site, build=build if build.executable else None
    )
    program = spawn.Program(os.path.basename(argv[0]), os.path.dirname(argv[0]))
    return spawn.spawn(program, argv, env, fds)
