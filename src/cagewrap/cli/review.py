"""`cagewrap review`: what is held back of a session, and what becomes of it."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from cagewrap import sessions
from cagewrap.cli.sessionwords import session_words
from cagewrap.errors import CagewrapError, SessionError, UsageError
from cagewrap.held import Held, Provider, find, printable
from cagewrap.paths import paths_from_env
from cagewrap.report import envelope
from cagewrap.review import pending, providers


@click.command()
@click.argument("session", required=False, default="", shell_complete=session_words)
@click.option("--accept", "accepted", multiple=True, metavar="PATH", help="Hand this over.")
@click.option("--accept-all", is_flag=True, help="Hand everything over that was shown.")
@click.option("--drop", "dropped", multiple=True, metavar="PATH", help="Throw this away.")
@click.option("--drop-all", is_flag=True, help="Throw everything away.")
@click.option("--json", "as_json", is_flag=True, help="As one JSON object on stdout.")
def review(
    *,
    session: str,
    accepted: tuple[str, ...],
    accept_all: bool,
    dropped: tuple[str, ...],
    drop_all: bool,
    as_json: bool,
) -> None:
    """Show what an agent wrote that this machine would run, and hand it over or throw it away.

    What is held back is not in the project: the agent sees its own version of the directories
    (.claude, .vscode and the like), and yours of single files. PATH is as it is shown. Only what
    was shown, and was not changed since, can be handed over.
    """
    if accept_all + drop_all > 1 or ((accept_all or drop_all) and (accepted or dropped)):
        raise UsageError(
            "--accept-all, --drop-all and single paths exclude each other.", "cagewrap review"
        )
    env = dict(os.environ)
    paths = paths_from_env(env, os.getuid())
    record = sessions.select(sessions.list_records(paths), session, os.getcwd())
    found = providers(paths, record)
    if accept_all or drop_all:
        every = tuple(one.path for one in _listed(found, is_look=False))
        accepted, dropped = (every, ()) if accept_all else ((), every)
    if accepted or dropped:
        _settle(found, accepted, dropped, as_json=as_json)
        return
    shown = pending(found)
    if as_json:
        click.echo(envelope(None, session=record.name, held=[one._asdict() for one in shown]))
        return
    _show(record.name, shown)


def _listed(found: Sequence[Provider], *, is_look: bool) -> tuple[Held, ...]:
    """What is held back. is_look: a person sees it."""
    return tuple(one for provider in found for one in provider.pending(is_look=is_look))


def _settle(
    found: Sequence[Provider],
    accepted: tuple[str, ...],
    dropped: tuple[str, ...],
    *,
    as_json: bool,
) -> None:
    done: list[dict[str, str]] = []
    failure: CagewrapError | None = None
    wishes = [("accepted", path) for path in accepted] + [("dropped", path) for path in dropped]
    for what, path in wishes:
        try:
            provider = find(found, path)
            said = provider.accept(path) if what == "accepted" else provider.drop(path)
        except CagewrapError as error:
            failure = failure or error
            continue
        except OSError as error:
            failure = failure or SessionError(f"{path!r}: {error}.", "cagewrap review")
            continue
        done.append({"what": what, "path": path, "detail": said})
        if not as_json:
            click.echo(_line(f"{what} {path}" + (f" ({said})" if said else "")))
    if as_json:
        click.echo(envelope(failure, done=done))
    if failure is not None:
        raise failure


def _show(name: str, shown: tuple[Held, ...]) -> None:
    if not shown:
        click.echo("nothing is held back", err=True)
        return
    for one in shown:
        click.echo(_line(f"{one.path}  [{one.kind}: {one.why}]"))
        if one.diff:
            click.echo(printable(one.diff))
    click.echo(
        f"{len(shown)} held back; cagewrap review {name} --accept PATH | --accept-all | "
        "--drop PATH | --drop-all",
        err=True,
    )


def _line(text: str) -> str:
    """One line, whatever an agent has called its files."""
    return printable(text).replace("\n", "\\n")
