"""Whether what a container mounts is still what was planned; small, for the keeper to import."""

from __future__ import annotations

import os

from cagewrap.errors import MountRefusedError


def identify_sources(binds: tuple[tuple[str, str], ...]) -> dict[str, tuple[int, int]]:
    """Device and inode of what each bind mount (source, target) must show, by target.

    Raises MountRefusedError unless every source is there and a real path.
    """
    check_source_paths(tuple(source for source, _ in binds))
    expected: dict[str, tuple[int, int]] = {}
    for source, target in binds:
        fd = os.open(source, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.readlink(f"/proc/self/fd/{fd}") != source:
                raise MountRefusedError(
                    f"The cage mounts {source!r}, which is being moved at this moment.",
                    "look at it, then send the message again",
                )
            found = os.fstat(fd)
        finally:
            os.close(fd)
        expected[target] = (found.st_dev, found.st_ino)
    return expected


def check_source_paths(sources: tuple[str, ...]) -> None:
    """Raise MountRefusedError unless every source is there and still a real path.

    For the moment before a container starts: an agent can replace a directory in a project by a
    symlink, and the engine would follow it.
    """
    for source in sources:
        try:
            real = os.path.realpath(source, strict=True)
        except OSError as error:
            raise MountRefusedError(
                f"The cage mounts {source!r}, and that cannot be used: {error.strerror}.",
                "put it back, or run: cagewrap recreate",
            ) from error
        if real != source:
            raise MountRefusedError(
                f"The cage mounts {source!r}, which has become a symlink to {real!r}. An agent may "
                "have made it.",
                "look at it, remove the symlink, then run: cagewrap recreate",
            )
