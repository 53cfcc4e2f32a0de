"""Repositories that an agent made below a project: kept, but harmless.

git runs programs that a repository's own configuration, hooks or attributes name, whenever a
prompt or the owner enters the directory. What can name one is taken out.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable

from cagewrap import beneath
from cagewrap.gitsync.configrules import is_allowed, remotes_of
from cagewrap.gitsync.configtext import CONFIG_BYTES, ConfigRefusedError, parse, quote, split_key
from cagewrap.holding import tree

_HARMLESS = {
    ("core", "repositoryformatversion"), ("core", "filemode"), ("core", "bare"),
    ("core", "logallrefupdates"), ("core", "ignorecase"), ("core", "precomposeunicode"),
    ("core", "symlinks"), ("core", "worktree"), ("core", "autocrlf"), ("core", "eol"),
    ("core", "safecrlf"), ("core", "sparsecheckout"), ("core", "sparsecheckoutcone"),
    ("extensions", "objectformat"), ("extensions", "refstorage"), ("extensions", "partialclone"),
    ("extensions", "noop"), ("index", "sparse"), ("index", "version"),
    ("remote", "promisor"), ("remote", "partialclonefilter"),
    ("submodule", "active"), ("submodule", "url"), ("gc", "auto"), ("init", "defaultbranch"),
    ("lfs", "repositoryformatversion"),
}  # fmt: skip
"""Section and name of keys that name no program, beside what a project's own repository may get."""
_MODULES_DEPTH = 4

Hold = Callable[[str], None]
"""Takes the path of a file from the project's root: keep it, and remove it from the project."""


def harmless_config(text: str) -> tuple[str, list[str]]:
    """The text of a configuration without what can name a program, and the keys that went.

    It is written anew from what was understood: nothing that git reads in another way stays.
    """
    try:
        found = parse(text)
    except ConfigRefusedError:
        return "", ["all of it"]
    addresses = [key for key, values in found.items() if is_allowed(key, values, ())]
    remotes = remotes_of(addresses)
    kept: dict[str, list[tuple[str, str]]] = {}
    gone: list[str] = []
    for key, values in found.items():
        section, subsection, name = split_key(key)
        is_plain = all(value.isprintable() and "::" not in value for value in values)
        is_known = (section, name) in _HARMLESS and is_plain and subsection.isprintable()
        if is_known or is_allowed(key, values, remotes):
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


def _header(section: str, subsection: str) -> str:
    if not subsection:
        return f"[{section}]"
    escaped = subsection.replace("\\", "\\\\").replace('"', '\\"')
    return f'[{section} "{escaped}"]'


def tame(root: int, path: str, since_ns: int, hold: Hold) -> list[str]:
    """Make the git directory at a path harmless, as far as it changed since; what was done."""
    done: list[str] = []
    try:
        fd = beneath.open_dir(root, path.split("/"))
    except OSError:
        return []
    try:
        done += _tame_config(fd, path, "config", since_ns, hold)
        if _is_new(fd, "commondir", since_ns):
            hold(f"{path}/commondir")
            done.append(f"{path}/commondir")
        done += _tame_hooks(fd, path, since_ns, hold)
        for below in _modules(fd):
            done += tame(root, f"{path}/{below}", since_ns, hold)
    finally:
        os.close(fd)
    return done


def _tame_config(fd: int, path: str, name: str, since_ns: int, hold: Hold) -> list[str]:
    if not _is_new(fd, name, since_ns):
        return []
    try:
        content = beneath.read_regular(fd, name, CONFIG_BYTES)
    except OSError:  # a symlink, a FIFO
        hold(f"{path}/{name}")
        return [f"{path}/{name}"]
    text, gone = harmless_config(content.decode("utf-8", "surrogateescape"))
    if not gone:
        return []
    hold(f"{path}/{name}")
    beneath.write_regular(fd, name, text.encode("utf-8", "surrogateescape"), 0o644)
    return [f"{path}/{name}: {', '.join(gone[:5])}"]


def _tame_hooks(fd: int, path: str, since_ns: int, hold: Hold) -> list[str]:
    try:
        found = beneath.stat_at(fd, "hooks")
    except OSError:
        return []
    if not stat.S_ISDIR(found.st_mode):
        hold(f"{path}/hooks")
        return [f"{path}/hooks"]
    done: list[str] = []
    hooks = beneath.open_dir(fd, ("hooks",))
    try:
        for name in os.listdir(hooks):
            is_sample = name.endswith(".sample")
            if not is_sample and _is_new(hooks, name, since_ns):
                with contextlib.suppress(OSError):
                    hold(f"{path}/hooks/{name}")
                    done.append(f"{path}/hooks/{name}")
    finally:
        os.close(hooks)
    return done


def _modules(fd: int) -> list[str]:
    """The git directories of submodules, and of work trees, below one."""
    found: list[str] = []
    todo: list[tuple[tuple[str, ...], int]] = [(("modules",), 0)]
    while todo:
        parts, depth = todo.pop()
        try:
            directory = beneath.open_dir(fd, parts)
        except OSError:
            continue
        try:
            names = os.listdir(directory)
        finally:
            os.close(directory)
        if "HEAD" in names:
            found.append("/".join(parts))
        elif depth < _MODULES_DEPTH:
            todo += [((*parts, name), depth + 1) for name in names]
    return found


def _is_new(fd: int, name: str, since_ns: int) -> bool:
    found = tree.stamp_at(fd, name)
    return found is not None and found[4] >= since_ns
