"""JSON files of Claude's: the owner's, which are believed, and those in a cage, which are not."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from typing import Any

from cagewrap import beneath

STATE_FILE = ".claude.json"
JSON_BYTES = 16 << 20
_LOCK_STALE_S = 10.0
_LOCK_TRIES = 10
_LOCK_S = 0.02


@contextlib.contextmanager
def locked_state(home: int) -> Iterator[None]:
    """Hold the lock that claude holds when it rewrites its state: a directory beside it.

    Raises BlockingIOError when it is not to be had, and any other OSError.
    """
    name = STATE_FILE + ".lock"
    for _ in range(_LOCK_TRIES):
        try:
            os.mkdir(name, 0o700, dir_fd=home)
            break
        except FileExistsError:
            with contextlib.suppress(FileNotFoundError):
                if time.time() - beneath.stat_at(home, name).st_mtime > _LOCK_STALE_S:
                    os.rmdir(name, dir_fd=home)
                    continue
            time.sleep(_LOCK_S)
    else:
        raise BlockingIOError("it is locked")
    try:
        yield
    finally:
        os.rmdir(name, dir_fd=home)


def read_theirs(directory: int, name: str) -> dict[str, Any]:
    """A JSON object of the agent's; empty for no file. Raises OSError, ValueError, TypeError."""
    try:
        data = beneath.read_regular(directory, name, JSON_BYTES)
    except FileNotFoundError:
        return {}
    value = json.loads(data or b"{}")
    if not isinstance(value, dict):
        raise TypeError("it is no JSON object")
    return value


def read_object(path: str) -> dict[str, Any]:
    """A JSON object of the owner's; empty for no file. Raises OSError, ValueError, TypeError."""
    try:
        with open(path, "rb") as file:
            return as_object(json.loads(file.read(JSON_BYTES)))
    except FileNotFoundError:
        return {}


def as_object(value: object) -> dict[str, Any]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}
