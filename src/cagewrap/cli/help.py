"""`cagewrap help`: pages of the documentation, and the help of verbs."""

from __future__ import annotations

import difflib
import os
import shutil

import click
from click.shell_completion import CompletionItem

from cagewrap.errors import UsageError
from cagewrap.plaintext import render, title_of
from cagewrap.topics import TOPICS, read_topic

_MOST_COLUMNS = 100


def _complete(
    _ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    return [CompletionItem(name) for name in TOPICS if name.startswith(incomplete)]


@click.command("help")
@click.argument("topic", required=False, default="", shell_complete=_complete)
@click.pass_context
def help_(ctx: click.Context, *, topic: str) -> None:
    """Show a page of the documentation, or the help of a verb: cagewrap help config.

    Without TOPIC, list what there is.
    """
    group = ctx.find_root().command
    verbs = group.list_commands(ctx) if isinstance(group, click.Group) else []
    if not topic:
        click.echo(_list())
    elif topic in TOPICS:
        text = render(read_topic(topic), min(_columns(), _MOST_COLUMNS))
        also = f"\nThe verb of this name: cagewrap {topic} --help\n" if topic in verbs else ""
        _show(text + also)
    elif topic in verbs and isinstance(group, click.Group):
        command = group.get_command(ctx, topic)
        if command is not None:
            click.echo(command.get_help(click.Context(command, ctx.parent, topic)))
    else:
        close = difflib.get_close_matches(topic, [*TOPICS, *verbs], n=1)
        hint = f"cagewrap help {close[0]}" if close else "cagewrap help"
        raise UsageError(f"There is no help for {topic!r}.", hint)


def _list() -> str:
    size = max(map(len, TOPICS))
    lines = [f"  {name.ljust(size)}  {title_of(read_topic(name))}" for name in sorted(TOPICS)]
    return "\n".join(
        ["Topics, for `cagewrap help TOPIC`:", "", *lines, "", "Commands: cagewrap --help."]
    )


def _columns() -> int:
    return shutil.get_terminal_size((80, 24)).columns


def _show(text: str) -> None:
    """Page by page for a person at a terminal."""
    if os.isatty(0) and os.isatty(1):
        click.echo_via_pager(text)
    else:
        click.echo(text, nl=False)
