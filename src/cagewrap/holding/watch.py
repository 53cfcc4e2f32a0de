"""Single files of a project that the host runs: seen to have changed, kept, and put back.

A bind mount over a file is dropped when the host replaces that file by rename, so these are
compared instead, twice a second while an agent works. What the owner's own programs wrote while
no agent worked is the base that is put back; what changes while one works is taken for its work.
Sessions of one project share the base, and a lock.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterable

from cagewrap.diskspace import is_full
from cagewrap.holding import tree
from cagewrap.holding.leases import is_open_for_writing
from cagewrap.holding.names import DIRECTORIES, FILES, is_nested
from cagewrap.holding.shelf import (
    HELD_BYTES,
    HeldFile,
    hold,
    put_held,
    set_mode,
)
from cagewrap.holding.tree import Stamp, write_private

LINKS = (".config", ".config/mise", ".github", ".hg", "mise")
"""Directories on the way to some of the tables: they must not become symlinks."""
_TRUSTED = 64
"""Versions of one file that are remembered as the owner's."""


class Known:
    """One path. digest: of the owner's version. mode: its permissions. is_owed: the agent's was
    taken away, and the owner's is put back when there is space for it."""

    def __init__(
        self,
        digest: str = tree.MISSING,
        mode: int = 0o644,
        stamp: Stamp | None = None,
        trusted: list[str] | None = None,
        *,
        is_owed: bool = False,
    ) -> None:
        """Empty, unless it is said."""
        self.digest = digest
        self.mode = mode
        self.stamp = stamp
        self.trusted: list[str] = [] if trusted is None else trusted
        self.is_owed = is_owed


class Watch:
    """The watched files of one project, for one session. Callers hold the project's lock."""

    def __init__(self, project: str, project_store: str, store: str) -> None:
        """project_store: shared by the project's sessions. store: this session's."""
        self.project = project
        self._project_store = project_store
        self._base_file = os.path.join(project_store, "base.json")
        self._base_stamp = 0
        self.files_dir = os.path.join(store, "files")
        self.known: dict[str, Known] = {}
        self.extra: tuple[str, ...] = ()
        self.links: tuple[str, ...] = LINKS
        self.denied: list[str] = []
        """What `compare` had no right to take out, or to put back."""
        self.written: list[str] = []
        """What it found to be open for writing, with the owner's content: there is a new file of
        that content now, which nobody has open."""

    @property
    def paths(self) -> Iterable[str]:
        """What is looked at before, while and after an agent works."""
        return (*FILES, *self.links, *DIRECTORIES, *self.extra)

    def suspects(self, paths: Iterable[str]) -> list[str]:
        """Those of some files that were written while an agent worked that it must not keep."""
        known = {path for path, one in self.known.items() if one.digest != tree.MISSING}
        return [path for path in paths if path in known or is_nested(path, known=False)]

    def snapshot(self, root: int) -> None:
        """No agent works: what is there is the owner's."""
        self._read()
        is_changed = False
        for path in self.paths:
            is_changed |= self.trust(root, path)
        if is_changed:
            self._write()

    def trust_old(self, root: int, paths: Iterable[str], since_ns: int) -> None:
        """Files that were not changed since an agent began are the owner's."""
        self._read()
        is_changed = False
        for path in paths:
            is_changed |= self.trust(root, path, since_ns)
        if is_changed:
            self._write()

    def trust(self, root: int, path: str, since_ns: int = 0) -> bool:
        """Take the present version of a file for the owner's; whether that is news.

        since_ns: an agent works, since then: a file that changes meanwhile is left alone.
        """
        known = self.known.get(path)
        if known is not None and known.is_owed and not self._repay(root, path, known):
            return False
        stamp = self._stamp(root, path)
        if known is not None and known.stamp == stamp:
            return False
        if since_ns:
            digest = self._remember(root, path)
            if stamp is None or stamp[4] >= since_ns or self._stamp(root, path) != stamp:
                return False
            self.known[path] = Known(digest, stat.S_IMODE(stamp[0]), stamp, [digest])
            return True
        if known is None:
            if stamp is None:
                return False
            known = self.known[path] = Known()
        known.digest = self._remember(root, path) if stamp else tree.MISSING
        known.stamp = stamp
        if stamp:
            known.mode = stat.S_IMODE(stamp[0])
        if known.digest not in known.trusted:
            known.trusted = [*known.trusted, known.digest][-_TRUSTED:]
        return True

    def compare(self, root: int, paths: Iterable[str] = ()) -> list[str]:
        """An agent works, or did: take out what is not the owner's, and say what that was."""
        self._read()
        taken: list[str] = []
        self.denied, self.written = [], []
        is_changed = False
        for path in paths or self.paths:
            known = self.known.get(path)
            if known is not None and known.is_owed:
                is_changed |= self._repay(root, path, known)
            stamp = self._stamp(root, path)
            if stamp is None and (known is None or known.stamp is None):
                continue
            if known is None:
                known = self.known[path] = Known()
            # Its content, not its stamp: what is written to a file that is mapped into memory may
            # change no time of it.
            if stamp is not None:
                try:
                    taken += self._look(root, path, known, stamp)
                except PermissionError:
                    self.denied.append(path)
                    continue
                except OSError:  # an agent is at it: it is looked at again
                    continue
                stamp = self._stamp(root, path)
            is_changed |= known.stamp != stamp
            known.stamp = stamp
        if is_changed:
            self._write()
        return taken

    def _look(self, root: int, path: str, known: Known, stamp: Stamp) -> list[str]:
        """Take out what is not the owner's; what of it was taken."""
        digest = tree.digest(root, path, HELD_BYTES)
        if digest == tree.MISSING or digest not in known.trusted:
            self._take(root, path, known)
            return [path]
        if is_open_for_writing(root, path, is_new=known.stamp != stamp):
            found = tree.read_raw(root, path, HELD_BYTES)
            if found is not None and found[0] in known.trusted and not found[0].startswith("l:"):
                tree.put(root, path, found[1], is_program=found[0].startswith("x:"))
                if found[0] == known.digest:
                    set_mode(root, path, known.mode)
                self.written.append(path)
        return []

    def _take(self, root: int, path: str, known: Known) -> None:
        """Keep a version, as a copy that no descriptor of an agent's leads to; put back the
        owner's. On a full disk the agent's goes all the same: it may have filled it."""
        is_known = known.digest not in (tree.MISSING, tree.TOO_LARGE)
        content = self._content(known.digest) if is_known else None
        hold(root, path, self.files_dir, is_replaced=content is not None)
        if content is None:
            return
        try:
            self._put_back(root, path, known, content)
        except OSError as error:
            if not is_full(error):
                raise
            tree.unlink(root, path)
            known.is_owed = True

    def _put_back(self, root: int, path: str, known: Known, content: bytes) -> None:
        if known.digest.startswith("l:"):
            tree.put_link(root, path, os.fsdecode(content))
            return
        tree.put(root, path, content)
        with contextlib.suppress(OSError):
            set_mode(root, path, known.mode)

    def _repay(self, root: int, path: str, known: Known) -> bool:
        """Put back what could not be put back before; whether there was space, or something else
        has come to its place meanwhile."""
        content = self._content(known.digest)
        try:
            if content is not None and self._stamp(root, path) is None:
                self._put_back(root, path, known, content)
        except OSError:
            return False
        known.is_owed = False
        return True

    def accept(self, root: int, held: HeldFile) -> None:
        """The owner wants the agent's version."""
        self._read()
        known = self.known.setdefault(held.path, Known())
        known.trusted.append(held.digest)
        self._write()
        put_held(self.files_dir, held, root)
        self.trust(root, held.path)
        self._write()

    def _stamp(self, root: int, path: str) -> Stamp | None:
        """The stamp of what a watched path is; None for nothing, and for a directory."""
        found = tree.stamp_at(root, path)
        if found is None or stat.S_ISDIR(found[0]):
            return None
        if path in self.links and not stat.S_ISLNK(found[0]):
            return None
        return found

    # -- what is written down ----------------------------------------------------------------------

    def _remember(self, root: int, path: str) -> str:
        """Keep the content of a file, to be put back; its digest."""
        try:
            found = tree.read_raw(root, path, HELD_BYTES)
        except OSError:
            return tree.TOO_LARGE
        if found is None:
            return tree.MISSING
        digest, data = found
        directory = os.path.join(self._project_store, "content")
        os.makedirs(directory, mode=0o700, exist_ok=True)
        target = os.path.join(directory, digest[2:])
        if not os.path.exists(target):
            write_private(target, data)
        return digest

    def _content(self, digest: str) -> bytes | None:
        try:
            with open(os.path.join(self._project_store, "content", digest[2:]), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def _read(self) -> None:
        try:
            stamp = os.stat(self._base_file).st_mtime_ns
        except FileNotFoundError:
            return
        if stamp == self._base_stamp:
            return
        with open(self._base_file, encoding="utf-8") as file:
            written = json.load(file)
        self.known = {
            path: Known(
                one["digest"], one["mode"], tuple(one["stamp"]) if one["stamp"] else None,
                one["trusted"], is_owed=one.get("is_owed", False),
            )
            for path, one in written.items()
        }  # fmt: skip
        self._base_stamp = stamp

    def _write(self) -> None:
        value = {path: vars(one) for path, one in self.known.items()}
        write_private(self._base_file, json.dumps(value).encode())
        self._base_stamp = os.stat(self._base_file).st_mtime_ns
