"""Repositories that an agent made below a project: kept, but harmless.

git runs programs that a repository's own configuration, hooks or attributes name, whenever a
prompt or the owner enters the directory. What can name one is taken out.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from cagewrap import beneath
from cagewrap.gitsync.configrules import is_allowed, is_remote_name, remotes_of
from cagewrap.gitsync.configtext import ConfigRefusedError, parse, quote, split_key
from cagewrap.holding import tree

_HARMLESS = {
    ("core", "repositoryformatversion"), ("core", "filemode"), ("core", "bare"),
    ("core", "logallrefupdates"), ("core", "ignorecase"), ("core", "precomposeunicode"),
    ("core", "symlinks"), ("core", "worktree"), ("core", "autocrlf"), ("core", "eol"),
    ("core", "safecrlf"), ("core", "sparsecheckout"), ("core", "sparsecheckoutcone"),
    ("extensions", "objectformat"), ("extensions", "refstorage"), ("extensions", "partialclone"),
    ("extensions", "noop"), ("extensions", "worktreeconfig"), ("index", "sparse"),
    ("index", "version"), ("remote", "promisor"), ("remote", "partialclonefilter"),
    ("submodule", "active"), ("submodule", "url"), ("gc", "auto"), ("init", "defaultbranch"),
    ("lfs", "repositoryformatversion"),
}  # fmt: skip
"""Section and name of keys that name no program, beside what a project's own repository may get."""
CONFIG_BYTES = 1 << 17
"""A longer one of a repository below the root is nobody's work, and long to understand."""
_DEPTH = 64
_LINE_BYTES = 4096


class Hold(Protocol):
    """Takes the path of a file from the project's root: keep it, and remove it from the project,
    or leave that to the caller, who puts another in its place at once."""

    def __call__(self, path: str, *, is_replaced: bool = False) -> None:
        """Raises OSError."""


def harmless_config(
    text: str,
    may_be_work_tree: Callable[[str], bool] = lambda _path: False,
    is_inside: Callable[[str], bool] = lambda _path: False,
) -> tuple[str, list[str]]:
    """The text of a configuration without what can name a program, and the keys that went.

    It is written anew from what was understood: nothing that git reads in another way stays.
    may_be_work_tree: whether git may write files there (`core.worktree`). is_inside: whether a
    remote's address leads into the project, where what it runs is looked at as well.
    """
    try:
        found = parse(text)
    except ConfigRefusedError:
        return "", ["all of it"]
    local = {key for key, values in found.items() if _is_local(key, values, is_inside)}
    addresses = {key for key, values in found.items() if is_allowed(key, values, ())}
    remotes = remotes_of(addresses | local)
    kept: dict[str, list[tuple[str, str]]] = {}
    gone: list[str] = []
    for key, values in found.items():
        section, subsection, name = split_key(key)
        is_plain = all(value.isprintable() and "::" not in value for value in values)
        is_known = (section, name) in _HARMLESS and is_plain and subsection.isprintable()
        if section == "remote":  # git takes the name of one without an address for its address
            is_known = is_known and is_remote_name(subsection)
        if key == "core.worktree":
            is_known = all(map(may_be_work_tree, values))
        if is_known or key in local or is_allowed(key, values, remotes):
            kept.setdefault(_header(section, subsection), []).extend(
                (name, value) for value in values
            )
        else:
            gone.append(key)
    lines = [
        line
        for header, pairs in kept.items()
        for line in (header, *(f"\t{name} = {quote(value)}" for name, value in pairs))
    ]
    return "\n".join(lines) + "\n" if lines else "", gone


def _is_local(key: str, values: Sequence[str], is_inside: Callable[[str], bool]) -> bool:
    section, name, what = split_key(key)
    is_address = section == "remote" and bool(name) and what in ("url", "pushurl")
    return is_address and is_remote_name(name) and all(map(is_inside, values))


def _header(section: str, subsection: str) -> str:
    if not subsection:
        return f"[{section}]"
    escaped = subsection.replace("\\", "\\\\").replace('"', '\\"')
    return f'[{section} "{escaped}"]'


def is_repository(names: Collection[str]) -> bool:
    """Whether git may obey a directory with these names in it: a repository, the private part of
    a work tree, or what such a part may say is common."""
    return {"objects", "refs"} <= set(names) or ("HEAD" in names and "commondir" in names)


def tame(root: int, path: str, since_ns: int, hold: Hold) -> list[str]:
    """Make the git directory at a path harmless, as far as it changed since; what was done.

    Raises OSError, after all else was done, where an agent prevents something.
    """
    fd = beneath.reach_dir(root, path.split("/"))
    done: list[str] = []
    failures: list[OSError] = []

    def look(one: Callable[[], list[str]]) -> None:
        try:
            done.extend(one())
        except FileNotFoundError:
            return
        except OSError as error:
            failures.append(error)

    def is_place(value: str) -> bool:
        return _is_place(root, path, value)

    def is_inside(value: str) -> bool:
        return _is_inside(root, path, value)

    def harmless(text: str) -> tuple[str, list[str]]:
        return harmless_config(text, is_place, is_inside)

    try:
        for name in ("config", "config.worktree"):
            look(lambda name=name: _tame_config(fd, path, name, since_ns, hold, harmless))  # type: ignore[misc]
        look(lambda: _tame_common(fd, path, since_ns, hold))
        look(lambda: _tame_hooks(fd, path, since_ns, hold))
    finally:
        os.close(fd)
    if failures:
        raise failures[0]
    return done


def tame_all(root: int, path: str, since_ns: int, hold: Hold) -> list[str]:
    """The same with all that lies below it, such as the repositories of submodules."""
    done: list[str] = []
    todo = [(path, 0)]
    while todo:
        one, depth = todo.pop()
        with contextlib.suppress(OSError):
            fd = beneath.open_dir(root, one.split("/"))
            with os.scandir(fd) as listed:
                found = {entry.name: entry.is_dir(follow_symlinks=False) for entry in listed}
            os.close(fd)
            if depth < _DEPTH:
                todo += [(f"{one}/{name}", depth + 1) for name, is_dir in found.items() if is_dir]
            if one == path or is_repository(found):
                done += tame(root, one, since_ns, hold)
    return done


def _is_inside(root: int, path: str, value: str) -> bool:
    """Whether a remote's address is a path that leads into the project, below its root."""
    if not value.isprintable() or value.startswith("-") or ":" in value:
        return False
    project = os.readlink(f"/proc/self/fd/{root}")
    above, is_git_dir, _ = f"{path}/".partition("/.git/")
    real = beneath.real_path(os.path.join(project, above if is_git_dir else path, value))
    return real.startswith(project + "/") and not real.startswith(project + "/.git/")


def _is_place(root: int, path: str, value: str) -> bool:
    """Whether a work tree may lie there: where the repository lies itself, or below; an owner's
    `git checkout` would write the agent's files elsewhere."""
    above, is_inside, _ = f"{path}/".partition("/.git/")
    place = above if is_inside else path.rpartition("/")[0]
    named = os.path.normpath(os.path.join(path, value))
    if not place or value.startswith("/") or not (named + "/").startswith(place + "/"):
        return False
    if not value.isprintable() or ".git" in named.split("/"):
        return False
    try:
        os.close(beneath.reach_dir(root, named.split("/")))
    except OSError:
        return False
    return True


def _tame_config(
    fd: int,
    path: str,
    name: str,
    since_ns: int,
    hold: Hold,
    harmless: Callable[[str], tuple[str, list[str]]],
) -> list[str]:
    if not _is_new(fd, name, since_ns):
        return []
    try:
        content = beneath.read_regular(fd, name, CONFIG_BYTES)
    except OSError:  # a symlink, a FIFO
        hold(f"{path}/{name}")
        return [f"{path}/{name}"]
    text, gone = harmless(content.decode("utf-8", "surrogateescape"))
    if not gone:
        return []
    hold(f"{path}/{name}", is_replaced=True)  # git never finds none
    beneath.write_regular(fd, name, text.encode("utf-8", "surrogateescape"), 0o644)
    return [f"{path}/{name}: {', '.join(gone[:5])}"]


def _tame_common(fd: int, path: str, since_ns: int, hold: Hold) -> list[str]:
    """A work tree's private part lies in `worktrees` of the repository that it belongs to."""
    if not _is_new(fd, "commondir", since_ns):
        return []
    if path.rpartition("/")[0].endswith("/worktrees"):
        with contextlib.suppress(OSError):
            text = beneath.read_regular(fd, "commondir", _LINE_BYTES).rstrip(b"\r\n")
            if text in (b"../..", b""):  # with nothing in it yet, git refuses it
                return []
    hold(f"{path}/commondir")
    return [f"{path}/commondir"]


def _tame_hooks(fd: int, path: str, since_ns: int, hold: Hold) -> list[str]:
    found = beneath.stat_at(fd, "hooks")
    if not stat.S_ISDIR(found.st_mode):
        hold(f"{path}/hooks")
        return [f"{path}/hooks"]
    done: list[str] = []
    hooks = beneath.open_dir(fd, ("hooks",))
    try:
        for name in os.listdir(hooks):
            is_sample = name.endswith(".sample")
            if not is_sample and _is_new(hooks, name, since_ns):
                hold(f"{path}/hooks/{name}")
                done.append(f"{path}/hooks/{name}")
    finally:
        os.close(hooks)
    return done


def _is_new(fd: int, name: str, since_ns: int) -> bool:
    found = tree.stamp_at(fd, name)
    return found is not None and found[4] >= since_ns
