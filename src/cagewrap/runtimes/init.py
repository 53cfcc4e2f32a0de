"""The program that is PID 1 of every cage: the host's static catatonit, mounted in."""

from __future__ import annotations

import os

from cagewrap.errors import PodmanMissingError

# Where distributions put it: Debian and Ubuntu; Fedora; openSUSE; podman's own bundles.
_PLACES = (
    "/usr/bin/catatonit",
    "/usr/libexec/catatonit/catatonit",
    "/usr/libexec/podman/catatonit",
    "/usr/lib/podman/catatonit",
    "/usr/local/libexec/podman/catatonit",
)


def find_init() -> str:
    """The path of catatonit. Raises PodmanMissingError."""
    for path in _PLACES:
        if os.access(path, os.X_OK):
            return path
    raise PodmanMissingError(
        "catatonit, the small program that is PID 1 in a cage, is not installed.",
        "sudo apt-get install catatonit",
    )
