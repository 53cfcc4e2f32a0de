"""What a cage's private copy of a git directory has that the host's has not, and may not get
unasked: configuration, hooks, and what an agent had in a conflict."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from cagewrap import beneath
from cagewrap.digests import sha256
from cagewrap.gitsync.carryconfig import Values, read_config, write_config
from cagewrap.gitsync.configtext import ConfigRefusedError, quote
from cagewrap.gitsync.pair import Pair, opened
from cagewrap.gitsync.refs import Refs, TooManyError, change_refs, read_refs_below
from cagewrap.gitsync.side import Side

FILE_BYTES = 1 << 20
_FILES = ("config.worktree", "info/attributes", "info/exclude", "info/sparse-checkout")
_NAMES_LIMIT = 500


class Difference(NamedTuple):
    """path: as it is shown (`.git/config:core.editor`, `.git/hooks/pre-commit`, a ref). place,
    name: where it is. kind: "git config", "git file" or "git conflict". digest: of the cage's
    version."""

    path: str
    place: str
    name: str
    kind: str
    digest: str


def differences(pair: Pair) -> list[Difference]:
    """All of it. Raises OSError."""
    found: list[Difference] = []
    for place, host, cage in _places(pair):
        found += _config(place, host, cage)
        found += _files(place, host, cage)
    with opened(pair.host) as host:
        for name, value in _saved(pair, host).values.items():
            found.append(Difference(name, "", name, "git conflict", value))
    return found


def explain(pair: Pair, one: Difference) -> str:
    """The difference as a unified diff; "" if it cannot be shown."""
    if one.kind == "git conflict":
        return ""
    with _opened_place(pair, one.place) as (host, cage):
        if one.kind == "git config":
            old, new = (_lines(side, one.name) for side in (host, cage))
        else:
            old, new = (_text(side, one.name) for side in (host, cage))
    import difflib

    return "".join(difflib.unified_diff(old, new, f"a/{one.path}", f"b/{one.path}"))


def accept(pair: Pair, one: Difference) -> None:
    """Give the host what the cage has. Raises OSError, ConfigRefusedError."""
    with _opened_place(pair, one.place) as (host, cage):
        if one.kind == "git config":
            values = read_config(cage)[1].get(one.name, ())
            if _digest_values(values) != one.digest:
                raise FileNotFoundError("the agent has changed it meanwhile")
            write_config(host, read_config(host)[0], {one.name: values})
            return
        content, is_program = _content(cage, one.name)
        if _digest(content, is_program=is_program) != one.digest:
            raise FileNotFoundError("the agent has changed it meanwhile")
        _put(host, one.name, content, is_program=is_program)


def drop(pair: Pair, one: Difference) -> None:
    """Give the cage what the host has. Raises OSError, ConfigRefusedError."""
    if one.kind == "git conflict":
        for path in (pair.host, pair.copy):
            with opened(path) as side:
                refs = Refs(values={one.name: one.digest})
                change_refs(side, refs, {one.name: None}, len(one.digest))
                side.remove(f"logs/{one.name}")
        return
    with _opened_place(pair, one.place) as (host, cage):
        if one.kind == "git config":
            values = read_config(host)[1].get(one.name, ())
            write_config(cage, read_config(cage)[0], {one.name: values})
        else:
            content, is_program = _content(host, one.name)
            _put(cage, one.name, content, is_program=is_program)


def _places(pair: Pair) -> Iterator[tuple[str, Side, Side]]:
    for place in ("", *pair.modules):
        with contextlib.suppress(OSError), _opened_place(pair, place) as (host, cage):
            yield place, host, cage


@contextmanager
def _opened_place(pair: Pair, place: str) -> Iterator[tuple[Side, Side]]:
    with opened(pair.host) as host, opened(pair.copy) as cage:
        host_below, cage_below = host.below(place), cage.below(place)
        try:
            yield host_below, cage_below
        finally:
            host_below.close()
            cage_below.close()


def _config(place: str, host: Side, cage: Side) -> Iterator[Difference]:
    try:
        theirs, ours = read_config(cage)[1], read_config(host)[1]
    except (OSError, ConfigRefusedError):
        return
    for key in sorted({*theirs, *ours}):
        values = theirs.get(key, ())
        if values != ours.get(key, ()) and theirs:
            path = f".git/{place + '/' if place else ''}config:{key}"
            yield Difference(path, place, key, "git config", _digest_values(values))


def _files(place: str, host: Side, cage: Side) -> Iterator[Difference]:
    names = {f"hooks/{name}" for side in (host, cage) for name in _hooks(side)}
    for name in (*sorted(names), *_FILES):
        try:
            theirs, ours = _content(cage, name), _content(host, name)
        except OSError:
            continue  # what is no regular file of ordinary size is nobody's work
        if theirs != ours:
            path = f".git/{place + '/' if place else ''}{name}"
            yield Difference(
                path, place, name, "git file", _digest(theirs[0], is_program=theirs[1])
            )


def _hooks(side: Side) -> list[str]:
    try:
        fd = beneath.open_dir(side.fd, ["hooks"])
    except OSError:
        return []
    try:
        names = os.listdir(fd)
    finally:
        os.close(fd)
    return [name for name in names if not name.endswith((".sample", ".lock"))][:_NAMES_LIMIT]


def _saved(pair: Pair, host: Side) -> Refs:
    """The refs that keep this session's side of conflicts."""
    prefix = f"refs/cagewrap/{pair.session}"
    found = Refs()
    for oid_length in (40, 64):
        with contextlib.suppress(OSError, TooManyError):
            found.values |= read_refs_below(host, "refs/cagewrap", oid_length).values
    found.values = {
        name: value
        for name, value in found.values.items()
        if name.startswith((prefix + "/", prefix + "-"))
    }
    return found


def _content(side: Side, name: str) -> tuple[bytes | None, bool]:
    """A file's content, and whether it is a program."""
    content = side.read(name, FILE_BYTES)
    if content is None:
        return None, False
    with side.parent(name) as (fd, last):
        return content, bool(beneath.stat_at(fd, last).st_mode & 0o100)


def _put(side: Side, name: str, content: bytes | None, *, is_program: bool) -> None:
    if content is None:
        side.remove(name)
        return
    side.write(name, content)
    if is_program:
        with side.parent(name) as (fd, last):
            file = beneath.open_regular(fd, last)
            os.fchmod(file, 0o755)
            os.close(file)


def _lines(side: Side, key: str) -> list[str]:
    values = read_config(side)[1].get(key, ())
    return [f"{key} = {quote(value)}\n" for value in values]


def _text(side: Side, name: str) -> list[str]:
    content, _ = _content(side, name)
    lines = (content or b"").decode("utf-8", "replace").splitlines()
    return [line + "\n" for line in lines]


def _digest_values(values: Values) -> str:
    return _digest("\0".join(values).encode("utf-8", "surrogateescape"), is_program=False)


def _digest(content: bytes | None, *, is_program: bool) -> str:
    return sha256(b"%d" % is_program + (content or b"")).hexdigest() if content else ""
