"""`cagewrap stop | rm | recreate | gc | logs | port | shell | take-back`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict

import click

from cagewrap import sessions as store
from cagewrap.cli.sessionwords import session_words
from cagewrap.errors import CagewrapError, UsageError
from cagewrap.manage import Done, Sessions, run_on
from cagewrap.paths import paths_from_env
from cagewrap.report import envelope
from cagewrap.sessions import Record

_SHOWN = 20
_JSON = click.option("--json", "as_json", is_flag=True, help="As one JSON object on stdout.")
_SESSION = click.argument("session", required=False, default="", shell_complete=session_words)
_SHELL = "command -v bash >/dev/null 2>&1 && exec bash -l; exec sh -l"


def open_sessions() -> Sessions:
    """The caller's sessions."""
    env = dict(os.environ)
    paths = paths_from_env(env, os.getuid())
    store.make_directories(paths)
    return Sessions(paths, env)


def _cwd() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "/"


def _show(*, as_json: bool, failure: CagewrapError | None = None, **values: object) -> None:
    """The JSON envelope every verb has, and after it the first failure, if any."""
    if as_json:
        click.echo(envelope(failure, **values))
    if failure is not None:
        raise failure


def _report(done: Sequence[Done], *, as_json: bool, failure: CagewrapError | None = None) -> None:
    if not as_json:
        for one in done:
            click.echo(f"{one.what} {one.name}" + (f" ({one.detail})" if one.detail else ""))
    _show(as_json=as_json, failure=failure, done=[asdict(one) for one in done])


def _chosen(
    open_sessions: Sessions, names: Sequence[str], *, everything: bool, project: str = ""
) -> list[Record]:
    if everything and names:
        raise UsageError("--all and a session's name exclude each other.", "leave one out")
    records = store.list_records(open_sessions.paths)
    cwd = _cwd()
    if project:
        cwd = os.path.realpath(os.path.expanduser(project))
        records = [record for record in records if record.project == cwd]
    if everything:
        return records
    return [store.select(records, name, cwd) for name in (names or [""])]


@click.command()
@click.argument("names", nargs=-1, metavar="[SESSION]...", shell_complete=session_words)
@click.option("--all", "everything", is_flag=True, help="Every session.")
@_JSON
def stop(*, names: tuple[str, ...], everything: bool, as_json: bool) -> None:
    """Stop cages. Agents at work are ended; what was installed is kept for the next message."""
    opened = open_sessions()
    done, failure = run_on(_chosen(opened, names, everything=everything), opened.stop)
    _report(done, as_json=as_json, failure=failure)


@click.command()
@click.argument("names", nargs=-1, metavar="[SESSION]...", shell_complete=session_words)
@click.option("--all", "everything", is_flag=True, help="Every session.")
@click.option("--project", metavar="DIR", default="", help="Only sessions of this project.")
@click.option("--force", is_flag=True, help="Also while an agent is at work.")
@click.option("--take-back", "takes_back", is_flag=True, help="Make files of in-cage users yours.")
@_JSON
def rm(
    *,
    names: tuple[str, ...],
    everything: bool,
    project: str,
    force: bool,
    takes_back: bool,
    as_json: bool,
) -> None:
    """Delete sessions with all they had: container, what was installed, private HOME, logs.

    The project stays, and may be gone already. Files in it that belong to users of the cage other
    than its root are shown.
    """
    opened = open_sessions()
    records = _chosen(opened, names, everything=everything, project=project)
    done, failure = run_on(records, lambda record: opened.remove(record, force=force))
    removed = {one.name for one in done}
    foreign: list[str] = []
    for path in sorted({record.project for record in records if record.name in removed}):
        try:
            if takes_back:
                done = (*done, opened.take_back(path))
            else:
                foreign += opened.foreign_files(path)
        except CagewrapError as error:
            failure = failure or error
    if not as_json:
        _warn_of_foreign(foreign)
    if as_json:
        _show(
            as_json=True,
            failure=failure,
            done=[asdict(one) for one in done],
            foreign_files=foreign,
        )
        return
    _report(done, as_json=False, failure=failure)


def _warn_of_foreign(files: Sequence[str]) -> None:
    if not files:
        return
    click.echo(f"{len(files)} file(s) of in-cage users are in the project:", err=True)
    for path in files[:_SHOWN]:
        click.echo(f"  {path!r}", err=True)
    if len(files) > _SHOWN:
        click.echo("  …", err=True)
    click.echo("  make them yours: cagewrap take-back", err=True)


@click.command("take-back")
@click.argument("directory", required=False, default=".")
@_JSON
def take_back(*, directory: str, as_json: bool) -> None:
    """Make files below DIRECTORY that belong to in-cage users yours again."""
    path = os.path.abspath(directory)
    if os.path.islink(path):  # perhaps an agent's
        raise UsageError(
            f"{path} is a symlink, to {os.path.realpath(path)}.", "name the directory itself"
        )
    _report((open_sessions().take_back(path),), as_json=as_json)


@click.command()
@_SESSION
@click.option("--fresh", is_flag=True, help="Without what was installed.")
@_JSON
def recreate(*, session: str, fresh: bool, as_json: bool) -> None:
    """Make a cage's container anew with the settings of now, keeping what was installed."""
    opened = open_sessions()
    record = opened.find(session, _cwd())
    _report((opened.recreate(record, fresh=fresh),), as_json=as_json)


@click.command()
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@_JSON
def gc(*, dry_run: bool, as_json: bool) -> None:
    """Remove sessions whose project is gone or that were unused for `keep_for`, superseded images
    that no cage uses, and leftovers."""
    from cagewrap.image import tidy

    opened = open_sessions()
    done, failure = opened.collect(dry_run=dry_run)
    try:
        images = tidy.collect(opened.paths, opened.env, dry_run=dry_run)
    except CagewrapError as error:
        images, failure = (), failure or error
    detail = "an image that a newer one has taken the place of"
    done = (*done, *(Done("removed", image.name, detail) for image in images))
    if not (done or failure or as_json):
        click.echo("nothing to remove", err=True)
    _report(done, as_json=as_json, failure=failure)


@click.command()
@_SESSION
@_JSON
def logs(*, session: str, as_json: bool) -> None:
    """Show what the keeper of a cage wrote."""
    opened = open_sessions()
    record = opened.find(session, _cwd())
    text = opened.log(record)
    if as_json:
        _show(as_json=True, name=record.name, log=text.splitlines())
    else:
        click.echo(text, nl=False)


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) < 65536


@click.command()
@click.argument("session", shell_complete=session_words)
@click.argument("port", metavar="PORT|HOST:CAGE")
@_JSON
def port(*, session: str, port: str, as_json: bool) -> None:
    """Make a port of the cage's loopback reachable on this machine's loopback, until it stops."""
    host, _, cage = port.partition(":")
    cage = cage or host
    if not (_is_port(host) and _is_port(cage)):
        raise UsageError(f"{port!r} is not a port (1-65535) or HOST:CAGE.", "cagewrap port . 3000")
    opened = open_sessions()
    record = opened.find(session, _cwd())
    _report((opened.open_port(record, int(host), int(cage)),), as_json=as_json)


@click.command(context_settings={"ignore_unknown_options": True})
@_SESSION
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def shell(*, session: str, command: tuple[str, ...]) -> None:
    """Open a shell in a cage, or run COMMAND in it: cagewrap shell NAME -- COMMAND."""
    from cagewrap.wrap import wrap_in

    opened = open_sessions()
    record = opened.find(session, _cwd())
    words = list(command) or ["/bin/sh", "-c", _SHELL]
    if not (_cwd() + "/").startswith(record.project.rstrip("/") + "/"):
        os.chdir(record.project)
        os.environ["PWD"] = record.project
    wrap_in(record.name, words)
