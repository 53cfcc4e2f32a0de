"""Carrying which branch or commit is checked out."""

from __future__ import annotations

from cagewrap.gitsync.context import Context, Place
from cagewrap.gitsync.names import VALUE_BYTES, parse_value
from cagewrap.gitsync.refs import Refs, change_refs
from cagewrap.gitsync.side import BusyError, Side


def carry_head(place: Place, context: Context) -> None:
    """Carry which branch is checked out."""
    host = read_head(place.host, context)
    cage = read_head(place.cage, context)
    base = place.base.get("head", "")
    if host is None or host == cage:
        if host:
            place.base["head"] = host
    elif not place.leads:
        _set_head(place, place.cage, cage, host, context)
    elif host != base:
        if not cage or cage == base or _is_kept(place, host, cage, context):
            _set_head(place, place.cage, cage, host, context)
    elif cage and _is_head(cage):
        why = "" if cage.startswith("ref:") else _missing(place, cage, context)
        if why:
            context.state(f"HEAD was not carried: {why}")
        else:
            _set_head(place, place.host, host, cage, context)


def read_head(side: Side, context: Context) -> str | None:
    """An object id or `ref: NAME`; None for anything else."""
    try:
        content = side.read("HEAD", VALUE_BYTES)
    except OSError:
        return None
    return parse_value(content, context.oid_length) if content is not None else None


def _set_head(place: Place, side: Side, was: str | None, value: str, context: Context) -> None:
    try:
        with side.locked("HEAD") as lock:
            if read_head(side, context) != was:
                context.is_busy = True
                return
            lock.write((value + "\n").encode("utf-8", "surrogateescape"))
    except BusyError:
        context.is_busy = True
    except OSError as error:
        context.state(f"HEAD was not carried: {context.failed(error)}")
    else:
        context.has_written = True
        place.base["head"] = value


def _is_kept(place: Place, host: str, cage: str, context: Context) -> bool:
    """Both have another HEAD. Whether what the cage has is not lost when it gets the host's: a
    commit that no branch may lead to is kept under a name."""
    if not cage.startswith("ref:"):
        name = f"refs/cagewrap/{context.session}-{cage[:8]}/HEAD"
        why = _missing(place, cage, context)
        if not why:
            failed = change_refs(place.main, Refs(), {name: cage}, context.oid_length)
            why = failed.get(name, "")
        if why and why != "changed":  # that is: it is there already
            context.is_busy |= why == "busy"
            context.state(f"HEAD was not carried: {name} could not be made: {why}")
            return False
    context.note(f"HEAD was changed by you and by the agent: yours stays ({host})")
    return True


def _is_head(value: str) -> bool:
    """Whether it is a commit or a branch."""
    return value.startswith("ref: refs/heads/") or not value.startswith("ref:")


def _missing(place: Place, oid: str, context: Context) -> str:
    """Bring the agent's objects; why the host has not got that one now."""
    error = place.bring()
    if error:
        return context.failed(error)
    return "" if place.has_object(oid) else f"its object {oid} is missing"
