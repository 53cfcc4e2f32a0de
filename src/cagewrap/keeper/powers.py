"""Work with the rights that an agent has, and its owner on the host has not by himself.

Root in a cage gives files to other users, and takes the owner's rights to them away. Root of
podman's user namespace, which the owner can become, has the right to all of them.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable

from cagewrap.keeper import covers, namespaces


class Powers:
    """Of a container's owner; they stay when it has ended."""

    def __init__(self) -> None:
        """None yet."""
        self._user = -1

    def open(self, init_pid: int) -> None:
        """Hold on to them; the container runs. Raises OSError."""
        self._user = namespaces.podman_user_namespace(init_pid)

    def take(self) -> None:
        """Have them, for the rest of this process. Raises OSError."""
        namespaces.enter(self._user)

    def run(self, work: Callable[[], bytes]) -> bytes:
        """Do a short work in a child process with them. Raises OSError."""

        def inside() -> bytes:
            self.take()
            return work()

        return namespaces.run_in_child(inside)

    def close(self) -> None:
        """Let go."""
        if self._user >= 0:
            os.close(self._user)


def give_back(directory: int) -> bytes:
    """Make a directory that an agent gave away, or closed, its owner's again. To be run with
    powers; b""."""
    found = os.stat(directory)
    with contextlib.suppress(OSError):
        if found.st_uid:
            os.chown(".", 0, -1, dir_fd=directory)
        os.chmod(".", stat.S_IMODE(found.st_mode) | 0o700, dir_fd=directory)
    return b""


def written_by_agents(init_pid: int, state_dir: str, home: str) -> tuple[str, ...]:
    """Directories of the host's, beside the project, where an agent of a cage writes; and where
    the files of running ones are seen."""
    containers = os.path.join(home, ".local/share/containers")
    return (state_dir, containers, "/proc", *covers.upper_directories(init_pid))
