"""Hidden paths: what of the project the cage shows as empty, wherever it is visible.

A hidden file is covered by an empty read-only file, a hidden directory by an empty read-only
tmpfs. The directories on the way there are bound onto themselves, because a cover stays with the
file it covers: without that an agent renames the directory, and after the next start the cover
lies at a place where nothing is left to hide.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from cagewrap.errors import MountRefusedError
from cagewrap.model import Mount
from cagewrap.project import Project
from cagewrap.protected import lies_in

HIDDEN_LIMIT = 256
"""Covers in one cage; each is a mount."""
WALK_LIMIT = 200_000
"""Directories that the patterns of one cage look into: an agent can make any number."""


class Hidden(NamedTuple):
    """Mounts to add, and sentences on patterns that hide nothing."""

    mounts: tuple[Mount, ...] = ()
    notes: tuple[str, ...] = ()


class _Match(NamedTuple):
    """Something to hide: the real path, and the pattern that found it."""

    path: str
    pattern: str


def find_hidden(
    project: Project, patterns: tuple[str, ...], mounts: tuple[Mount, ...], *, empty_file: str
) -> Hidden:
    """The covers for `patterns` over everything that `mounts` shows. Reads directories only.

    empty_file: an empty file of cagewrap's own that covers hidden files.
    """
    found: dict[str, _Match] = {}
    notes: list[str] = []
    for pattern in patterns:
        matches = tuple(_find_matches(project, pattern, notes))
        found.update((match.path, match) for match in matches)
        if not matches:
            notes.append(
                f"hide {pattern!r} matches nothing in {project.path!r} now. What appears there "
                "later is visible until: cagewrap recreate"
            )
    outermost = _outermost(found.values())
    _refuse_too_many(outermost)
    covers: dict[str, Mount] = {}
    for match in outermost:
        shown = tuple(_cover(match, mounts, empty_file))
        covers.update((mount.target, mount) for mount in shown if mount.target not in covers)
        if not shown:
            notes.append(f"hide {match.pattern!r} leads to {match.path!r}, not in the cage anyway.")
    return Hidden(mounts=tuple(covers.values()), notes=tuple(notes))


def _outermost(matches: Iterable[_Match]) -> list[_Match]:
    """Those that lie in no other, sorted."""
    found: list[_Match] = []
    for match in sorted(matches, key=lambda match: match.path + "/"):
        if not found or not lies_in(match.path, found[-1].path):
            found.append(match)
    return sorted(found, key=lambda match: match.path)


def _refuse_too_many(matches: list[_Match]) -> None:
    if len(matches) > HIDDEN_LIMIT:
        raise MountRefusedError(
            f"hide finds {len(matches)} files, for example {matches[-1].path!r}; a cage can hide "
            f"{HIDDEN_LIMIT}.",
            "hide the directories they are in: hide = ['DIR/']",
        )


def _find_matches(project: Project, pattern: str, notes: list[str]) -> Iterator[_Match]:
    """Everything that the pattern means now, resolved."""
    parts = _split(project, pattern)
    for path in _walk(project.path, parts, notes):
        try:
            real = os.path.realpath(path, strict=True)
        except OSError:
            continue
        if pattern.endswith("/") and not os.path.isdir(real):
            continue
        if lies_in(project.path, real):
            raise MountRefusedError(
                f"hide {pattern!r} would hide the whole project {project.path!r}.",
                "name files or directories in the project: hide = ['.env']",
            )
        yield _Match(real, pattern)


def _split(project: Project, pattern: str) -> tuple[str, ...]:
    """The pattern's parts below the project."""
    relative = pattern
    if pattern.startswith("/"):
        roots = [root for root in (project.path, *project.spelled) if lies_in(pattern, root)]
        if not roots:
            raise MountRefusedError(
                f"hide {pattern!r} is not in the project {project.path!r}.",
                "give a path relative to the project, or put it into that project's table",
            )
        relative = pattern.removeprefix(roots[0])
    parts: list[str] = []
    for part in relative.split("/"):
        if part == "..":
            raise MountRefusedError(
                f"hide {pattern!r} has '..' in it.",
                "give the path below the project itself: hide = ['.env']",
            )
        if part not in ("", ".") and not (part == "**" and parts[-1:] == ["**"]):
            parts.append(part)
    return tuple(parts)


def _walk(project: str, parts: tuple[str, ...], notes: list[str]) -> Iterator[str]:
    """Paths below the project that match. `**` is any depth; it enters no symlink and no `.git`.

    An agent can make directories deeper than Python recurses, so what is left to do is a list.
    """
    left = [(project, parts)]
    seen = 0
    while left:
        above, wanted = left.pop()
        if not wanted:
            yield above
        elif any(sign in wanted[0] for sign in "*?["):
            seen += 1
            if seen > WALK_LIMIT:
                raise MountRefusedError(
                    f"hide looks into more than {WALK_LIMIT} directories below {project!r}, the "
                    f"last of them {_shortened(above)!r}.",
                    "name the files or directories without ** or *: hide = ['.env']",
                )
            left += reversed(list(_steps(above, wanted, notes)))
        elif os.path.lexists(path := os.path.join(above, wanted[0])):
            left.append((path, wanted[1:]))


def _steps(
    above: str, wanted: tuple[str, ...], notes: list[str]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What a directory and a pattern in it lead to: each path, and what must match below it."""
    first, rest = wanted[0], wanted[1:]
    if first == "**":
        yield above, rest
    for entry in _entries(above, notes):
        if first == "**":
            if entry.is_dir(follow_symlinks=False) and entry.name != ".git":
                yield entry.path, wanted
        elif fnmatch.fnmatchcase(entry.name, first):
            yield entry.path, rest


def _shortened(path: str) -> str:
    return path if len(path) <= 200 else "…" + path[-200:]


def _entries(path: str, notes: list[str]) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except NotADirectoryError:
        return []
    except OSError as error:
        notes.append(f"hide cannot look into {_shortened(path)!r}: {error.strerror}.")
        return []


def _cover(match: _Match, mounts: tuple[Mount, ...], empty_file: str) -> Iterator[Mount]:
    """Covers for every place where the hidden path is visible, and what holds them there."""
    for mount in mounts:
        if mount.kind != "bind" or not lies_in(match.path, mount.source):
            continue
        below = match.path[len(mount.source) :]
        target = mount.target + below
        if _showing(target, mounts) is not mount:
            continue
        _refuse_overlap(match, target, mounts)
        yield from _pins(mount, below)
        why = f"hidden: {match.pattern}"
        if os.path.isdir(match.path):
            yield Mount("", target, readonly=True, kind="tmpfs", why=why)
        else:
            yield Mount(empty_file, target, readonly=True, why=why)


def _showing(target: str, mounts: tuple[Mount, ...]) -> Mount:
    """The mount whose content is seen at `target`: the innermost around it."""
    around = [mount for mount in mounts if lies_in(target, mount.target)]
    return max(around, key=lambda mount: len(mount.target))


def _refuse_overlap(match: _Match, target: str, mounts: tuple[Mount, ...]) -> None:
    for mount in mounts:
        if lies_in(mount.target, target):
            raise MountRefusedError(
                f"hide {match.pattern!r} would hide {mount.target!r}, where {mount.source!r} is "
                f"mounted ({mount.why}).",
                "take one of the two out of the configuration",
            )


def _pins(mount: Mount, below: str) -> Iterator[Mount]:
    """Each directory between the mount and the hidden path, bound onto itself."""
    if mount.readonly:
        return
    parts = below.split("/")[1:-1]
    for depth in range(1, len(parts) + 1):
        inner = "/" + "/".join(parts[:depth])
        yield Mount(
            mount.source + inner,
            mount.target + inner,
            readonly=False,
            why="holds a hidden path in its place",
        )
