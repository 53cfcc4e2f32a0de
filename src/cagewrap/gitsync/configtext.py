"""git's configuration files: what they say, and changes that leave the rest as it stands. Pure.

Syntax: git-config(1). A key is `section.name` or `section.subsection.name`, the section and the
name in small letters. Lines that are not understood make the whole file refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

CONFIG_BYTES = 1 << 20
"""A larger configuration is not read."""

_SECTION = re.compile(r'[ \t]*\[\s*([A-Za-z0-9.-]+)(?:[ \t]+"((?:[^"\\\n]|\\.)*)")?[ \t]*\]')
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]*")
_ESCAPES = {"n": "\n", "t": "\t", "b": "\b", "\\": "\\", '"': '"'}

Config = Mapping[str, tuple[str, ...]]
"""Key -> its values in order. A key without `=` has the value "true"."""


class ConfigRefusedError(Exception):
    """A configuration that is not understood."""


class _Item(NamedTuple):
    """A variable: where its text lies, its key and value; or a header, with `name` ""."""

    begin: int
    end: int
    section: str
    name: str
    value: str

    @property
    def key(self) -> str:
        return f"{self.section}.{self.name}"


def parse(text: str) -> dict[str, tuple[str, ...]]:
    """What a configuration says. Raises ConfigRefusedError."""
    found: dict[str, list[str]] = {}
    for item in _items(text):
        if item.name:
            found.setdefault(item.key, []).append(item.value)
    return {key: tuple(values) for key, values in found.items()}


def split_key(key: str) -> tuple[str, str, str]:
    """Section, subsection ("" for none) and name of a key."""
    section, _, rest = key.partition(".")
    subsection, _, name = rest.rpartition(".")
    return section, subsection, name


def change(text: str, changes: Mapping[str, Sequence[str]]) -> str:
    """The text with some keys set to other values; no values: the key is gone. A section that
    loses its last key goes as well. Raises ConfigRefusedError."""
    for key, values in changes.items():
        text = _set(text, key, values)
    return text


def _set(text: str, key: str, values: Sequence[str]) -> str:
    items = _items(text)
    section = key.rpartition(".")[0]
    at = -1
    for item in items:
        if item.section == section:
            at = item.end
    lines = "".join(f"\t{split_key(key)[2]} = {quote(value)}\n" for value in values)
    spans = [(item.begin, item.end) for item in items if item.name and item.key == key]
    if lines and at < 0:
        glue = "" if not text or text.endswith("\n") else "\n"
        return f"{text}{glue}{_header(key)}\n{lines}"
    edits = [(begin, end, "") for begin, end in spans]
    if lines:
        before = "" if text[at - 1 : at] == "\n" else "\n"
        edits.append((at, at, before + lines))
    elif not any(item.name and item.section == section and item.key != key for item in items):
        headers = [item for item in items if not item.name and item.section == section]
        edits += [(item.begin, item.end, "") for item in headers]
    for begin, end, new in sorted(edits, key=lambda edit: edit[:2], reverse=True):
        text = text[:begin] + new + text[end:]
    return text


def _header(key: str) -> str:
    section, subsection, _ = split_key(key)
    if not subsection:
        return f"[{section}]"
    escaped = subsection.replace("\\", "\\\\").replace('"', '\\"')
    return f'[{section} "{escaped}"]'


def quote(value: str) -> str:
    """A value as git reads it back."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    escaped = escaped.replace("\n", "\\n").replace("\t", "\\t").replace("\b", "\\b")
    plain = escaped == value and value == value.strip() and value and not set(value) & set("#;")
    return escaped if plain else f'"{escaped}"'


def _items(text: str) -> list[_Item]:
    """Headers and variables in order; a header's text ends where its line's first variable is."""
    items: list[_Item] = []
    section, at = "", int(text.startswith("\ufeff"))
    text = text.replace("\r\n", " \n") if "\r\n" in text else text
    while at < len(text):
        end = _line_end(text, at)
        if text[at:end].strip(" \t\n\r\ufeff") == "" or text[at:end].lstrip(" \t")[:1] in "#;":
            at = end
            continue
        header = _SECTION.match(text, at)
        if header:
            section = _section_name(header)
            rest = text[header.end() : end].strip(" \t\n")
            is_alone = not rest or rest[0] in "#;"
            items.append(_Item(at, end if is_alone else header.end(), section, "", ""))
            at = end if is_alone else header.end()
            continue
        item = _variable(text, at, section)
        items.append(item)
        at = item.end
    return items


def _section_name(header: re.Match[str]) -> str:
    name, quoted = header.group(1), header.group(2)
    if quoted is not None:
        subsection = re.sub(r"\\(.)", lambda found: found.group(1), quoted)
        return f"{name.lower()}.{subsection}"
    return name.lower()  # [section.subsection], the old way, in small letters


def _variable(text: str, at: int, section: str) -> _Item:
    start = at
    while text[at : at + 1] in (" ", "\t"):
        at += 1
    name = _NAME.match(text, at)
    if not name or not section:
        raise ConfigRefusedError(f"not understood: {text[at : _line_end(text, at)][:80]!r}")
    at = name.end()
    while text[at : at + 1] in (" ", "\t"):
        at += 1
    following = text[at : at + 1]
    if following == "=":
        value, end = _value(text, at + 1)
        return _Item(start, end, section, name.group().lower(), value)
    if following in ("", "\n", "#", ";"):
        return _Item(start, _line_end(text, at), section, name.group().lower(), "true")
    raise ConfigRefusedError(f"not understood: {text[start : _line_end(text, at)][:80]!r}")


def _value(text: str, at: int) -> tuple[str, int]:  # noqa: C901 - git's own state machine
    """The value that begins there, and where its last line ends (as git's parse_value)."""
    value, kept, is_quoted, is_comment = "", 0, False, False
    while at < len(text):
        letter = text[at]
        at += 1
        if letter == "\n":
            if is_quoted:
                raise ConfigRefusedError("a quote is not closed")
            return value[:kept], at
        if is_comment:
            continue
        if letter == "\\":
            following = text[at : at + 1]
            at += 1
            if following == "\n":
                continue
            if following not in _ESCAPES:
                raise ConfigRefusedError("an unknown escape")
            value += _ESCAPES[following]
            kept = len(value)
        elif letter == '"':
            is_quoted = not is_quoted
            kept = len(value)
        elif letter in "#;" and not is_quoted:
            is_comment = True
        elif letter in " \t" and not is_quoted:
            value += letter if value else ""
        else:
            value += letter
            kept = len(value)
    if is_quoted:
        raise ConfigRefusedError("a quote is not closed")
    return value[:kept], at


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end + 1
