"""`cagewrap man`: the manual page, made of the commands and the tables that the program runs by."""

from __future__ import annotations

import os
import textwrap
import time
from collections.abc import Iterator

import click

from cagewrap import __version__, errors
from cagewrap.flags import FLAGS, SETTINGS, Kind

_COLUMNS = 66  # of 80, since what is escaped is longer
_FILES = (
    ("$XDG_CONFIG_HOME/cagewrap.toml", "the settings; ~/.config/cagewrap.toml by default"),
    ("$XDG_STATE_HOME/cagewrap", "sessions and their homes; ~/.local/state/cagewrap by default"),
    ("$XDG_RUNTIME_DIR/cagewrap", "sockets of cages that run"),
)


@click.command()
@click.pass_context
def man(ctx: click.Context) -> None:
    """Print the manual page: cagewrap man | man -l -."""
    click.echo("\n".join(page(ctx.find_root())))


def page(root: click.Context) -> Iterator[str]:
    """The lines of cagewrap(1), in the language of man(7)."""
    # A build that is to come out the same says when it was made.
    made_at = time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH") or time.time()))
    date = time.strftime("%Y-%m-%d", made_at)
    yield f'.TH CAGEWRAP 1 "{date}" "cagewrap {__version__}" "User Commands"'
    yield from (".nh", ".ad l")  # no word is cut: many are names
    summary, *paragraphs = _paragraphs(root.command.help)
    yield from (".SH NAME", f"cagewrap \\- {_text(summary[0].lower() + summary[1:].rstrip('.'))}")
    yield ".SH SYNOPSIS"
    name, more = _bold("cagewrap"), f"[{_italic('ARG')}]..."
    yield f"{name} [{_italic('FLAGS')}] {_bold('--')} {_italic('COMMAND')} {more}"
    yield ".br"
    yield f"{name} {_italic('VERB')} {more}"
    yield ".SH DESCRIPTION"
    yield from _prose(paragraphs)
    yield ".SH FLAGS"
    for row in FLAGS:
        more = " (repeatable)" if row.kind in (Kind.LIST, Kind.TABLE) else ""
        yield from _entry(_option([row.flag], row.metavar), row.help + more)
    yield ".SH VERBS"
    yield from _verbs(root)
    yield ".SH ENVIRONMENT"
    for row in SETTINGS:
        if row.env:
            yield from _entry(_bold(row.env), f"as {row.flag}")
    yield ".SH FILES"
    for path, text in _FILES:
        yield from _entry(_italic(path), text)
    yield ".SH EXIT STATUS"
    yield from _prose(
        ["That of the agent, or one of these, when cagewrap could not start it or a verb failed:"]
    )
    for error in sorted(_error_classes(), key=lambda one: one.exit_code):
        yield from _entry(_bold(str(error.exit_code)), _first_sentence(error.__doc__))
    yield ".SH SEE ALSO"
    yield f"{_bold('podman')}(1), {_bold('cagewrap help')}"


def _verbs(root: click.Context) -> Iterator[str]:
    group = root.command
    assert isinstance(group, click.Group)  # noqa: S101 - cagewrap is
    for name in group.list_commands(root):
        command = group.get_command(root, name)
        if command is not None:
            yield from _verb(command, click.Context(command, root, name))


def _verb(command: click.Command, context: click.Context) -> Iterator[str]:
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.commands[name]
            yield from _verb(inner, click.Context(inner, context, name))
        return
    pieces = " ".join(command.collect_usage_pieces(context))
    yield f".SS {_text(f'{context.command_path} {pieces}')}"
    yield from _prose(_paragraphs(command.help))
    for option in command.params:
        record = option.get_help_record(context)
        if isinstance(option, click.Option) and record is not None:
            metavar = "" if option.is_flag else option.make_metavar(context)
            yield from _entry(_option([*option.opts, *option.secondary_opts], metavar), record[1])


def _error_classes() -> list[type[errors.CagewrapError]]:
    return errors.CagewrapError.__subclasses__()


def _first_sentence(text: str | None) -> str:
    return " ".join((text or "").split()).split(". ")[0].rstrip(".")


def _paragraphs(text: str | None) -> list[str]:
    return [" ".join(part.split()) for part in (text or "").strip().split("\n\n")]


def _prose(paragraphs: list[str]) -> Iterator[str]:
    for at, paragraph in enumerate(paragraphs):
        if at:
            yield ".PP"
        yield from _lines(paragraph)


def _entry(head: str, text: str) -> Iterator[str]:
    yield from (".TP", head, *_lines(text))


def _lines(text: str) -> list[str]:
    parts = textwrap.wrap(text, _COLUMNS, break_long_words=False, break_on_hyphens=False)
    return [_text(part) for part in parts]


def _option(names: list[str], metavar: str) -> str:
    shown = ", ".join(_bold(name) for name in names)
    return f"{shown} {_italic(metavar)}" if metavar else shown


def _bold(text: str) -> str:
    return rf"\fB{_text(text)}\fR"


def _italic(text: str) -> str:
    return rf"\fI{_text(text)}\fR"


def _text(text: str) -> str:
    """Any text, as what it is: nothing of it is a request or an escape."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    escaped = escaped.replace("`", "\\(ga").replace("^", "\\(ha").replace("~", "\\(ti")
    if escaped.startswith("."):
        escaped = "\\&" + escaped
    return "".join(char if char.isascii() else f"\\[u{ord(char):04X}]" for char in escaped)
