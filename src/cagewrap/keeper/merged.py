"""What of the owner's files comes into a private HOME, where the agent may change it too."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from typing import Any

from cagewrap import beneath, protected
from cagewrap.claudefiles import as_object, read_object, read_theirs
from cagewrap.claudesettings import merge_settings
from cagewrap.claudetree import may_copy
from cagewrap.model import Owner
from cagewrap.paths import Paths
from cagewrap.sessions import Record, WrittenByCages
from cagewrap.stamps import stamp

Shared = Callable[[dict[str, Any]], tuple[dict[str, Any], tuple[str, ...]]]
"""From the owner's values to what a cage gets of them, and the names of what was left out."""


def kept_by_keepers(path: str) -> dict[str, Any]:
    """What an earlier keeper wrote down; nothing if that cannot be read."""
    try:
        return read_object(path)
    except (OSError, ValueError):
        return {}


def judge_of(record: Record, paths: Paths) -> Callable[[str], bool]:
    """Whether a real path of the owner's may be copied into the cage of that record."""
    return may_copy(owners_places(record.home, paths), WrittenByCages(paths))


@functools.cache
def owners_places(home: str, paths: Paths) -> tuple[protected.Place, ...]:
    """The places that no cage may hold, looked up once for each keeper: it takes 3 ms."""
    owner = Owner(os.getuid(), os.getgid(), "", home)
    return protected.protected_places(owner, paths, os.environ)


class MergedFile:
    """Follows the owner's file; where both have changed a key, the agent's stays."""

    def __init__(self, home_dir: str, parts: tuple[str, ...], name: str, kept: object) -> None:
        """parts: its directory in HOME. kept: what `state` was when an earlier keeper ended."""
        self._home_dir = home_dir
        self._parts = parts
        self._name = name
        self._base = as_object(as_object(kept).get("base"))
        self._stamp: object = as_object(kept).get("stamp")
        self.left_out: tuple[str, ...] = ()

    @property
    def state(self) -> dict[str, object]:
        """To be kept for the next keeper."""
        return {"base": self._base, "stamp": self._stamp}

    def bring(
        self, path: str, may_read: Callable[[str], bool], shared: Shared, variant: str = ""
    ) -> bool:
        """Bring the file if it has changed; whether it had. variant: changes with `shared`.

        Raises OSError, ValueError, TypeError, and changes nothing then.
        """
        now = [*stamp(path), variant]
        if now == self._stamp:
            return False
        real = os.path.realpath(path)
        if os.path.lexists(path) and not may_read(real):
            raise OSError(f"{path} leads to {real}, which no cage gets")
        host, self.left_out = shared(read_object(path))
        if host or self._base:
            self._merge(host)
        self._base, self._stamp = host, now
        return True

    def _merge(self, host: dict[str, Any]) -> None:
        home = beneath.open_root(self._home_dir)
        try:
            directory = beneath.open_dir(home, self._parts, make=True)
            try:
                theirs = read_theirs(directory, self._name)
                merged = merge_settings(self._base, host, theirs)
                if merged != theirs:
                    data = json.dumps(merged, indent=2, ensure_ascii=False).encode() + b"\n"
                    beneath.write_regular(directory, self._name, data)
            finally:
                os.close(directory)
        finally:
            os.close(home)
