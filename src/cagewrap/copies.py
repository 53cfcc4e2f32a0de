"""Copies of the owner's files in a private HOME, kept current, and left to the agent once changed.

The owner's side is trusted, but may be spread over symlinks; the agent's side is not trusted.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from cagewrap import beneath
from cagewrap.digests import blake2b
from cagewrap.diskspace import is_full

FILE_BYTES = 8 << 20
MAX_DEPTH = 12
SKIPPED = frozenset((".git", ".credentials.json", ".netrc", ".npmrc", ".pypirc", ".DS_Store"))

Known = tuple[str, int, int, int]
"""The digest of what was last seen on the host, and that file's inode, size and time."""


class Original(NamedTuple):
    """A file of the owner's. path: with every symlink resolved."""

    path: str
    inode: int
    size: int
    mtime_ns: int
    mode: int

    @property
    def stamp(self) -> tuple[int, int, int]:
        """Changes whenever the file does."""
        return (self.inode, self.size, self.mtime_ns)


class Finder:
    """Finds files of the owner's. may_read: judges a real path. notes: what was left out."""

    def __init__(self, may_read: Callable[[str], bool], max_files: int, max_bytes: int) -> None:
        """Nothing is done yet."""
        self.may_read = may_read
        self.max_files = max_files
        self.max_bytes = max_bytes
        self.notes: list[str] = []

    def find(self, path: str, name: str) -> dict[str, Original]:
        """The file at `path`, or all below it, by `name` and the path below that."""
        found: dict[str, Original] = {}
        total = 0
        for one, original in self._walk(path, name, ()):
            total += original.size
            if len(found) >= self.max_files or total > self.max_bytes:
                self.notes.append(
                    f"{path} is larger than {self.max_files} files or "
                    f"{self.max_bytes >> 20} MiB: the rest of it is not in the cage"
                )
                break
            found[one] = original
        return found

    def _walk(
        self, path: str, name: str, above: tuple[tuple[int, int], ...]
    ) -> Iterator[tuple[str, Original]]:
        try:
            found = os.lstat(path)
            if stat.S_ISLNK(found.st_mode):
                path = os.path.realpath(path)
                found = os.stat(path)
                if not self.may_read(path):
                    self.notes.append(f"{name} leads to {path}, which no cage gets: left out")
                    return
        except OSError:
            return
        if stat.S_ISREG(found.st_mode):
            if found.st_size <= FILE_BYTES:
                yield (
                    name,
                    Original(
                        path, found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode & 0o111
                    ),
                )
            return
        here = (found.st_dev, found.st_ino)
        if not stat.S_ISDIR(found.st_mode) or here in above or len(above) > MAX_DEPTH:
            return
        try:
            entries = sorted(os.listdir(path))
        except OSError:
            return
        for entry in entries:
            if entry not in SKIPPED and not entry.startswith(".env"):
                yield from self._walk(os.path.join(path, entry), f"{name}/{entry}", (*above, here))


class Copies:
    """The copies in one private HOME. known: by path in HOME; kept by the caller."""

    def __init__(
        self, home_dir: str, known: dict[str, Known], may_read: Callable[[str], bool]
    ) -> None:
        """Nothing is done yet."""
        self.home_dir = home_dir
        self.known = known
        self.may_read = may_read
        self.notes: list[str] = []
        self.is_changed = False

    def bring(
        self, originals: Mapping[str, Original], rewrite: Callable[[str, bytes], bytes]
    ) -> None:
        """Make the copies those of `originals`, all of them, by path in HOME.

        rewrite: what a file becomes on its way. Raises OSError when there is no HOME.
        """
        news = {
            name: original
            for name, original in originals.items()
            if name not in self.known or self.known[name][1:] != original.stamp
        }
        gone = self.known.keys() - originals.keys()
        if not news and not gone:
            return
        self.is_changed = True
        home = beneath.open_root(self.home_dir)
        try:
            for name, original in news.items():
                try:
                    data = rewrite(name, self._read(original))
                    self._bring_one(home, name, data, original)
                except OSError as error:
                    self._fail(name, error)
                    if not is_full(error):  # else it is tried again
                        before = self.known.get(name, ("",))[0]
                        self.known[name] = (before, *original.stamp)
            for name in gone:
                with contextlib.suppress(OSError):
                    self._remove(home, name)
                del self.known[name]
        finally:
            os.close(home)

    def _read(self, original: Original) -> bytes:
        """Its content, if what is opened is what was judged."""
        fd = os.open(original.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with open(fd, "rb", buffering=0) as file:
            real = os.readlink(f"/proc/self/fd/{fd}")
            if not stat.S_ISREG(os.fstat(fd).st_mode) or not self.may_read(real):
                raise OSError(errno.EPERM, f"{real} is not for a cage")
            data = b""
            while len(data) <= FILE_BYTES:
                chunk = file.read(FILE_BYTES)
                if not chunk:
                    return data
                data += chunk
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    def _bring_one(self, home: int, name: str, data: bytes, original: Original) -> None:
        digest, before = _digest(data), self.known.get(name, ("",))[0]
        *parts, last = name.split("/")
        directory = beneath.open_dir(home, parts, make=True)
        try:
            theirs = _digest_at(directory, last)
            # What the agent removed comes back when the host's changes.
            is_free = digest != before if not theirs else theirs == before
            if is_free and theirs != digest:
                beneath.write_regular(directory, last, data, 0o600 | original.mode & 0o100)
            elif theirs not in ("", digest):
                self.notes.append(
                    f"~/{name} was changed in the cage, and on the host too: the cage keeps its own"
                )
        finally:
            os.close(directory)
        self.known[name] = (digest, *original.stamp)

    def _remove(self, home: int, name: str) -> None:
        """Remove a copy that is still one."""
        *parts, last = name.split("/")
        directory = beneath.open_dir(home, parts)
        try:
            if _digest_at(directory, last) == self.known[name][0]:
                os.unlink(last, dir_fd=directory)
        finally:
            os.close(directory)

    def _fail(self, name: str, error: OSError) -> None:
        self.notes.append(f"~/{name} could not be brought into the cage: {error.strerror or error}")


def read_known(value: object) -> dict[str, Known]:
    """`Copies.known` as it was written down."""
    return {
        name: (str(item[0]), int(item[1]), int(item[2]), int(item[3]))
        for name, item in (value if isinstance(value, dict) else {}).items()
    }


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()


def _digest_at(directory: int, name: str) -> str:
    """The digest of what is there, "" for nothing, "?" for what is not a file we could have put."""
    try:
        return _digest(beneath.read_regular(directory, name, FILE_BYTES))
    except FileNotFoundError:
        return ""
    except OSError:
        return "?"
