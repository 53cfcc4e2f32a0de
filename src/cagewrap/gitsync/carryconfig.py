"""Carrying a repository's configuration: the host's whole, of the cage's what is allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cagewrap.gitsync.configrules import is_allowed, remotes_of
from cagewrap.gitsync.configtext import (
    CONFIG_BYTES,
    ConfigRefusedError,
    change,
    parse,
)
from cagewrap.gitsync.context import Context, Place
from cagewrap.gitsync.merge import merge
from cagewrap.gitsync.side import BusyError, Side

Values = tuple[str, ...]
CHANGES_LIMIT = 100


def read_config(side: Side) -> tuple[str, dict[str, Values]]:
    """The text, and what it says. Raises OSError, ConfigRefusedError."""
    content = side.read("config", CONFIG_BYTES) or b""
    text = content.decode("utf-8", "surrogateescape")
    return text, parse(text)


def carry_config(place: Place, context: Context) -> None:
    """Carry what changed on either side."""
    try:
        host_text, host = read_config(place.host)
        cage_text, cage = read_config(place.cage)
    except (OSError, ConfigRefusedError) as error:
        context.state(f"git's configuration is not carried: {error}")
        return
    base = {key: tuple(values) for key, values in place.base.get("config", {}).items()}
    changes = merge(base, host, cage)
    allowed = _first(allowed_changes(changes.to_host, host), context)
    # Where both changed a key that is held back, the cage keeps its own.
    both = {key: cages for key, (_, cages) in changes.conflicts.items()}
    held = both.keys() - allowed_changes(both, host).keys()
    to_cage = {key: value for key, value in changes.to_cage.items() if key not in held}
    try:
        if allowed:
            write_config(place.host, host_text, allowed)
            host |= {key: values for key, values in allowed.items() if values}
            host = {key: values for key, values in host.items() if allowed.get(key, values)}
            context.has_written = True
        if to_cage:
            write_config(
                place.cage, cage_text, {key: value or () for key, value in to_cage.items()}
            )
            context.has_written = True
    except BusyError:
        context.is_busy = True
        return
    except OSError as error:
        context.state(f"git's configuration is not carried: {context.failed(error)}")
        return
    place.base["config"] = {key: list(values) for key, values in host.items()}


def _first(allowed: dict[str, Values], context: Context) -> dict[str, Values]:
    """At most so many at a time: each is a new look at the text, which may be an agent's."""
    if len(allowed) > CHANGES_LIMIT:
        context.has_written = True  # the rest is for the next run
    return dict(list(allowed.items())[:CHANGES_LIMIT])


def allowed_changes(
    wanted: Mapping[str, Values | None], host: Mapping[str, Values]
) -> dict[str, Values]:
    """The changes that may reach the host, () for a key that is removed."""
    keys = set(host) | {key for key, values in wanted.items() if values}
    remotes = remotes_of(keys)
    return {
        key: values or ()
        for key, values in wanted.items()
        if is_allowed(key, values or (), remotes)
    }


def write_config(side: Side, text: str, changes: Mapping[str, Sequence[str]]) -> None:
    """Change keys of a configuration whose text is known. Raises BusyError when it is another one
    by now, OSError."""
    with side.locked("config") as lock:
        now = (side.read("config", CONFIG_BYTES) or b"").decode("utf-8", "surrogateescape")
        if now != text:
            raise BusyError
        lock.write(change(text, changes).encode("utf-8", "surrogateescape"))


def oid_length_of(host: Side) -> int:
    """Hex digits of the host's object ids."""
    return 64 if _extension(host, "objectformat") == "sha256" else 40


def has_files_of_refs(host: Side) -> bool:
    """Whether its refs are in files, as git's have always been."""
    return _extension(host, "refstorage") in ("", "files")


def _extension(host: Side, name: str) -> str:
    try:
        return read_config(host)[1].get(f"extensions.{name}", ("",))[-1].lower()
    except (OSError, ConfigRefusedError):
        return ""
