"""Which sessions a verb can be given, for a shell that completes its words."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem


def session_words(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Names of sessions, and of their containers."""
    from cagewrap.cli import completing  # with every flag there is, which no verb needs

    return completing.session_words(ctx, param, incomplete)
