"""Agents' transcripts: where they lie, what is in a line, and which lines may leave a cage.

A conversation is a file that only grows, one JSON object a line: Claude's is
`projects/SLUG/UUID.jsonl`, with a directory `UUID/` beside it for what its sub-agents said and what
its tools printed; pi's is `sessions/SLUG/TIME_UUID.jsonl`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

MAX_SLUG = 200
LINE_BYTES = 32 << 20
"""A longer line is not carried, nor what follows it."""

_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_PI_NAME = re.compile(rf"[0-9TZ.-]{{10,40}}_{_ID.pattern}")
_AGENT = re.compile(r"agent-[A-Za-z0-9_-]{1,80}")
_RESULT = re.compile(r"[A-Za-z0-9_-]{1,120}")
_CWD = re.compile(rb'"cwd" ?: ?("(?:[^"\\]|\\.)*")')
_OTHER_CHARACTERS = re.compile(r"[^a-zA-Z0-9]")

_CLAUDES = frozenset(
    (
        "ai-title", "assistant", "attachment", "content-replacement", "custom-title", "last-prompt",
        "pr-link", "progress", "summary", "system", "tag", "user",
    )
)  # fmt: skip
_ORDERS = frozenset(("permissionMode", "teamName"))
"""Of what was said too: a claude that goes back to such a line takes the mode from it."""
_PLAN = re.compile(r"[a-z0-9-]{1,100}")
"""The name of a plan, from which a path is made."""
_PIS = frozenset(
    (
        "branch_summary", "compaction", "label", "message", "model_change", "session",
        "session_info", "thinking_level_change",
    )
)  # fmt: skip


class Format(NamedTuple):
    """One agent's way of keeping conversations.

    parts: its directory below HOME. slug: how the name of a directory for that working directory
    begins; is_slug: whether a name is one of its. stem: the file name's part before `.jsonl`, ""
    if it is no conversation. said: what of an entry leaves a cage; empty for nothing.
    """

    agent: str
    parts: tuple[str, ...]
    slug: Callable[[str], str]
    is_slug: Callable[[str, str], bool]
    stem: Callable[[str], str]
    said: Callable[[dict[str, Any]], dict[str, Any]]
    beside: tuple[str, ...] = ()


def said_to_claude(entry: dict[str, Any]) -> dict[str, Any]:
    """What was said and done. The other kinds are orders to the claude that resumes it
    (`worktree-state` moves it to another directory, `file-history-snapshot` says which files a
    rewind overwrites or removes, `permission-mode`, `agent-setting`, `dev-mods`,
    `queue-operation`), or unknown to us."""
    kind = entry.get("type")
    if not isinstance(kind, str) or kind not in _CLAUDES:
        return {}
    plan = entry.get("slug")
    if plan is not None and not (isinstance(plan, str) and _PLAN.fullmatch(plan)):
        del entry["slug"]
    return {name: value for name, value in entry.items() if name not in _ORDERS}


def said_to_pi(entry: dict[str, Any]) -> dict[str, Any]:
    """What was said and done. An extension's own entries are emptied; they stay as links of the
    chain that the entries are."""
    kind = entry.get("type")
    if kind in ("custom", "custom_message"):
        kept = {name: entry.get(name) for name in ("type", "id", "parentId", "timestamp")}
        return kept | {"type": "custom", "customType": "cagewrap", "data": {}}
    entry.pop("parentSession", None)  # a path that pi would read
    return entry if isinstance(kind, str) and kind in _PIS else {}


def slug(path: str) -> str:
    """The directory name Claude gives a working directory, or how a longer one than MAX_SLUG
    begins (it goes on with "-" and a hash)."""
    return _whole_slug(path)[:MAX_SLUG]


def is_slug(name: str, of_path: str) -> bool:
    """Whether a directory may be the one of that working directory."""
    wanted = _whole_slug(of_path)
    if len(wanted) <= MAX_SLUG:
        return name == wanted
    return name.startswith(wanted[:MAX_SLUG] + "-")


def _whole_slug(path: str) -> str:
    """One "-" for each of JavaScript's characters that is not a plain letter or digit."""
    units = path.encode("utf-16-le", "surrogatepass")
    text = "".join(chr(units[at] | units[at + 1] << 8) for at in range(0, len(units), 2))
    return _OTHER_CHARACTERS.sub("-", text)


def pi_slug(path: str) -> str:
    """The directory name that pi gives a working directory, without its end."""
    return "--" + re.sub(r"[/\\:]", "-", path[1:])


def is_pi_slug(name: str, of_path: str) -> bool:
    """Whether it is the directory of that working directory."""
    return name == pi_slug(of_path) + "--"


def conversation_id(name: str) -> str:
    """The id of Claude's conversation whose transcript has that file name, "" if it is none."""
    found = name.removesuffix(".jsonl")
    return found if found != name and _ID.fullmatch(found) else ""


def pi_stem(name: str) -> str:
    """A file name of a transcript of pi's without its end, "" if it is none."""
    found = name.removesuffix(".jsonl")
    return found if found != name and _PI_NAME.fullmatch(found) else ""


def kind_beside(directory: str, name: str) -> str:
    """What a file beside a transcript is: "lines", "note", "text", or "" for nothing we know."""
    stem, _, kind = name.partition(".")
    if directory == "subagents" and _AGENT.fullmatch(stem):
        return {"jsonl": "lines", "meta.json": "note"}.get(kind, "")
    is_result = directory == "tool-results" and _RESULT.fullmatch(stem)
    return "text" if is_result and kind in ("txt", "json") else ""


def recorded_cwd(head: bytes) -> str:
    """The working directory a transcript that begins like this was begun in, "" if unknown."""
    *lines, rest = head.split(b"\n")
    for line in lines:
        cwd = parse_object(line).get("cwd")
        if isinstance(cwd, str) and cwd:
            return cwd
    found = _CWD.search(rest)  # a line that is longer than what was read
    cwd = parse_object(b'{"cwd":' + found[1] + b"}").get("cwd") if found else None
    return cwd if isinstance(cwd, str) else ""


def spoken_lines(
    form: Format, lines: Iterable[bytes], is_ours: Callable[[str], bool]
) -> list[bytes]:
    """What of a cage's lines may be appended to the host's, written anew.

    is_ours: whether a working directory is one of this project's.
    """
    cleaned = (spoken_line(form, line, is_ours) for line in lines)
    return [line for line in cleaned if line]


def spoken_line(form: Format, line: bytes, is_ours: Callable[[str], bool]) -> bytes:
    """A line written anew, with its newline; b"" for one that stays in the cage."""
    entry = form.said(parse_object(line))
    cwd = entry.get("cwd", "")
    if not entry or not isinstance(cwd, str) or (cwd and not is_ours(cwd)):
        return b""
    return render(entry)


def known_lines(form: Format, lines: Iterable[bytes], is_ours: Callable[[str], bool]) -> set[bytes]:
    """A cage's lines as the host may hold them: whole, or as they left the cage."""
    found = list(lines)
    return {plain_line(line) for line in found} | set(spoken_lines(form, found, is_ours))


def plain_line(line: bytes) -> bytes:
    """A line written anew whatever its kind, to be compared; itself if it is no JSON object."""
    return render(parse_object(line)) if line.startswith(b"{") else line


def parse_object(data: bytes) -> dict[str, Any]:
    """A JSON object; empty for anything else."""
    try:
        value = json.loads(data, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def render(value: dict[str, Any]) -> bytes:
    """One line, as Claude would write it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError:  # half of a surrogate pair
        return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def agent_note(data: bytes) -> bytes:
    """What is noted about a sub-agent, less what orders something; b"" if it is no such note."""
    value = parse_object(data)
    kept = {
        name: value[name]
        for name in ("agentType", "description", "name", "toolUseId")
        if isinstance(value.get(name), str)
    }
    return json.dumps(kept).encode() if kept else b""


def _refuse(name: str) -> None:
    raise ValueError(name)


CLAUDE = Format(
    "Claude",
    (".claude", "projects"),
    slug,
    is_slug,
    conversation_id,
    said_to_claude,
    ("subagents", "tool-results"),
)
PI = Format("pi", (".pi", "agent", "sessions"), pi_slug, is_pi_slug, pi_stem, said_to_pi)
