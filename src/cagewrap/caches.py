"""What package managers download, kept for all cages that ask for it.

Directories of the owner's, not podman's volumes: root of any cage is the owner outside, whichever
identity its agent has, and what is no longer wanted goes by `rm`. What one cage puts there another
takes: they are for cages that trust each other.
"""

from __future__ import annotations

import os

from cagewrap.model import Mount, Owner
from cagewrap.paths import Paths

_PLACES = {
    "apt": "/var/cache/apt/archives",
    "cargo": "~/.cargo/registry",
    "npm": "~/.npm",
    "pip": "~/.cache/pip",
    "uv": "~/.cache/uv",
}
"""Where each keeps its downloads unless told otherwise; `~` is HOME inside."""


def cache_mounts(names: tuple[str, ...], *, owner: Owner, paths: Paths) -> tuple[Mount, ...]:
    """The mounts of the caches that were asked for."""
    return tuple(
        Mount(
            paths.cache_dir(name),
            _PLACES[name].replace("~", owner.home, 1),
            readonly=False,
            why=f"cache of {name}",
        )
        for name in names
    )


def make_caches(names: tuple[str, ...], paths: Paths) -> None:
    """Make the directories that are mounted. Raises OSError."""
    for name in names:
        os.makedirs(paths.cache_dir(name), mode=0o755, exist_ok=True)
