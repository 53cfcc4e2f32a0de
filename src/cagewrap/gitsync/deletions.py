"""Refs that the cage has no more: what is deleted on the host for it, and what stays."""

from __future__ import annotations

import contextlib
import os

from cagewrap import beneath
from cagewrap.gitsync.context import Context, Place
from cagewrap.gitsync.merge import Changes
from cagewrap.gitsync.names import VALUE_BYTES, is_ref_name, parse_value
from cagewrap.gitsync.refs import Refs, change_refs
from cagewrap.gitsync.side import Side

LOG_BYTES = 64 << 20
"""A longer log of a ref is not carried."""
_BRANCHES = "refs/heads/"
_SAVED = "refs/cagewrap/"
_STASH = "stash@"
"""What is before a stash's id among what the agent has made."""
_WORK_TREES_LIMIT = 500
_NAMED = 3
"""So many refs are named in a note."""


def keep_vanished(
    place: Place, changes: Changes[str], cage: Refs, context: Context, *, is_broken: bool
) -> None:
    """Delete nothing where the cage's repository is broken or being removed: all branches are
    gone, or one that is checked out, which git deletes for nobody."""
    gone = [name for name, value in changes.to_host.items() if value is None]
    if not gone or not (is_broken or _is_broken(place, gone, cage, context)):
        return
    for name in gone:
        del changes.to_host[name]
        if context.may_refill:
            changes.to_cage[name] = place.base["refs"][name]
    if context.may_refill:
        context.note("refs had vanished from the agent's git: it has got yours again")
    else:
        context.state("refs have vanished from the agent's git: yours stay as they are")
        context.is_refillable = True


def _is_broken(place: Place, gone: list[str], cage: Refs, context: Context) -> bool:
    if not any(name.startswith(_BRANCHES) for name in gone):
        return False
    heads = _checked_out(place.cage, context)
    has_branches = any(name.startswith(_BRANCHES) for name in cage.values)
    return not has_branches or heads is None or not heads.isdisjoint(gone)


def _checked_out(side: Side, context: Context) -> set[str] | None:
    """The branches that are, in all work trees; None when HEAD is none."""
    try:
        head = parse_value(side.read("HEAD", VALUE_BYTES) or b"", context.oid_length)
    except OSError:
        head = None
    if head is None:
        return None
    found = {head}
    with contextlib.suppress(OSError):
        fd = beneath.open_dir(side.fd, ["worktrees"])
        try:
            names = os.listdir(fd)[:_WORK_TREES_LIMIT]
        finally:
            os.close(fd)
        for name in names:
            with contextlib.suppress(OSError):
                content = side.read(f"worktrees/{name}/HEAD", VALUE_BYTES) or b""
                found.add(parse_value(content, context.oid_length) or "")
    return {value.removeprefix("ref: ") for value in found}


def save_deleted(place: Place, changes: Changes[str], host: Refs, context: Context) -> None:
    """Keep what is to be deleted on the host, under another name, with its log.

    Not what the agent made itself and the owner never touched.
    """
    made = set(place.base.get("made", ()))
    saved: dict[str, str] = {}
    taken = Refs({name: v for name, v in host.values.items() if name.startswith(_SAVED)})
    above = {part for name in taken.values for part in _above(name)}
    for name, value in changes.to_host.items():
        was = host.values.get(name, "ref:")
        if value is None and name not in made and not was.startswith("ref:"):
            saved[name] = _new_name(name, was, taken, above, context)
    wanted = {new: host.values[name] for name, new in saved.items()}
    failed = change_refs(place.host, host, wanted, context.oid_length)
    for name, new in list(saved.items()):
        if new in failed or not is_ref_name(new) or not _save_log(place.host, name, new):
            del changes.to_host[name], saved[name]
            context.state(f"the git ref {name} was not deleted: it could not be kept as {new}")
        else:
            host.values[new] = host.values[name]
            changes.to_cage[new] = host.values[name]
    if saved:
        _tell(saved, context)
    _remember_made(place, changes, host)


def save_stashes(place: Place, known: bytes, content: bytes, context: Context) -> None:
    """Keep those of the owner's that the agent's list has no more. Raises OSError."""
    was, now = _stashes(known), _stashes(content)
    made = set(place.base.get("made", ()))
    lost = sorted(was - now - {name.removeprefix(_STASH) for name in made})
    wanted = {f"refs/cagewrap/{context.session}/deleted/stash-{oid[:12]}": oid for oid in lost}
    failed = change_refs(place.host, Refs(), wanted, context.oid_length)
    if any(why != "changed" for why in failed.values()):  # that is: it is there already
        raise OSError(f"the owner's stashes cannot be kept: {failed}")
    if lost:
        context.note(f"the agent deleted stashes of yours: kept as {', '.join(wanted)}")
    stashes = {_STASH + oid for oid in now & (now - was | {n.removeprefix(_STASH) for n in made})}
    place.base["made"] = sorted({n for n in made if not n.startswith(_STASH)} | stashes)


def _stashes(log: bytes) -> set[str]:
    return {line.split(b" ", 2)[1].decode() for line in log.splitlines()}


def _new_name(name: str, value: str, taken: Refs, above: set[str], context: Context) -> str:
    rest = name.removeprefix("refs/")
    found = f"{_SAVED}{context.session}/deleted/{rest}"
    is_free = taken.values.get(found, value) == value and found not in above
    if not is_free or any(part in taken.values for part in _above(found)):
        found = f"{_SAVED}{context.session}-{value[:8]}/deleted/{rest}"
    return found


def _above(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:end]) for end in range(2, len(parts))]


def _save_log(host: Side, name: str, new: str) -> bool:
    """Add it to the log of the new name; a ref without a log has nothing to keep."""
    try:
        content = host.read(f"logs/{name}", LOG_BYTES)
        if content:
            host.append(f"logs/{new}", content)
    except OSError:
        return False
    return True


def _tell(saved: dict[str, str], context: Context) -> None:
    names = list(saved)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    below = f"below refs/cagewrap/{context.session}/deleted"
    where = saved[names[0]] if len(names) == 1 else below
    context.note(f"the agent deleted {', '.join(names[:_NAMED])}{more}: kept as {where}")


def _remember_made(place: Place, changes: Changes[str], host: Refs) -> None:
    """Which refs are the agent's own: it made them, and the host has not changed them since."""
    made = set(place.base.get("made", ()))
    made -= changes.to_cage.keys()
    for name, value in changes.to_host.items():
        if value is None:
            made.discard(name)
        elif name not in host.values and not name.startswith(_SAVED):
            made.add(name)
    place.base["made"] = sorted(made)
