"""The owner's Claude settings, instructions and state, as a copy without secrets in the cage."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from cagewrap import beneath, claudeplugins, sessions
from cagewrap.claudefiles import (
    STATE_FILE,
    as_object,
    locked_state,
    read_object,
    read_theirs,
)
from cagewrap.claudesettings import (
    shared_settings,
    updated_state,
    wanted_state,
)
from cagewrap.claudetree import find_originals, memory_originals
from cagewrap.copies import Copies, Finder, Original, read_known
from cagewrap.keeper.care import Care, Note
from cagewrap.keeper.conversations import host_config_dir, is_claude, is_shown
from cagewrap.keeper.merged import MergedFile, judge_of, kept_by_keepers
from cagewrap.keeper.request import Request
from cagewrap.paths import Paths
from cagewrap.sessions import Record
from cagewrap.stamps import stamp

SETTINGS_FILE = "settings.json"
MAX_CWDS = 50
MANY = 100
MANY_S = 2.0
"""More than MANY files of instructions are looked through this often at most."""
STATE_S = 30.0
"""The host's claude rewrites its state all the time: it is read this often at most."""


class ClaudeHome(Care):
    """Brings what the host has changed since, before each message."""

    name = "claude"

    def __init__(
        self,
        record: Record,
        paths: Paths,
        log: Callable[[str], None],
        is_brokered: Callable[[Request], bool],
        is_our_slug: Callable[[str], bool],
    ) -> None:
        """Reads what an earlier keeper brought.

        is_brokered: whether the broker, and so its address, is the way to the API for a message.
        is_our_slug: whether conversations of this project alone lie under a name on the host.
        """
        self._is_our_slug = is_our_slug
        self._record = record
        self._is_brokered = is_brokered
        self._home_dir = paths.home_dir(record.name)
        self._file = os.path.join(paths.cage_dir(record.name), "claude.json")
        self._log = log
        kept = kept_by_keepers(self._file)
        self._may_read = judge_of(record, paths)
        self._copies = Copies(self._home_dir, read_known(kept.get("files")), self._may_read)
        self._settings = MergedFile(
            self._home_dir, (".claude",), SETTINGS_FILE, kept.get("settings")
        )
        self._wanted = as_object(kept.get("state"))
        self._found: tuple[str, float, dict[str, Original]] = ("", 0.0, {})
        self._plugins: tuple[object, dict[str, Original]] = (None, {})
        self._marketplaces: dict[str, str] = {}
        self._marketplaces_stamp: object = None
        self._host_state: dict[str, Any] = {}
        self._host_state_stamp: object = None
        self._host_state_at = float("-inf")
        self._cwds: dict[str, None] = {}
        self._said: set[str] = set()

    def before(self, request: Request, note: Note, ready: Callable[[], None]) -> None:
        """Bring settings and instructions."""
        config_dir = self._config_dir(request)
        if config_dir:
            for cwd in (request.cwd, request.env.get(b"PWD", b"")):
                if cwd.startswith(b"/") and len(self._cwds) < MAX_CWDS:
                    self._cwds[os.fsdecode(cwd)] = None
            named = request.env.get(b"CLAUDE_CONFIG_DIR", b"")
            parent = config_dir if named else os.path.dirname(config_dir)
            try:
                self._read_host_state(os.path.join(parent, STATE_FILE))
                self._bring(config_dir, is_brokered=self._is_brokered(request))
            except Exception as error:  # noqa: BLE001 - whatever lies there, the message goes on
                self._say(note, f"Claude's settings could not be brought into the cage: {error}")
        for text in self._copies.notes:
            self._say(note, text)
        self._copies.notes.clear()
        ready()

    def environment(self, request: Request, env: Mapping[bytes, bytes]) -> Mapping[bytes, bytes]:
        """Not for variables: Claude's state depends on the key that is handed over in one."""
        if self._config_dir(request) or is_claude(request):
            cwds = dict.fromkeys((os.fsdecode(request.cwd), *self._cwds, self._record.project))
            try:
                self._seed(tuple(cwds), os.fsdecode(env.get(b"ANTHROPIC_API_KEY", b"")))
            except Exception as error:  # noqa: BLE001 - then claude asks
                self._say(self._log, f"~/{STATE_FILE} in the cage is left as it is: {error}")
        return {}

    def _config_dir(self, request: Request) -> str:
        """The host's directory of Claude's; "" if there is none, or the cage sees it anyway."""
        path = host_config_dir(request, self._record)
        return path if os.path.isdir(path) and not is_shown(path, self._record) else ""

    # -- settings and instructions -------------------------------------------------------------

    def _bring(self, config_dir: str, *, is_brokered: bool) -> None:
        home = os.path.realpath(self._record.home)
        originals = self._find(config_dir, home)
        inside = os.path.join(home, ".claude")

        def relocated(name: str, data: bytes) -> bytes:
            if name == f".claude/plugins/{claudeplugins.KNOWN}" and self._marketplaces:
                above = os.path.join(inside, "plugins/marketplaces")
                data = claudeplugins.with_copies(data, self._marketplaces, above)
            return _relocated(config_dir, inside, name, data)

        self._copies.bring(originals, relocated)
        is_changed = self._bring_settings(config_dir, is_brokered=is_brokered)
        if is_changed or self._copies.is_changed:
            self._save()

    def _find(self, config_dir: str, home: str) -> dict[str, Original]:
        """What is to be copied. Many files are not looked at again within MANY_S."""
        now = time.monotonic()
        known_dir, at, found = self._found
        if known_dir == config_dir and len(found) > MANY and now - at < MANY_S:
            return found
        finder = Finder(self._may_read, 3000, 32 << 20)
        found = find_originals(finder, config_dir, home, self._record.project)
        cwds = tuple(self._cwds)
        found |= memory_originals(finder, config_dir, cwds, self._host_state, self._is_our_slug)
        found |= self._find_plugins(finder, config_dir)
        found |= self._find_marketplaces(finder, config_dir)
        self._copies.notes += finder.notes
        self._found = (config_dir, now, found)
        return found

    def _find_plugins(self, finder: Finder, config_dir: str) -> dict[str, Original]:
        """Plugins are many files: they are looked through when Claude's lists of them change."""
        top = os.path.join(config_dir, "plugins")
        names = ("", "installed_plugins.json", "known_marketplaces.json", "cache", "marketplaces")
        now = tuple(stamp(os.path.join(top, name)) for name in names)
        if now != self._plugins[0]:
            wide = Finder(self._may_read, 10000, 128 << 20)
            found: dict[str, Original] = {}
            for name in (*names[1:], "repos", "blocklist.json", "config.json"):
                found |= wide.find(os.path.join(top, name), f".claude/plugins/{name}")
            finder.notes += wide.notes
            self._plugins = (now, found)
        return self._plugins[1]

    def _find_marketplaces(self, finder: Finder, config_dir: str) -> dict[str, Original]:
        """What Claude reads of the owner's directories that are not in the cage."""
        top = os.path.join(config_dir, "plugins")
        now = stamp(os.path.join(top, claudeplugins.KNOWN))
        if now != self._marketplaces_stamp:
            self._marketplaces_stamp = now
            self._marketplaces = claudeplugins.local_marketplaces(
                top, lambda path: self._may_read(path) and not is_shown(path, self._record)
            )
        found: dict[str, Original] = {}
        for name, directory in self._marketplaces.items():
            inside = f".claude/plugins/marketplaces/{name}"
            for part in claudeplugins.wanted_parts(top, name, directory):
                found |= finder.find(
                    os.path.join(directory, part), os.path.join(inside, part).rstrip("/")
                )
        return found

    def _bring_settings(self, config_dir: str, *, is_brokered: bool) -> bool:
        """Bring settings.json; whether anything had changed."""

        def shared(settings: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
            host, left_out = shared_settings(settings)
            if is_brokered and isinstance(host.get("env"), dict):
                host["env"].pop("ANTHROPIC_BASE_URL", None)  # it would win over the broker's
            return host, left_out

        path = os.path.join(config_dir, SETTINGS_FILE)
        variant = "broker" if is_brokered else ""
        if not self._settings.bring(path, self._may_read, shared, variant):
            return False
        if self._settings.left_out:
            names = ", ".join(self._settings.left_out)
            self._say(self._log, f"settings.json in the cage lacks {names}")
        return True

    # -- .claude.json --------------------------------------------------------------------------

    def _seed(self, cwds: tuple[str, ...], api_key: str) -> None:
        wanted, left_out = wanted_state(self._host_state, cwds, api_key)
        if left_out:
            names = ", ".join(left_out)
            self._say(self._log, f"MCP servers in the cage lack, or are not there: {names}")
        home = beneath.open_root(self._home_dir)
        try:
            if self._is_seeded(home, wanted):
                return
            with locked_state(home):
                there = read_theirs(home, STATE_FILE)
                state = updated_state(there, wanted, self._wanted)
                if state != there:
                    data = json.dumps(state, indent=2, ensure_ascii=False).encode()
                    beneath.write_regular(home, STATE_FILE, data)
        finally:
            os.close(home)
        self._wanted = updated_state(self._wanted, wanted, self._wanted)
        self._save()

    def _is_seeded(self, home: int, wanted: dict[str, Any]) -> bool:
        try:
            if not beneath.stat_at(home, STATE_FILE).st_size:
                return False
        except FileNotFoundError:
            return False
        return updated_state(self._wanted, wanted, self._wanted) == self._wanted

    def _read_host_state(self, path: str) -> None:
        now = time.monotonic()
        if now - self._host_state_at < STATE_S:
            return
        found = stamp(path)
        if found != self._host_state_stamp:
            self._host_state = read_object(path)
            self._host_state_stamp = found
        self._host_state_at = now

    def _save(self) -> None:
        self._copies.is_changed = False
        value = {
            "files": self._copies.known,
            "settings": self._settings.state,
            "state": self._wanted,
        }
        sessions.write_json(self._file, value)

    def _say(self, tell: Callable[[str], None], text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            if tell != self._log:
                self._log(text)
            tell(text)


def _relocated(config_dir: str, inside: str, name: str, data: bytes) -> bytes:
    """Plugins are listed with their paths, which may begin otherwise in the cage."""
    if name in (
        ".claude/plugins/installed_plugins.json",
        ".claude/plugins/known_marketplaces.json",
    ):
        old, new = (json.dumps(path.rstrip("/") + "/")[1:-1] for path in (config_dir, inside))
        return data.replace(old.encode(), new.encode())
    return data
