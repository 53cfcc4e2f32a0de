"""The owner's pi settings, models and extensions, as copies without secrets in the cage."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

from cagewrap import protected, sessions
from cagewrap.claudefiles import as_object
from cagewrap.claudesettings import looks_secret, shared_settings
from cagewrap.copies import Copies, Finder, Original, read_known
from cagewrap.keeper.care import Care, Note
from cagewrap.keeper.conversations import host_pi_dir, is_shown
from cagewrap.keeper.merged import MergedFile, judge_of, kept_by_keepers
from cagewrap.keeper.request import Request
from cagewrap.paths import Paths
from cagewrap.sessions import Record

PARTS = (".pi", "agent")
COPIED = (
    "AGENTS.md", "APPEND_SYSTEM.md", "CLAUDE.md", "SYSTEM.md", "extensions", "keybindings.json",
    "prompts", "skills", "themes", "tools",
)  # fmt: skip
MERGED = ("settings.json", "models.json")
NO_KEY = "KEY_NOT_IN_THE_CAGE"
"""In place of a key: pi does not take a provider without any."""
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")


class PiHome(Care):
    """Brings what the host has changed since, before each message."""

    name = "pi"

    def __init__(self, record: Record, paths: Paths, log: Callable[[str], None]) -> None:
        """Reads what an earlier keeper brought."""
        self._record = record
        self._file = os.path.join(paths.cage_dir(record.name), "pi.json")
        self._log = log
        kept = kept_by_keepers(self._file)
        self._judge = judge_of(record, paths)
        self._pi_dir = ""
        home_dir = paths.home_dir(record.name)
        self._copies = Copies(home_dir, read_known(kept.get("files")), self._may_read)
        self._merged = {
            name: MergedFile(home_dir, PARTS, name, as_object(kept.get("merged")).get(name))
            for name in MERGED
        }
        self._said: set[str] = set()

    def before(self, request: Request, note: Note, ready: Callable[[], None]) -> None:
        """Bring them."""
        pi_dir = host_pi_dir(request, self._record)
        if os.path.isdir(pi_dir) and not is_shown(pi_dir, self._record):
            self._pi_dir = os.path.realpath(pi_dir)
            try:
                self._bring(pi_dir)
            except Exception as error:  # noqa: BLE001 - whatever lies there, the message goes on
                self._say(note, f"pi's settings could not be brought into the cage: {error}")
            for text in self._copies.notes:
                self._say(note, text)
            self._copies.notes.clear()
        ready()

    def _bring(self, pi_dir: str) -> None:
        finder = Finder(self._may_read, 3000, 32 << 20)
        originals: dict[str, Original] = {}
        for name in COPIED:
            originals |= finder.find(os.path.join(pi_dir, name), "/".join((*PARTS, name)))
        self._copies.notes += finder.notes
        self._copies.bring(originals, lambda _, data: data)
        is_changed = self._copies.is_changed
        for name, merged in self._merged.items():
            if merged.bring(os.path.join(pi_dir, name), self._may_read, shared_pi_settings):
                is_changed = True
                if merged.left_out:
                    self._log(f"pi's {name} in the cage lacks {', '.join(merged.left_out)}")
        if is_changed:
            self._copies.is_changed = False
            states = {name: merged.state for name, merged in self._merged.items()}
            value = {"files": self._copies.known, "merged": states}
            sessions.write_json(self._file, value)

    def _may_read(self, path: str) -> bool:
        """pi's directory is one that no cage gets, with these of its files excepted."""
        if not protected.lies_in(path, self._pi_dir):
            return self._judge(path)
        name = os.path.relpath(path, self._pi_dir).partition("/")[0]
        return name in COPIED or name in MERGED

    def _say(self, note: Note, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._log(text)
            note(text)


def shared_pi_settings(settings: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """pi's settings or models as a cage gets them, and what was left out of them, by name.

    A key may be the name of a variable, which stays; a command that prints one, or the key itself.
    """
    providers = as_object(settings.get("providers"))
    keys = {
        name: entry["apiKey"]
        for name, entry in providers.items()
        if isinstance(entry, dict) and isinstance(entry.get("apiKey"), str)
    }
    shared, left_out = shared_settings(settings)
    for name, key in keys.items():
        is_name = bool(_VARIABLE.fullmatch(key)) and not looks_secret(key)
        shared["providers"][name]["apiKey"] = key if is_name else NO_KEY
        if is_name:
            left_out = tuple(one for one in left_out if one != f"providers.{name}.apiKey")
    return shared, left_out
