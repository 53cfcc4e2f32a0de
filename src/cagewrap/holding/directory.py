"""The private copy of one directory of the project, which the cage sees instead of it.

What the host changes is carried into the copy unless the agent changed the same file. What the
agent changes stays in the copy; the difference between what both had last (the base) and the copy
is what is held back. Callers hold the session's lock (`locked`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from cagewrap import beneath
from cagewrap.digests import sha256
from cagewrap.holding import tree
from cagewrap.holding.names import UNCOPIED
from cagewrap.holding.tree import Scan, Stamp, write_private

FEW = 300
"""So many files are all looked at before every message; of more, only the directories…"""
PENDING_BYTES = 512 << 20
"""So much of a copy is read to see what was changed in it."""
_RACY_NS = 20_000_000
"""Two changes within a kernel's clock tick may have one time stamp."""
MANY_S = 30.0
"""…and the files too, if that was longer ago."""


def store_dir(cage_dir: str) -> str:
    """Where a session keeps what is held back."""
    return os.path.join(cage_dir, "held")


@contextmanager
def locked(directory: str) -> Iterator[None]:
    """The lock of a store, made if need be."""
    os.makedirs(directory, mode=0o700, exist_ok=True)
    fd = os.open(os.path.join(directory, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def key_of(path: str) -> str:
    """A file name for any path."""
    return sha256(os.fsencode(path)).hexdigest()[:16]


class HeldDirectory:
    """One of them. `path`: of the host's directory from the project's root."""

    def __init__(self, store: str, path: str) -> None:
        """store: `store_dir` of the session. Makes nothing."""
        self.path = path
        self.dir = os.path.join(store, "directories", key_of(path))
        self.copy_dir = os.path.join(self.dir, "copy")
        self._base_file = os.path.join(self.dir, "base.json")
        self._digests_file = os.path.join(self.dir, "digests.json")
        self._base_stamp = 0
        self._left_out = set(UNCOPIED.get(path, ()))
        self._last: Scan | None = None
        self._scanned_at = 0.0
        self.base: dict[str, tuple[str, Stamp]] = {}

    @property
    def exists(self) -> bool:
        """Whether there is a copy."""
        return os.path.exists(self._base_file)

    def create(self, host: int) -> None:
        """Make the copy of the directory `host`."""
        shutil.rmtree(self.dir, ignore_errors=True)
        os.makedirs(self.copy_dir, mode=0o700)
        os.chmod(self.copy_dir, 0o755)  # noqa: S103 - for users inside; its parents are 0700
        copy = beneath.open_root(self.copy_dir)
        try:
            found = tree.scan(host, self._left_out)
            digests = tree.copy_all(host, copy, found)
        finally:
            os.close(copy)
        base = {path: (digests[path], stamp) for path, stamp in found.files.items()}
        self.base, self._last = base, found
        self._write_base()

    def leave_out(self, paths: Collection[str]) -> None:
        """Paths that are hidden in the cage, or where something else is mounted: not for the
        copy, nor for a review."""
        if self.exists:
            self._read_base()
        new = set(paths) - self._left_out
        self._left_out |= new
        if not new or not self.exists:
            return
        copy = beneath.open_root(self.copy_dir)
        try:
            for path in [one for one in tree.scan(copy).files if _is_below(one, new)]:
                with contextlib.suppress(OSError):
                    tree.remove(copy, path)
        finally:
            os.close(copy)
        self.base = {path: one for path, one in self.base.items() if not _is_below(path, new)}
        self._last = None
        self._write_base()

    def adopt(self) -> None:
        """Take what lies in the copy for the agent's: the host has nothing."""
        self.base, self._last = {}, None
        self._write_base()

    def sync(self, host: int) -> None:
        """Carry what the host changed since into the copy."""
        self._read_base()
        found = self._changed(host)
        if found is None:
            return
        copy = beneath.open_root(self.copy_dir)
        is_changed = False
        try:
            for path in found.files.keys() | self.base.keys():
                is_changed |= self._sync_file(host, copy, path, found.files.get(path))
        finally:
            os.close(copy)
        self._last = found
        if is_changed:
            self._write_base()

    def _changed(self, host: int) -> Scan | None:
        """What the host has, if that may be something else than last time."""
        last, now = self._last, time.monotonic()
        is_many = last is not None and len(last.files) > FEW and now < self._scanned_at + MANY_S
        if last is not None and is_many and _same_directories(host, last):
            return None
        found = tree.scan(host, self._left_out)
        self._scanned_at = now
        return None if last is not None and found.files == last.files else found

    def _sync_file(self, host: int, copy: int, path: str, stamp: Stamp | None) -> bool:
        known = self.base.get(path)
        if known is not None and known[1] == stamp:
            return False
        wanted = tree.digest(host, path) if stamp else tree.MISSING
        before = known[0] if known else tree.MISSING
        if wanted != before and tree.digest(copy, path) == before:
            with tree.unless_full():
                tree.copy(host, copy, path)
        if stamp:
            self.base[path] = (wanted, stamp)
        else:
            self.base.pop(path, None)
        return True

    def pending(self) -> dict[str, str]:
        """What the agent changed: path in the directory, and digest of the agent's version."""
        self._read_base()
        copy = beneath.open_root(self.copy_dir)
        try:
            found = tree.scan(copy, self._left_out)
            digests = self._digests(copy, found)
        finally:
            os.close(copy)
        changed = {
            path: digest
            for path, digest in digests.items()
            if digest not in (self.base.get(path, (tree.MISSING,))[0], tree.MISSING)
        }
        removed = {
            path: tree.MISSING
            for path, (digest, _) in self.base.items()
            if path not in digests and digest not in (tree.MISSING, tree.TOO_LARGE)
        }
        return changed | removed

    def _digests(self, copy: int, found: Scan) -> dict[str, str]:
        """The digests of an agent's files; of what is more than PENDING_BYTES, that it is large.

        Written down with the files' stamps, since `cagewrap ls` asks for them each time: nobody
        can set a change time.
        """
        known = self._read_digests()
        newest_ns = time.time_ns() - _RACY_NS
        digests: dict[str, str] = {}
        kept: dict[str, tuple[Stamp, str]] = {}
        left = PENDING_BYTES
        for path, stamp in sorted(found.files.items()):
            left -= stamp[2]
            stamp_known, digest = known.get(path, ((), ""))
            if left <= 0:
                digest = tree.TOO_LARGE
            elif tuple(stamp_known) != stamp:
                digest = tree.digest(copy, path)
            if left > 0 and stamp[4] < newest_ns:
                kept[path] = (stamp, digest)
            digests[path] = digest
        if kept.keys() != known.keys() or any(
            tuple(known[path][0]) != stamp for path, (stamp, _) in kept.items()
        ):
            with contextlib.suppress(OSError):
                write_private(self._digests_file, json.dumps(kept).encode())
        return digests

    def _read_digests(self) -> dict[str, tuple[Stamp, str]]:
        try:
            with open(self._digests_file, encoding="utf-8") as file:
                found: dict[str, tuple[Stamp, str]] = json.load(file)
        except (OSError, ValueError):
            return {}
        return found

    def agree(self, host: int, path: str) -> None:
        """Both sides have the same file now."""
        stamp = tree.stamp_at(host, path)
        if stamp is None:
            self.base.pop(path, None)
        else:
            self.base[path] = (tree.digest(host, path), stamp)
        self._write_base()

    def _read_base(self) -> None:
        """Read what is written down, if another process wrote it."""
        stamp = os.stat(self._base_file).st_mtime_ns
        if stamp == self._base_stamp:
            return
        with open(self._base_file, encoding="utf-8") as file:
            written = json.load(file)
        self.base = {path: (one[0], tuple(one[1])) for path, one in written["files"].items()}
        self._left_out |= set(written["left_out"])
        self._base_stamp, self._last = stamp, None

    def _write_base(self) -> None:
        left_out = sorted(self._left_out)
        value = {"path": self.path, "left_out": left_out, "files": self.base}
        write_private(self._base_file, json.dumps(value).encode())
        self._base_stamp = os.stat(self._base_file).st_mtime_ns


def take(root: int, path: str, copy: HeldDirectory, covered: Callable[[], None]) -> None:
    """Move an agent's directory out of the project: it is the copy then.

    covered: where it must be copied, to another file system, this is called when the copy is
    there and before the directory goes; the agent may write to it until then. What is too large,
    or another user's, stays behind in the project. Raises OSError.
    """
    shutil.rmtree(copy.dir, ignore_errors=True)
    os.makedirs(copy.dir, mode=0o700)
    with tree.parent(root, path) as (above, name):
        try:
            os.rename(name, copy.copy_dir, src_dir_fd=above)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            os.mkdir(copy.copy_dir)
            os.chmod(copy.copy_dir, 0o755)  # noqa: S103 - as in create()
            _carry_over(above, name, copy.copy_dir)
            covered()
            _carry_over(above, name, copy.copy_dir)
            shutil.rmtree(name, ignore_errors=True, dir_fd=above)
    copy.adopt()


def _carry_over(above: int, name: str, copy_dir: str) -> None:
    """Copy what is not there yet."""
    source, target = beneath.open_dir(above, (name,)), beneath.open_root(copy_dir)
    try:
        found = tree.scan(source)
        for path in found.directories:
            tree.make_directories(target, path.split("/") if path else [], 0o755)
        for path in found.files:
            with contextlib.suppress(OSError):
                if tree.stamp_at(target, path) is None:
                    tree.copy(source, target, path)
    finally:
        os.close(source)
        os.close(target)


def held_directories(store: str) -> list[HeldDirectory]:
    """All of a session's."""
    above = os.path.join(store, "directories")
    found: list[HeldDirectory] = []
    try:
        keys = sorted(os.listdir(above))
    except FileNotFoundError:
        return []
    for key in keys:
        path = os.path.join(above, key, "base.json")
        with (
            contextlib.suppress(OSError, ValueError, KeyError),
            open(path, encoding="utf-8") as file,
        ):
            found.append(HeldDirectory(store, json.load(file)["path"]))
    return found


def _is_below(path: str, above: Collection[str]) -> bool:
    return any(path == one or path.startswith(one + "/") for one in above)


def _same_directories(host: int, last: Scan) -> bool:
    """Whether no file was made, removed or replaced by rename in any of the directories."""
    for path, mtime in last.directories.items():
        try:
            fd = beneath.open_dir(host, path.split("/") if path else ())
        except OSError:
            return False
        is_same = os.fstat(fd).st_mtime_ns == mtime
        os.close(fd)
        if not is_same:
            return False
    return True
