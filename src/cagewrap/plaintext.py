"""The Markdown of the documentation as text for a terminal.

Only what the pages have: headings, paragraphs, lists, fenced blocks, tables, links, bold text.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

_FENCE = "```"
_LINK = re.compile(r"!?\[([^\]]+)\]\([^)]*\)")
_BOLD = re.compile(r"(`[^`]*`)|\*\*([^*]+)\*\*")
_ITEM = re.compile(r"(\s*)([-*]|[0-9]+\.) +(.*)")
_HEADING = re.compile(r"(#+) (.*)")
_NOTHING = "\N{EN DASH}"
_CELL_END = re.compile(r"(?<!\\)\|")


def section_of(markdown: str, title: str) -> str:
    """The section of a page with that heading, the heading included; "" when there is none."""
    kept: list[str] = []
    depth, in_block = 0, False
    for line in markdown.splitlines():
        in_block ^= line.startswith(_FENCE)
        heading = None if in_block else _HEADING.match(line)
        if heading and depth and len(heading[1]) <= depth:
            break
        if heading and not depth and heading[2] == title:
            depth = len(heading[1])
        if depth:
            kept.append(line)
    return "\n".join(kept) + "\n" if kept else ""


def title_of(markdown: str) -> str:
    """A page's first heading."""
    return next((found[2] for found in map(_HEADING.match, markdown.splitlines()) if found), "")


def render(markdown: str, width: int) -> str:
    """A page as text. width: in columns; what is in a fenced block may be wider."""
    blocks = (_block(kind, lines, width) for kind, lines in _blocks(markdown.splitlines()))
    return "\n\n".join(blocks) + "\n"


def _blocks(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    """The lines that belong together, and of what kind they are."""
    block: list[str] = []
    kind = ""
    for line in [*lines, ""]:
        found = "fence" if kind == "fence" else _kind(line)
        if block and (found != kind or kind == "heading"):
            yield kind, block
            block = []
        kind = found
        if kind == "fence" and block and line.startswith(_FENCE):
            yield kind, block
            block, kind = [], ""
        elif kind:
            block.append(line)


def _kind(line: str) -> str:
    if line.startswith(_FENCE):
        return "fence"
    if line.startswith("|"):
        return "table"
    return "heading" if _HEADING.match(line) else ("text" if line.strip() else "")


def _block(kind: str, lines: list[str], width: int) -> str:
    if kind == "fence":
        return "\n".join(("    " + line).rstrip() for line in lines[1:])
    if kind == "table":
        return _table(lines, width)
    if kind == "heading":
        marks, _, title = lines[0].partition(" ")
        return _plain(title).upper() if len(marks) <= 2 else _plain(title)
    return "\n".join(_paragraph(*one, width) for one in _paragraphs(lines))


def _paragraphs(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Each paragraph or item of a list, with what stands before its first line."""
    head, text = "", ""
    for line in lines:
        item = _ITEM.fullmatch(line)
        if item and text:
            yield head, text
            text = ""
        if item:
            mark = "-" if item[2] in "-*" else item[2]
            head, text = f"{item[1]}{mark} ", item[3]
        else:
            text = f"{text} {line.strip()}".strip()
    yield head, text


def _paragraph(head: str, text: str, width: int) -> str:
    return _wrap(_plain(text), head, " " * len(head), width)


def _wrap(text: str, first: str, later: str, width: int) -> str:
    return textwrap.fill(
        text, width, initial_indent=first, subsequent_indent=later,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _plain(text: str) -> str:
    """Without marks, but those of code, which say where it begins and ends."""
    return _BOLD.sub(r"\1\2", _LINK.sub(r"\1", text)).replace("\\|", "|")


def _table(lines: list[str], width: int) -> str:
    """In columns where they fit; else the first cell, and below it what the others say of it."""
    rows = [_cells(line) for line in lines]
    head, body = rows[0], rows[2:]
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    if sum(widths) + 2 * len(widths) <= width:
        shown = [head, *body] if any(head) else body
        return "\n".join(_columns(row, widths) for row in shown)
    return "\n".join(_entry(row, head, width) for row in body)


def _cells(line: str) -> list[str]:
    cells = [_plain(cell.strip()) for cell in _CELL_END.split(line)[1:-1]]
    return [cells[0].replace("`", ""), *cells[1:]]


def _columns(row: list[str], widths: list[int]) -> str:
    return "  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip()


def _entry(row: list[str], head: list[str], width: int) -> str:
    lines = [_wrap(row[0], "", "    ", width)]
    for name, cell in zip(head[1:], row[1:], strict=True):
        label = f"{name}: " if len(row) > 2 and name else ""
        if cell not in ("", _NOTHING):
            lines.append(_wrap(f"{label}{cell}", "    ", "    ", width))
    return "\n".join(lines)
