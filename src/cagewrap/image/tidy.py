"""Removing what builds leave: images that a newer one took the place of, and what a killed build
could not clear away itself."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from cagewrap.image.places import Places
from cagewrap.image.store import ImageEntry, Images
from cagewrap.paths import Paths


def scratch_base(env: Mapping[str, str]) -> str:
    """Where a build puts what it makes on the way: not /tmp, which may be memory."""
    return env.get("TMPDIR") or "/var/tmp"  # noqa: S108 - a directory of its own is made there


def scratch_prefix() -> str:
    """How this user's builds name their directories there."""
    return f"cagewrap-image-{os.getuid()}-"


def clear_killed(images: Images, base: str) -> None:
    """Remove what killed builds left. Nobody else may build: see `unless_building`."""
    with os.scandir(base) as entries:
        for entry in entries:
            is_ours = entry.name.startswith(scratch_prefix())
            if is_ours and entry.stat(follow_symlinks=False).st_uid == os.getuid():
                remove_tree(images, entry.path)
    images.remove_parts()


def remove_tree(images: Images, path: str) -> None:
    """Most of it belongs to subordinate users: only root of podman's user namespace can."""
    images.podman("unshare", "rm", "-rf", "--", path)


def collect(paths: Paths, env: Mapping[str, str], *, dry_run: bool) -> tuple[ImageEntry, ...]:
    """Remove superseded images that no cage uses, and what killed builds left; not while one is
    built, since what it has made so far has no name yet."""
    images = Images({**env, "XDG_RUNTIME_DIR": paths.podman_runtime_dir})
    with unless_building(Places(paths)) as is_free:
        if not is_free:
            return ()
        if dry_run:
            return images.superseded()
        clear_killed(images, scratch_base(env))
        return images.remove_superseded()


@contextmanager
def unless_building(places: Places) -> Iterator[bool]:
    """Whether no build runs; none starts meanwhile."""
    fd = os.open(places.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, 0)  # the pid of a build that was killed, and is another's now
            is_free = True
        except BlockingIOError:
            is_free = False
        yield is_free
    finally:
        os.close(fd)
