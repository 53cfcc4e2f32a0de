"""What may come next on cagewrap's command line: for `cagewrap completion`, and for its verbs.

A word of the command line is completed by the program itself, so that the scripts of the shells
know nothing but how to ask.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import click
from click.shell_completion import CompletionItem, ShellComplete

from cagewrap import flags as table
from cagewrap import sessions
from cagewrap.agentnames import AGENTS
from cagewrap.errors import CagewrapError
from cagewrap.flags import Kind, Setting
from cagewrap.model import Identity, LoginMode, NetworkMode
from cagewrap.paths import Paths, paths_from_env
from cagewrap.values import CACHES, SHARES

Item = CompletionItem
FILE, DIRECTORY, COMMAND = "file", "dir", "command"
"""Types of an item that the shell itself completes."""


def next_words(words: Sequence[str], incomplete: str, group: click.Group) -> list[Item]:
    """What can stand in the place of the last word. words: those before it, without `cagewrap`."""
    if "--" in words:
        return _command_words(words)
    before = words[-1] if words else ""
    row = _rows().get(before)
    is_wrap = not words or words[0].startswith("-")
    if row is not None and row.kind is not Kind.SWITCH and (is_wrap or words[0] == "shim"):
        return _starting(flag_values(row), incomplete)
    found: list[Item] = []
    if is_wrap or words[0] == "shim":
        found += flag_items(incomplete)
    if is_wrap and words:
        return found + _starting([Item("--", help="the agent's command follows")], incomplete)
    if words and words[0] not in group.list_commands(click.Context(group)):
        return []
    asked = ShellComplete(group, {}, "cagewrap", "")
    return asked.get_completions(list(words), incomplete) + found


def _command_words(words: Sequence[str]) -> list[Item]:
    """After `--` first a command, then what the shell makes of its words: files."""
    return [Item("", type=COMMAND if words[-1] == "--" else FILE)]


def _rows() -> dict[str, Setting[object]]:
    return {row.flag: row for row in table.FLAGS}


def flag_items(incomplete: str) -> list[Item]:
    """The flags of the wrap path, once somebody has begun to write one."""
    if not incomplete.startswith("-"):
        return []
    return _starting([Item(row.flag, help=row.help) for row in table.FLAGS], incomplete)


def flag_values(row: Setting[object]) -> list[Item]:
    """What can follow a flag."""
    words: dict[str, Callable[[], Sequence[str]]] = {
        table.CACHE.flag: lambda: CACHES,
        table.ENV.flag: lambda: sorted(os.environ),
        table.LOGIN.flag: lambda: [mode.value for mode in LoginMode],
        table.NETWORK.flag: lambda: [mode.value for mode in NetworkMode],
        table.RUNTIME.flag: lambda: ("crun", "runc"),
        table.SECRET.flag: lambda: sorted(os.environ),
        table.SESSION.flag: lambda: [one.session for one in _records() if one.session],
        table.SESSION_ENV.flag: lambda: sorted(os.environ),
        table.SHARE.flag: lambda: SHARES,
        table.USER.flag: lambda: [one.value for one in Identity],
    }
    if row.flag in words:
        return [Item(word) for word in words[row.flag]()]
    if row in (table.PROJECT, table.MOUNT, table.HIDE):
        return [Item("", type=DIRECTORY if row is table.PROJECT else FILE)]
    return []


def _starting(items: Sequence[Item], incomplete: str) -> list[Item]:
    return [one for one in items if one.type != "plain" or str(one.value).startswith(incomplete)]


def _records() -> list[sessions.Record]:
    try:
        return sorted(sessions.list_records(_paths()))
    except (CagewrapError, OSError):
        return []  # a completion has nobody to tell


def _paths() -> Paths:
    return paths_from_env(os.environ, os.getuid())


def session_words(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Item]:
    """Names of sessions, and of their containers."""
    found = []
    for one in _records():
        found += [Item(one.name, help=one.project)]
        found += [Item(one.session, help=one.project)] if one.session else []
    return _starting(found, incomplete)


def agent_words(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Item]:
    """Agents that cagewrap knows."""
    return _starting([Item(name) for name in AGENTS], incomplete) or [Item("", type=FILE)]
