"""Whose cage a command goes on in: the one that knows the conversation it resumes.

Harnesses rename sessions, and start the agent anew under the new name.
"""

from __future__ import annotations

import json
import os
import re
from typing import NamedTuple

from cagewrap.paths import Paths
from cagewrap.sessions import Record, conversations_file
from cagewrap.transcripts import CLAUDE, PI, Format

_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Resumed(NamedTuple):
    """A conversation as a command names it: `name` is how its file's name ends, less `.jsonl`."""

    form: Format
    name: str


def resumed_conversation(command: list[str]) -> str:
    """The conversation of Claude's that a command resumes (`--resume ID`, `--resume=ID`, `-r ID`),
    or ""."""
    for at, word in enumerate(command):
        if word.startswith("--resume="):
            return word.partition("=")[2]
        if word in ("--resume", "-r") and at + 1 < len(command):
            following = command[at + 1]
            return "" if following.startswith("-") else following
    return ""


def resumed_pi_conversation(command: list[str]) -> str:
    """The same of pi's (`--session FILE`, `--session ID`)."""
    at = command.index("--session") + 1 if "--session" in command else len(command)
    given = command[at] if at < len(command) else ""
    return PI.stem(os.path.basename(given)) or (given if _ID.fullmatch(given) else "")


def find_resumed(
    paths: Paths, records: list[Record], project: str, command: list[str]
) -> Record | None:
    """The one session of a project that the conversation of a command is of: its private HOME
    knows it, and did not only get it from the host."""
    wanted = (
        Resumed(CLAUDE, resumed_conversation(command)),
        Resumed(PI, resumed_pi_conversation(command)),
    )
    for one in wanted:
        knowing = [
            record
            for record in records
            if record.project == project and not record.rm and _knows(paths, record.name, one)
        ]
        if len(knowing) == 1:
            return knowing[0]
    return None


def _knows(paths: Paths, name: str, wanted: Resumed) -> bool:
    """Whether a conversation was begun, or gone on with, in a session's cage."""
    if not wanted.name or "/" in wanted.name:
        return False
    found = _find_file(os.path.join(paths.home_dir(name), *wanted.form.parts), wanted)
    return bool(found) and found not in _brought(paths, name, wanted.form)


def _find_file(tree: str, wanted: Resumed) -> str:
    """The name of a conversation's file in a tree, less `.jsonl`; "" if it is not there."""
    for slug in _names(tree):
        directory = os.path.join(tree, slug)
        if os.path.exists(os.path.join(directory, wanted.name + ".jsonl")):
            return wanted.name
        if wanted.form is PI:  # the file's name begins with the time
            for file in _names(directory):
                if file.endswith(f"_{wanted.name}.jsonl"):
                    return PI.stem(file)
    return ""


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _brought(paths: Paths, name: str, form: Format) -> list[str]:
    """The conversations that a cage has from the host, and has not gone on with."""
    try:
        with open(conversations_file(paths, name, form.agent), encoding="utf-8") as file:
            value = json.load(file)
    except (OSError, ValueError):
        return []
    brought = value.get("brought") if isinstance(value, dict) else None
    return brought if isinstance(brought, list) else []
