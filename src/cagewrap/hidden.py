"""Hidden paths: what of the project the cage shows as empty, wherever it is visible.

A hidden file is covered by an empty read-only file, a hidden directory by an empty read-only
tmpfs. The directories on the way there are bound onto themselves, because a cover stays with the
file it covers: without that an agent renames the directory, and after the next start the cover
lies at a place where nothing is left to hide.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator
from dataclasses import dataclass

from cagewrap.errors import MountRefusedError
from cagewrap.model import Mount
from cagewrap.project import Project
from cagewrap.protected import lies_in

HIDDEN_LIMIT = 256
"""Covers in one cage; each is a mount."""


@dataclass(frozen=True, slots=True)
class Hidden:
    """Mounts to add, and sentences on patterns that hide nothing."""

    mounts: tuple[Mount, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Match:
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
    outermost = [
        match
        for match in found.values()
        if not any(other != match.path and lies_in(match.path, other) for other in found)
    ]
    covers: dict[str, Mount] = {}
    for match in sorted(outermost, key=lambda match: match.path):
        shown = tuple(_cover(match, mounts, empty_file))
        covers.update((mount.target, mount) for mount in shown if mount.target not in covers)
        if not shown:
            notes.append(f"hide {match.pattern!r} leads to {match.path!r}, not in the cage anyway.")
    _refuse_too_many(outermost)
    return Hidden(mounts=tuple(covers.values()), notes=tuple(notes))


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


def _walk(above: str, parts: tuple[str, ...], notes: list[str]) -> Iterator[str]:
    """Paths below `above` that match. `**` is any depth; it enters no symlink and no `.git`."""
    if not parts:
        yield above
        return
    first, rest = parts[0], parts[1:]
    if not any(sign in first for sign in "*?["):
        path = os.path.join(above, first)
        if os.path.lexists(path):
            yield from _walk(path, rest, notes)
        return
    if first == "**":
        yield from _walk(above, rest, notes)
    for entry in _entries(above, notes):
        if first == "**":
            if entry.is_dir(follow_symlinks=False) and entry.name != ".git":
                yield from _walk(entry.path, parts, notes)
        elif fnmatch.fnmatchcase(entry.name, first):
            yield from _walk(entry.path, rest, notes)


def _entries(path: str, notes: list[str]) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except NotADirectoryError:
        return []
    except OSError as error:
        notes.append(f"hide cannot look into {path!r}: {error.strerror}.")
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
