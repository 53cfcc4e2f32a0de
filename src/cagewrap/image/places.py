"""Where a build and those who wait for it meet, and what is noted of the images that were built."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Any

from cagewrap.paths import Paths


class Places:
    """Files of one owner. lock: held by the build that runs, whose pid is in it. events: what it
    tells of itself. waiters: locked, shared, by whoever waits for it. log: the programs' own words
    of the last build, kept. notes: what was built under which name."""

    def __init__(self, paths: Paths) -> None:
        """Makes the two directories."""
        for directory in (paths.runtime_dir, paths.state_dir):
            os.makedirs(directory, mode=0o700, exist_ok=True)
        self.lock = os.path.join(paths.runtime_dir, "image.lock")
        self.events = os.path.join(paths.runtime_dir, "image.events")
        self.waiters = os.path.join(paths.runtime_dir, "image.waiters")
        self.log = os.path.join(paths.state_dir, "image.log")
        self.notes = os.path.join(paths.state_dir, "images.json")

    def read(self) -> dict[str, dict[str, Any]]:
        """By image name: `recipe` and `id`."""
        return read_notes(self.notes)

    def write(self, name: str, note: dict[str, Any]) -> None:
        """Note what was built."""
        notes = {**self.read(), name: note}
        temporary = f"{self.notes}.{os.getpid()}"
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(notes, file)
        os.replace(temporary, self.notes)

    def forget(self, name: str) -> None:
        """The image was removed."""
        notes = self.read()
        if notes.pop(name, None) is not None:
            with open(self.notes, "w", encoding="utf-8") as file:
                json.dump(notes, file)


def read_notes(path: str) -> dict[str, dict[str, Any]]:
    """What is noted; nothing when it cannot be read."""
    with suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
        found = json.load(file)
        return found if isinstance(found, dict) else {}
    return {}
