"""What is held back of a session's directories and files, for `cagewrap review`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from cagewrap import beneath
from cagewrap.errors import SessionError
from cagewrap.held import DIFF_BYTES, Held
from cagewrap.holding import tree
from cagewrap.holding.directory import HeldDirectory, held_directories, locked, store_dir
from cagewrap.holding.names import why
from cagewrap.holding.places import Place
from cagewrap.holding.shelf import (
    HeldFile,
    forget_held,
    held_content,
    held_files,
    refresh,
)
from cagewrap.holding.tree import write_private
from cagewrap.holding.watch import Watch
from cagewrap.paths import Paths
from cagewrap.sessions import Record


class HeldFiles:
    """A provider (`cagewrap.held.Provider`)."""

    def __init__(self, paths: Paths, record: Record) -> None:
        """Looks at nothing yet."""
        self._record = record
        self._store = store_dir(paths.cage_dir(record.name))
        self._place = Place(paths, record.project)
        self._watch = Watch(record.project, self._place.dir, self._store)
        self._seen_file = os.path.join(self._store, "seen.json")

    def pending(self, *, is_look: bool = True) -> Sequence[Held]:
        """All that differs. What is shown is remembered: only that can be accepted."""
        found: list[Held] = []
        seen: dict[str, str] = {}
        refresh(self._watch.files_dir)
        with self._opened() as root:
            for copy, path, digest in self._changes():
                full = f"{copy.path}/{path}"
                found.append(Held("file", full, why(full), self._diff_copy(root, copy, path)))
                seen[full] = digest
            for one in held_files(self._watch.files_dir):
                found.append(Held("file", one.path, one.why, self._diff_held(root, one)))
                seen[one.path] = one.digest
        if is_look and os.path.isdir(self._store):
            write_private(self._seen_file, json.dumps(seen).encode())
        return sorted(found, key=lambda one: one.path)

    def count(self) -> int:
        """How many `review` would show."""
        directories = sum(len(copy.pending()) for copy in held_directories(self._store))
        return len(held_files(self._watch.files_dir)) + directories

    def accept(self, path: str) -> str:
        """Copy the agent's version to the project."""
        seen = self._seen().get(path)
        with self._opened() as root, locked(self._place.dir):
            copy, inner = self._find_copy(path)
            if copy is not None:
                self._accept_copy(root, copy, inner, seen)
                return ""
            held = self._find_held(path)
            if held.digest != seen:
                raise _changed(path)
            if held.digest == tree.MISSING:
                raise SessionError(
                    f"{path!r} was no ordinary file, or a large one, and was not kept.",
                    f"cagewrap review --drop {path!r}",
                )
            self._watch.accept(root, held)
            forget_held(self._watch.files_dir, held)
        return ""

    def drop(self, path: str) -> str:
        """Give the cage the host's version again."""
        with self._opened() as root, locked(self._place.dir):
            copy, inner = self._find_copy(path)
            if copy is None:
                forget_held(self._watch.files_dir, self._find_held(path))
                return ""
            with _opened_copy(copy) as target:
                try:
                    with _below(root, copy) as host:
                        tree.copy(host, target, inner)
                        copy.agree(host, inner)
                except FileNotFoundError:  # the host has no such directory
                    tree.remove(target, inner)
        return ""

    # -- directories -------------------------------------------------------------------------------

    def _changes(self) -> Iterator[tuple[HeldDirectory, str, str]]:
        for copy in held_directories(self._store):
            for path, digest in sorted(copy.pending().items()):
                yield copy, path, digest

    def _find_copy(self, path: str) -> tuple[HeldDirectory | None, str]:
        for copy in held_directories(self._store):
            inner = path.removeprefix(copy.path + "/")
            if inner != path and inner in copy.pending():
                return copy, inner
        return None, ""

    def _accept_copy(self, root: int, copy: HeldDirectory, path: str, seen: str | None) -> None:
        with _opened_copy(copy) as source:
            digest = tree.digest(source, path)
            content = tree.read(source, path)
        if digest != seen or (
            digest[:2] in ("f:", "x:")
            and tree.file_digest(content or b"", is_program=digest[0] == "x") != digest
        ):
            raise _changed(f"{copy.path}/{path}")
        if digest == tree.TOO_LARGE:
            raise SessionError(
                f"{copy.path}/{path} is too large to be looked at.",
                f"look at {os.path.join(copy.copy_dir, path)!r}, and copy it yourself",
            )
        with _below(root, copy, make=True) as host:
            if digest == tree.MISSING:
                tree.remove(host, path)
            elif digest.startswith("l:"):
                tree.put_link(host, path, link_text(content))
            else:
                is_program = digest[0] == "x"
                tree.put(host, path, content or b"", is_program=is_program, is_public=True)
            copy.agree(host, path)

    def _diff_copy(self, root: int, copy: HeldDirectory, path: str) -> str:
        try:
            with _below(root, copy) as host:
                before = tree.read(host, path)
        except OSError:
            before = None
        with _opened_copy(copy) as source:
            after = tree.read(source, path)
        return difference(f"{copy.path}/{path}", before, after)

    # -- files -------------------------------------------------------------------------------------

    def _find_held(self, path: str) -> HeldFile:
        for one in held_files(self._watch.files_dir):
            if one.path == path:
                return one
        raise SessionError(f"Nothing is held back at {path!r}.", "cagewrap review")

    def _diff_held(self, root: int, held: HeldFile) -> str:
        content = held_content(self._watch.files_dir, held)
        if held.digest.startswith("l:"):
            content = b"symlink to " + content + b"\n"
        return difference(held.path, tree.read(root, held.path), content)

    def _seen(self) -> dict[str, str]:
        try:
            with open(self._seen_file, encoding="utf-8") as file:
                return dict(json.load(file))
        except (OSError, ValueError):
            return {}

    @contextmanager
    def _opened(self) -> Iterator[int]:
        root = tree.open_project(self._record.project)
        try:
            yield root
        finally:
            os.close(root)


def difference(path: str, before: bytes | None, after: bytes | None) -> str:
    """A unified difference, "" for what is not text."""
    try:
        old, new = ((one or b"").decode() for one in (before, after))
    except UnicodeDecodeError:
        return ""
    path = path.replace("\n", "\\n")
    import difflib

    lines = difflib.unified_diff(
        old.splitlines(keepends=True),
        new.splitlines(keepends=True),
        "/dev/null" if before is None else f"a/{path}",
        "/dev/null" if after is None else f"b/{path}",
    )
    text = "".join(line if line.endswith("\n") else line + "\n" for line in lines)
    return text[:DIFF_BYTES]


def link_text(content: bytes | None) -> str:
    """The text of a symlink that `tree.read` read."""
    return os.fsdecode((content or b"").removeprefix(b"symlink to ").removesuffix(b"\n"))


def look_at_all(store: str) -> None:
    """Look at what an agent has written in its copies, so that `count` need not."""
    for copy in held_directories(store):
        copy.pending()


def _changed(path: str) -> SessionError:
    return SessionError(
        f"{path!r} is not what `cagewrap review` has shown: it was not shown yet, or an agent has "
        "changed it since.",
        "cagewrap review",
    )


@contextmanager
def _below(root: int, copy: HeldDirectory, *, make: bool = False) -> Iterator[int]:
    parts = copy.path.split("/")
    if make:
        tree.make_directories(root, parts, 0o777)
    fd = beneath.open_dir(root, parts)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _opened_copy(copy: HeldDirectory) -> Iterator[int]:
    fd = beneath.open_root(copy.copy_dir)
    try:
        yield fd
    finally:
        os.close(fd)
