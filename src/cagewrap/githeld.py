"""What is held back of a session's git directory, for `cagewrap review`."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from cagewrap.errors import SessionError
from cagewrap.gitlayout import find_layout, git_store, pair_of
from cagewrap.gitsync import heldback
from cagewrap.gitsync.configtext import ConfigRefusedError
from cagewrap.gitsync.heldback import Difference
from cagewrap.gitsync.pair import Pair
from cagewrap.held import DIFF_BYTES, Held
from cagewrap.paths import Paths
from cagewrap.sessions import Record

_WHY = {
    "git config": "git may run what it names, or write elsewhere",
    "git file": "git runs or obeys it",
    "git conflict": "you and the agent changed the same ref, and yours stayed",
}


class HeldGit:
    """A provider (`cagewrap.held.Provider`). What is written is written under git's own locks."""

    def __init__(self, paths: Paths, record: Record) -> None:
        """Looks at nothing yet."""
        self._record = record
        self._store = git_store(paths, record.name)
        self._seen_file = os.path.join(self._store, "seen.json")

    def pending(self, *, is_look: bool = True) -> Sequence[Held]:
        """All that the copy has and the host has not. What is shown is remembered."""
        pair = self._pair()
        if pair is None:
            return ()
        found = _differences(pair)
        if is_look:
            seen = {one.path: one.digest for one in found}
            with open(self._seen_file, "w", encoding="utf-8") as file:
                json.dump(seen, file)
        return tuple(Held(one.kind, one.path, _why(one), _explain(pair, one)) for one in found)

    def count(self) -> int:
        """As `review` would show it; texts are not compared."""
        pair = self._pair()
        return len(_differences(pair)) if pair is not None else 0

    def accept(self, path: str) -> str:
        """Give the host what was shown. A conflict is the owner's to merge."""
        pair, one = self._find(path)
        if one.kind == "git conflict":
            raise SessionError(
                f"{path} is a commit of the agent's beside yours: git alone can bring them "
                "together.",
                f"git merge {path}, then cagewrap review --drop {path}",
            )
        if self._seen().get(path) != one.digest:
            raise _changed(path)
        try:
            heldback.accept(pair, one)
        except FileNotFoundError as error:
            raise _changed(path) from error
        except ConfigRefusedError as error:
            raise _not_understood(path, error) from error
        return ""

    def drop(self, path: str) -> str:
        """Give the cage what the host has."""
        pair, one = self._find(path)
        try:
            heldback.drop(pair, one)
        except ConfigRefusedError as error:
            raise _not_understood(path, error) from error
        return ""

    def _find(self, path: str) -> tuple[Pair, Difference]:
        pair = self._pair()
        for one in _differences(pair) if pair else ():
            if pair and one.path == path:
                return pair, one
        raise SessionError(f"Nothing is held back at {path!r}.", "cagewrap review")

    def _pair(self) -> Pair | None:
        """None while there is nothing to compare."""
        layout = find_layout(self._record.project)
        pair = pair_of(self._record, layout, self._store)
        return pair if layout.git_dir and os.path.exists(pair.base_file) else None

    def _seen(self) -> dict[str, str]:
        try:
            with open(self._seen_file, encoding="utf-8") as file:
                return dict(json.load(file))
        except (OSError, ValueError):
            return {}


def _why(one: Difference) -> str:
    if one.kind == "git conflict" and one.path.split("/")[3:4] == ["deleted"]:
        return "the agent deleted the ref of that name, and this is where it was"
    return _WHY[one.kind]


def _differences(pair: Pair) -> list[Difference]:
    try:
        return heldback.differences(pair)
    except OSError:
        return []


def _explain(pair: Pair, one: Difference) -> str:
    try:
        return heldback.explain(pair, one)[:DIFF_BYTES]
    except (OSError, ConfigRefusedError):
        return ""


def _changed(path: str) -> SessionError:
    return SessionError(
        f"{path!r} is not what `cagewrap review` has shown: it was not shown yet, or an agent has "
        "changed it since.",
        "cagewrap review",
    )


def _not_understood(path: str, error: ConfigRefusedError) -> SessionError:
    return SessionError(f"{path!r} cannot be changed: {error}.", "git config --edit")
