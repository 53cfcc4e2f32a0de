"""Plugins of Claude's that are read from a marketplace in a directory of the owner's.

Claude copies what it fetches into its own directory. A marketplace that was added as a directory
(`claude plugin marketplace add PATH`) it reads where that is, and its plugins too, every time.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from typing import Any

from cagewrap.claudefiles import as_object, read_object

KNOWN = "known_marketplaces.json"
_INSTALLED = "installed_plugins.json"
_MANIFEST = ".claude-plugin"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def local_marketplaces(plugins: str, is_copied: Callable[[str], bool]) -> dict[str, str]:
    """Name and real path of each. plugins: Claude's directory of that name. is_copied: whether a
    directory is for the cage to have a copy of."""
    found: dict[str, str] = {}
    for name, value in _read(os.path.join(plugins, KNOWN)).items():
        place = as_object(value).get("installLocation")
        kind = as_object(as_object(value).get("source")).get("source")
        if kind == "directory" and isinstance(place, str) and _NAME.fullmatch(name):
            real = os.path.realpath(place)
            if os.path.isabs(place) and os.path.isdir(real) and is_copied(real):
                found[name] = real
    return found


def wanted_parts(plugins: str, name: str, directory: str) -> list[str]:
    """What of a marketplace is needed: its list, and the directories of plugins that are installed
    from it. Paths in it; "" for all of it."""
    installed = as_object(_read(os.path.join(plugins, _INSTALLED)).get("plugins"))
    manifest = _read(os.path.join(directory, _MANIFEST, "marketplace.json"))
    root = as_object(manifest.get("metadata")).get("pluginRoot")
    listed = manifest.get("plugins")
    parts = [_MANIFEST]
    for plugin in listed if isinstance(listed, list) else ():
        source = as_object(plugin).get("source")
        if f"{as_object(plugin).get('name')}@{name}" in installed and isinstance(source, str):
            above = root if isinstance(root, str) and not source.startswith("./") else ""
            part = os.path.normpath(os.path.join(above, source))
            if part == ".":
                return [""]
            if not part.startswith(("/", "../")) and part != "..":
                parts.append(part)
    return parts


def with_copies(data: bytes, marketplaces: dict[str, str], inside: str) -> bytes:
    """The list of marketplaces, for a cage that has copies of some in the directory `inside`."""
    try:
        known = json.loads(data)
    except ValueError:
        return data
    for name in marketplaces:
        if isinstance(known, dict) and isinstance(known.get(name), dict):
            known[name]["installLocation"] = os.path.join(inside, name)
    return json.dumps(known, indent=2).encode()


def _read(path: str) -> dict[str, Any]:
    try:
        return read_object(path)
    except (OSError, ValueError):
        return {}
