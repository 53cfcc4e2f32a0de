"""`cagewrap ls`."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from cagewrap import sessions as store
from cagewrap.cli.sessions import open_sessions
from cagewrap.errors import CagewrapError
from cagewrap.manage import SessionInfo, Sessions
from cagewrap.report import envelope

if TYPE_CHECKING:
    from cagewrap.disk import Usage
    from cagewrap.image.settings import Staleness

_HEAD: tuple[str, ...] = (
    "NAME", "SESSION", "STATUS", "AGENTS", "REQUESTS", "USED", "IMAGE", "PROJECT",
)  # fmt: skip


@click.command()
@click.option("--size", "with_size", is_flag=True, help="With the disk that each takes; slower.")
@click.option("--json", "as_json", is_flag=True, help="As one JSON object on stdout.")
def ls(*, with_size: bool, as_json: bool) -> None:
    """List sessions: state, agents at work, requests of a broker, last use, image, project."""
    opened = open_sessions()
    found = opened.infos()
    usage = _measure(opened) if with_size else None
    if as_json:
        document: dict[str, object] = {"sessions": [_document(one, usage) for one in found]}
        if usage is not None:
            document["disk"] = _shared(usage)
        click.echo(envelope(None, **document, **_image_document(opened)))
        return
    if not found:
        click.echo("no sessions", err=True)
    else:
        _print_table(found, usage)
    if usage:
        click.echo(_disk_line(usage), err=True)
    for error in opened.unreadable:
        click.echo(f"{error.message}\n  fix: {error.hint}", err=True)
    note = _image_note(opened)
    if note:
        click.echo(note, err=True)


def _measure(opened: Sessions) -> Usage:
    from cagewrap import disk

    return disk.measure(opened.paths, opened.env, store.list_records(opened.paths))


def _document(info: SessionInfo, usage: Usage | None) -> dict[str, object]:
    size = usage.sessions.get(info.name) if usage else None
    return asdict(info) | ({"size_bytes": asdict(size)} if size else {})


def _shared(usage: Usage) -> dict[str, int]:
    return {
        "images_bytes": usage.images,
        "superseded_bytes": usage.superseded,
        "caches_bytes": usage.caches,
    }


def _image_document(opened: Sessions) -> dict[str, object]:
    stale = _staleness(opened)
    if stale is None:
        return {}
    return {"image": {**asdict(stale), "is_outdated": stale.is_outdated}}


def _image_note(opened: Sessions) -> str:
    stale = _staleness(opened)
    if stale is None or not stale.is_outdated:
        return ""
    return f"the recipe of {stale.name} has changed: `cagewrap image build` makes it anew"


def _staleness(opened: Sessions) -> Staleness | None:
    """None when the settings cannot be read, which `cagewrap doctor` says."""
    from cagewrap.image.settings import read_staleness

    try:
        return read_staleness(opened.paths, opened.env)
    except CagewrapError:
        return None


def _disk_line(usage: Usage) -> str:
    from cagewrap.disk import human

    sessions = sum(size.total for size in usage.sessions.values())
    text = f"sessions {human(sessions)}, images {human(usage.images)}"
    if usage.superseded:
        text += " with superseded ones, which go by: cagewrap gc"
    return text + (f", caches {human(usage.caches)}" if usage.caches else "")


def _print_table(found: Sequence[SessionInfo], usage: Usage | None) -> None:
    rows = [_HEAD, *(_row(one) for one in found)]
    if usage is not None:
        from cagewrap.disk import human

        sizes = [
            usage.sessions[one.name].total if one.name in usage.sessions else 0 for one in found
        ]
        column = ("SIZE", *(human(size) for size in sizes))
        rows = [(*row[:-2], size, *row[-2:]) for row, size in zip(rows, column, strict=True)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        click.echo(
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        )
    for one in found:
        if one.held:
            click.echo(f"{one.held} held back in {one.name}: cagewrap review {one.name}", err=True)
    for one in found:
        if one.is_keeper_other:
            click.echo(
                f"{keeper_note(one)}: it goes on as this one when they have ended and the "
                "next message comes",
                err=True,
            )
    if any(one.is_outdated for one in found):
        click.echo("* settings have changed: `cagewrap recreate NAME` applies them", err=True)


def _row(info: SessionInfo) -> tuple[str, ...]:
    status = info.status + ("*" if info.is_outdated else "")
    ports = "".join(f" :{port}" for port, _ in info.ports if port > 0)
    return (
        info.name,
        info.session or "-",
        status + ports,
        str(info.messages),
        _requests(info),
        _ago(time.time() - info.used_at),
        info.image,
        json.dumps(info.project) if not info.project.isprintable() else info.project,
    )


def keeper_note(info: SessionInfo) -> str:
    """Which keeper of another build a session has."""
    agents = "1 agent" if info.messages == 1 else f"{info.messages} agents"
    return f"{info.name} has a keeper of another build (cagewrap {info.keeper}), {agents} at work"


def _requests(info: SessionInfo) -> str:
    """How many requests its broker has had, and how many of them it refused."""
    if not info.requests:
        return "-"
    total = sum(count.requests for count in info.requests.values())
    refused = sum(count.refused for count in info.requests.values())
    return f"{total} ({refused} refused)" if refused else str(total)


def _ago(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit} ago"
    return "now"
