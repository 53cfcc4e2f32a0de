"""Carrying refs, HEAD and their logs between the two sides of a place."""

from __future__ import annotations

import re

from cagewrap.gitsync.carryhead import read_head
from cagewrap.gitsync.context import Context, Place
from cagewrap.gitsync.deletions import LOG_BYTES, keep_vanished, save_deleted, save_stashes
from cagewrap.gitsync.merge import Changes, merge
from cagewrap.gitsync.names import (
    is_carried_to_cage,
    is_carried_to_host,
    is_ref_name,
)
from cagewrap.gitsync.refs import (
    Refs,
    TooManyError,
    change_refs,
    current_ref,
    in_the_way,
    read_refs,
)
from cagewrap.gitsync.side import Side

_LOG_TAIL = 200
_LOG = re.compile(
    rb"(?>[0-9a-f]{40,64} [0-9a-f]{40,64} [^<>\0\n]*<[^<>\0\n]*> [0-9]{1,20} [+-][0-9]{4}"
    rb"(?:\t[^\0\n]*)?\n)*+"
)
_STASH = "refs/stash"
_HEAD_LOG = "logs/HEAD"
_STASH_LOG = "logs/refs/stash"


def carry_refs(place: Place, context: Context) -> tuple[Refs, Refs] | None:
    """Carry every ref; what both sides have now, or None when they cannot be read."""
    try:
        host = read_refs(place.host, context.oid_length)
        cage = read_refs(place.cage, context.oid_length)
    except (TooManyError, OSError) as why:
        context.state(f"git refs are not carried: {str(why) or 'there are too many'}")
        return None
    base = place.base.setdefault("refs", {})
    changes = merge(
        base,
        host.values,
        cage.values,
        may_reach_host=is_carried_to_host,
        may_reach_cage=is_carried_to_cage,
    )
    _keep_what_is_hidden(changes.to_host, cage)
    _keep_what_is_hidden(changes.to_cage, host)
    keep_vanished(place, changes, cage, context, is_broken=_is_packed_lost(place))
    error = place.bring() if changes.to_host or changes.conflicts else None
    _save_conflicts(place, changes, host, context, error)
    _refuse_collisions(changes, host, context)
    _refuse_missing(changes.to_host, host, place, context, error)
    save_deleted(place, changes, host, context)
    failed = change_refs(place.host, host, changes.to_host, context.oid_length)
    failed |= change_refs(place.cage, cage, changes.to_cage, context.oid_length)
    _remember(base, host, cage, changes, failed)
    _tell_failed(failed, context)
    if changes.to_host or changes.to_cage:
        context.has_written = True
        _carry_logs(place, changes, failed, context)
    return host, cage


def _tell_failed(failed: dict[str, str], context: Context) -> None:
    for name, why in failed.items():
        context.is_busy |= why in ("busy", "changed", "full")
        context.is_full |= why == "full"
        if why not in ("busy", "changed"):
            text = "no space is left" if why == "full" else why
            context.state(f"the git ref {name} was not carried: {text}")


def _is_packed_lost(place: Place) -> bool:
    """git never removes packed-refs: where it is gone, what was in it is not deleted."""
    is_there = place.cage.stamp("packed-refs") is not None
    if is_there:
        place.base["packed"] = True
    return not is_there and place.base.get("packed", False)


def _keep_what_is_hidden(changes: dict[str, str | None], refs: Refs) -> None:
    """Where something lies that is no ref or directory, what was there is not deleted."""
    for bad in refs.bad:
        for name in [n for n in changes if n == bad or n.startswith(bad + "/")]:
            del changes[name]


def _save_conflicts(
    place: Place, changes: Changes[str], host: Refs, context: Context, error: OSError | None
) -> None:
    """Keep what the cage had under another name, on both sides. Where the host cannot have it, the
    cage keeps what it has, until another run."""
    saved: dict[str, str] = {}
    wanted: dict[str, str | None] = {}
    for name, (_, value) in changes.conflicts.items():
        if value is None or value.startswith("ref:"):
            continue
        saved[name] = _name_of_saved(name, value, host, context)
        if is_ref_name(saved[name]):
            wanted[saved[name]] = value
    _refuse_missing(wanted, host, place, context, error)
    failed = change_refs(place.host, host, wanted, context.oid_length)
    _tell_failed(failed, context)
    _apply(host, wanted, failed)
    for name, new in saved.items():
        if new in failed or new not in wanted:
            changes.to_cage.pop(name, None)
            continue
        changes.to_cage[new] = wanted[new]
        context.has_written = True
        context.note(
            f"{name} was changed by you and by the agent: yours stays, the agent's is {new}"
        )


def _name_of_saved(name: str, value: str, host: Refs, context: Context) -> str:
    rest = name.removeprefix("refs/")
    saved = f"refs/cagewrap/{context.session}/{rest}"
    if host.values.get(saved, value) != value or in_the_way(saved, host.values):
        saved = f"refs/cagewrap/{context.session}-{value[:8]}/{rest}"
    return saved


def _refuse_collisions(changes: Changes[str], host: Refs, context: Context) -> None:
    """A ref `a/b` that the cage made cannot be beside the host's `a`."""
    new = [name for name, value in changes.to_host.items() if value and name not in host.values]
    staying = {name for name in host.values if changes.to_host.get(name, "") is not None}
    above = {part for name in staying for part in _above(name)}
    for name in new:
        if name in above or any(part in staying for part in _above(name)):
            del changes.to_host[name]
            context.state(f"the git ref {name} was not carried: another of yours is in its way")


def _refuse_missing(
    to_host: dict[str, str | None],
    host: Refs,
    place: Place,
    context: Context,
    error: OSError | None,
) -> None:
    """A ref to an object that is not there, or to one that leads to such, would break the host's
    git. error: why objects could not be brought."""
    known = set(host.values.values())
    for name, value in list(to_host.items()):
        if value is None or value in known or value.startswith("ref:"):
            continue
        if error:
            del to_host[name]
            context.state(f"the git ref {name} was not carried: {context.failed(error)}")
        elif not place.has_object(value):
            del to_host[name]
            context.state(f"the git ref {name} was not carried: its object {value} is missing")


def _above(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:end]) for end in range(2, len(parts))]


def _remember(
    base: dict[str, str],
    host: Refs,
    cage: Refs,
    changes: Changes[str],
    failed: dict[str, str],
) -> None:
    """What both have now becomes what is compared with next time."""
    _apply(host, changes.to_host, failed)
    _apply(cage, changes.to_cage, failed)
    if host.values == base:
        return
    for name in {*base, *host.values}.difference(failed):
        there = host.values.get(name)
        if there is None:
            base.pop(name, None)
        elif there == cage.values.get(name) or not is_carried_to_host(name):
            base[name] = there


def _apply(refs: Refs, done: dict[str, str | None], failed: dict[str, str]) -> None:
    for name in done.keys() - failed.keys():
        value = done[name]
        if value is None:
            refs.values.pop(name, None)
        else:
            refs.values[name] = value


def _carry_logs(
    place: Place, changes: Changes[str], failed: dict[str, str], context: Context
) -> None:
    """The logs of the refs that were carried. What goes wrong with a log stops nothing."""
    for done, source, target in (
        (changes.to_host, place.cage, place.host),
        (changes.to_cage, place.host, place.cage),
    ):
        for name, value in done.items():
            if name in failed:
                continue
            try:
                if value is None:
                    target.remove("logs/" + name)
                elif name == _STASH and target is place.host:
                    _carry_stashes(place, context)
                else:
                    upto = value if target is place.host else ""
                    carry_log(source, target, "logs/" + name, upto, whole=name == _STASH)
            except OSError:
                continue


def _carry_stashes(place: Place, context: Context) -> None:
    """The agent's list of stashes becomes the host's; what it lacks of the owner's is kept."""
    content = place.cage.read(_STASH_LOG, LOG_BYTES)
    if content is not None and _LOG.fullmatch(content):
        save_stashes(place, place.host.read(_STASH_LOG, LOG_BYTES) or b"", content, context)
        place.host.write(_STASH_LOG, content)


def carry_log(source: Side, target: Side, path: str, upto: str = "", *, whole: bool = False) -> int:
    """Bring a log up to date: its new lines, or all of it if there is none yet or `whole`.

    upto: the ref's value: what the log says of later ones is left for when they are carried. How
    much of the log that is then; 0 for none or all of it. Raises OSError.
    """
    content = source.read(path, LOG_BYTES)
    if content is None:
        return 0
    size = len(content)
    if upto:
        content = _until(content, upto.encode())
    upto_size = len(content) if len(content) < size else 0
    known = target.read(path, LOG_BYTES)
    if not content or known == content or not _LOG.fullmatch(content):
        return upto_size
    if known is None or whole:
        target.write(path, content)
        return upto_size
    at = len(known)
    if len(content) > at and content[max(0, at - _LOG_TAIL) : at] == known[-_LOG_TAIL:]:
        target.append(path, content[at:])
    else:
        last = content[content.rfind(b"\n", 0, len(content) - 1) + 1 :]
        if not known.endswith(last):
            target.append(path, last)
    return upto_size


def _until(log: bytes, oid: bytes) -> bytes:
    """A log up to the last line that says that the ref became `oid`."""
    at = len(log)
    while (at := log.rfind(b" " + oid + b" ", 0, at)) >= 0:
        if at - log.rfind(b"\n", 0, at) - 1 == len(oid):
            return log[: log.find(b"\n", at) + 1]
    return b""


def carry_logs(place: Place, context: Context) -> None:
    """Carry the new lines of HEAD's log, and all of the stash's, whose list is its log."""
    known = place.base.setdefault("logs", {})
    for path in (_HEAD_LOG, _STASH_LOG):
        was = known.get(path, [-1, -1])
        now = _sizes(place, path)
        if now == was:
            continue
        upto = 0
        try:
            upto = _carry_grown(place, path, was, now, context)
        except OSError as error:
            context.failed(error)
            if context.is_full:
                continue
        now = _sizes(place, path)
        if upto:
            now[1] = upto
        context.has_written |= now != was
        known[path] = now


def _carry_grown(place: Place, path: str, was: list[int], now: list[int], context: Context) -> int:
    """How much of the cage's log was carried, if not all."""
    is_whole = path == _STASH_LOG
    if now[0] != was[0]:
        carry_log(place.host, place.cage, path, whole=is_whole)
    elif place.leads and is_whole:
        _carry_stashes(place, context)
    elif place.leads and now[1] > was[1]:
        return carry_log(place.cage, place.host, path, _head_oid(place, context))
    return 0


def _head_oid(place: Place, context: Context) -> str:
    """What the host's HEAD leads to; "" if that is not known."""
    head = read_head(place.host, context) or ""
    name = head.removeprefix("ref: ")
    if name == head:
        return head
    try:
        return current_ref(place.main, name, context.oid_length) or ""
    except OSError:
        return ""


def _sizes(place: Place, path: str) -> list[int]:
    """Of a log on the host and in the cage; -1 for none."""
    stamps = (place.host.stamp(path), place.cage.stamp(path))
    return [stamp[2] if stamp else -1 for stamp in stamps]
