"""Where in a cage places were made for files of this machine's: written down, so that an image made
of the session has none of them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable


def read_targets(path: str) -> frozenset[str]:
    """The places that a session's file names; none when it is not there or cannot be read."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return frozenset()
    return frozenset(map(str, found)) if isinstance(found, list) else frozenset()


def write_targets(path: str, targets: Iterable[str]) -> None:
    """Write them down, whole or not at all. Raises OSError."""
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(sorted(targets), file, indent=1)
    os.replace(temporary, path)
