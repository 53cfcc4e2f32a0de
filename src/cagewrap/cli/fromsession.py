"""`cagewrap image from-session`: a command of the group `image`."""

from __future__ import annotations

import os

import click

from cagewrap import fromsession
from cagewrap import sessions as store
from cagewrap.cli.sessionwords import session_words
from cagewrap.manage import Sessions
from cagewrap.paths import paths_from_env
from cagewrap.report import envelope


@click.command("from-session")
@click.argument("session", required=False, default="", shell_complete=session_words)
@click.argument("tag", required=False, default="")
@click.option("--json", "as_json", is_flag=True, help="As one JSON object on stdout.")
def from_session(*, session: str, tag: str, as_json: bool) -> None:
    """Make an image of what a session has installed; TAG is its name."""
    env = dict(os.environ)
    paths = paths_from_env(env, os.getuid())
    store.make_directories(paths)
    open_sessions = Sessions(paths, env)
    record = open_sessions.find(session, os.getcwd())
    name = tag or fromsession.default_tag(record)
    fromsession.make_image(open_sessions, record, name)
    if as_json:
        click.echo(envelope(None, image=name, session=record.name))
    else:
        click.echo(f"made {name} of {record.name}")
