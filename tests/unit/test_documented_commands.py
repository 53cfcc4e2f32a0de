"""Every command of cagewrap's and every flag that the documentation names exists."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from cagewrap.cli import VERBS, cagewrap
from cagewrap.flags import FLAGS

REPO = Path(__file__).resolve().parents[2]
PAGES = [
    *(path for path in sorted((REPO / "docs").rglob("*.md")) if "decisions" not in path.parts),
    REPO / "README.md",
    REPO / "CHANGELOG.md",
]
WRAP_FLAGS = {row.flag for row in FLAGS}
TOP_FLAGS = {"--help", "--version"}
OTHERS_FLAGS = {
    *("--try", "--yes", "--prefix", "--user"),  # ./install
    *("--quick", "--only", "--runs", "--cagewrap", "--assert", "--kind"),  # the benchmark
    *("--dangerously-skip-permissions", "--resume", "--continue", "--mcp-config"),  # claude
    *("--security-opt", "--reference", "--submodule"),  # podman, git
    *("--agent", "--cwd", "--no-terminal", "--no-fs", "--ttl"),  # acpx
    *("--mcp",),  # shrooms-agent
}
"""That may stand alone in a code span and are not of cagewrap's own."""


def code(page: str) -> Iterator[str]:
    """The lines of code blocks but of what a command prints, and the code spans."""
    for language, text in re.findall(r"^ *```(\w*).*\n((?:.*\n)*?) *```$", page, re.MULTILINE):
        if language == "console":
            yield from re.findall(r"^ *\$ (.*)", text, re.MULTILINE)
        elif language != "text":
            yield from text.splitlines()
    prose = re.sub(r"^ *```(?:.*\n)*? *```$", "", page, flags=re.MULTILINE)
    yield from re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose)


def commands(line: str) -> Iterator[list[str]]:
    """The words behind each `cagewrap` that is a command of its own in a line."""
    parts = line.replace(", then: ", "; ")
    for text in re.findall(r"(?:^|[\s;&|(])cagewrap((?: [^;&|#]*)?)", parts):
        lexer = shlex.shlex(text, posix=True, punctuation_chars=False)
        lexer.whitespace_split, lexer.commenters = True, ""
        try:
            yield list(lexer)
        except ValueError:  # the quote ends in what was cut off: an agent's word
            yield text.split()


def wrong(words: list[str]) -> str:
    """What of a command does not exist; "" for nothing."""
    own = words[: words.index("--")] if "--" in words else words
    if not own or own[0] in ("…", "[FLAGS]", "[flags]", "VERB", "into"):
        return ""
    if own[0].startswith("-"):
        unknown = flags(own) - WRAP_FLAGS - TOP_FLAGS
        return f"flags {unknown}" if unknown else ""
    command = cagewrap.get_command(click.Context(cagewrap), own[0].strip(",.:"))
    if command is None:
        return f"verb {own[0]}"
    if isinstance(command, click.Group) and own[1:]:
        command = command.commands.get(own[1].strip(",.:"))
        if command is None:
            return f"verb {own[0]} {own[1]}"
    unknown = flags(own) - options(command) - (WRAP_FLAGS if own[0] == "shim" else set())
    return f"flags {unknown} of {own[0]}" if unknown else ""


def flags(words: list[str]) -> set[str]:
    found = (re.match(r"\[?(--[a-z][a-z-]*)", word) for word in words)
    return {one[1] for one in found if one}


def options(command: click.Command) -> set[str]:
    own = {name for parameter in command.params for name in parameter.opts}
    if isinstance(command, click.Group):
        own = own.union(*map(options, command.commands.values()))
    return own | {"--help"}


def known_flags() -> set[str]:
    context = click.Context(cagewrap)
    verbs = (cagewrap.get_command(context, name) for name in VERBS)
    return WRAP_FLAGS.union(TOP_FLAGS, *(options(verb) for verb in verbs if verb))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(REPO)))
def test_commands_and_flags_exist(page: Path) -> None:
    known = known_flags() | OTHERS_FLAGS
    failures = []
    for line in code(page.read_text()):
        failures += [f"{line}: no {what}" for what in map(wrong, commands(line)) if what]
        if re.match(r"--[a-z]", line) and flags([line]) - known:
            failures.append(f"{line}: no such flag")
    assert failures == []


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("cagewrap --network none -- claude --bogus", ""),
        ("cagewrap --netwrk none -- claude", "flags {'--netwrk'}"),
        ("cd x && cagewrap ls --sise", "flags {'--sise'} of ls"),
        ("cagewrap image bild", "verb image bild"),
        ("cagewrap stopp", "verb stopp"),
        ("cagewrap shell . -- sh -c 'a --bogus'", ""),
    ],
)
def test_what_does_not_exist_is_found(line: str, what: str) -> None:
    assert "".join(map(wrong, commands(line))) == what
