"""A file of the host's and its twin in the cage, of which either may grow.

The host's is copied whole into the cage. Out of the cage comes only what was appended, and of that
only what was said (`Format.said`): the cage never holds the host's file itself, so it can
neither rewrite nor shorten it.
"""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import os
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from cagewrap import beneath, transcripts
from cagewrap.diskspace import is_full

COPY_BYTES = 1 << 30
STEP_BYTES = 4 << 20
MERGE_BYTES = 32 << 20
"""Two files of which neither continues the other are compared up to this size."""
SMALL_BYTES = 8 << 20

MOST_ENTRIES = 5000
"""Of a directory with more, this many are looked at: an agent can make any number."""
_SUFFIXES = (".jsonl", ".json", ".txt")
TORN_S = 2.0
"""A line that has stood unfinished for so long was left by a writer that was killed."""

Position = tuple[int, int, int, int]
"""Inode and bytes dealt with of the host's file, then of the cage's; -1 for no file."""


class File(NamedTuple):
    """A regular file of the owner's."""

    inode: int
    size: int
    mtime_ns: int


class Side:
    """An open directory on either side, and what is in it."""

    def __init__(self, fd: int) -> None:
        """Nothing is done yet."""
        self.fd = fd
        self.files: dict[str, File] = {}


class Twins:
    """Carries between twins. positions: how far, by the file's key; kept by the caller.

    is_ours: whether a working directory lies in the project. notes: what could not be carried.
    """

    def __init__(
        self,
        form: transcripts.Format,
        is_ours: Callable[[str], bool],
        positions: dict[str, Position],
    ) -> None:
        """Nothing is done yet."""
        self.form = form
        self.is_ours = is_ours
        self.positions = positions
        self.notes: list[str] = []
        self.is_changed = False
        self._seen: set[str] = set()
        self._stuck: set[str] = set()

    def carry_lines(self, host: Side, cage: Side, key: str, name: str, until: float) -> None:
        """Bring both sides' files of that name up to date."""
        ours, theirs, known = host.files.get(name), cage.files.get(name), self.positions.get(key)
        if key in self._stuck or (
            ours and theirs and known == (ours.inode, ours.size, theirs.inode, theirs.size)
        ):
            return
        self.is_changed = True
        try:
            if theirs is None:
                if ours is not None:
                    self.positions[key] = _copy_in(host.fd, cage.fd, name, ours)
            elif ours is None:
                self._append(host, cage, key, name, (-1, 0, theirs.inode, 0), until)
            elif known is None or not _goes_on(known, ours, theirs):
                self._merge(host, cage, key, name, known)
            else:
                self._append(host, cage, key, name, known, until)
        except OSError as error:
            self._fail(key, error)

    def carry_small(self, ours: Side, theirs: Side, key: str, name: str, kind: str) -> None:
        """A file that is written once."""
        try:
            if name not in theirs.files:
                data = beneath.read_regular(ours.fd, name, SMALL_BYTES)
                beneath.write_regular(theirs.fd, name, data)
            elif name not in ours.files:
                data = beneath.read_regular(theirs.fd, name, SMALL_BYTES)
                data = transcripts.agent_note(data) if kind == "note" else data
                if data:
                    beneath.write_regular(ours.fd, name, data)
        except OSError as error:
            self._fail(key, error)

    def _append(
        self, host: Side, cage: Side, key: str, name: str, known: Position, until: float
    ) -> None:
        """Append to each what the other has more than it had."""
        while True:
            to_cage, host_end = _tail(host.fd, name, known[1])
            said, cage_end = _tail(cage.fd, name, known[3])
            is_done = (host_end, cage_end) == (known[1], known[3])
            lines = transcripts.spoken_lines(self.form, said, self.is_ours)
            if key not in self._seen:  # a keeper that was killed may have carried some of it
                here = {transcripts.plain_line(line) for line in to_cage}
                there = transcripts.known_lines(self.form, said, self.is_ours)
                lines = [line for line in lines if line not in here]
                to_cage = [line for line in to_cage if transcripts.plain_line(line) not in there]
            host_now = _add(host.fd, name, host_end, lines)
            cage_now = _add(cage.fd, name, cage_end, to_cage)
            if host_now is None or cage_now is None:  # someone writes at this moment
                self.positions.pop(key, None)
                return
            known = self.positions[key] = (*host_now, *cage_now)
            self._seen.add(key)
            if is_done or time.monotonic() > until:
                return

    def _merge(self, host: Side, cage: Side, key: str, name: str, known: Position | None) -> None:
        """Two files that have parted: each gets the lines it lacks. The host's loses nothing.

        What the host's claude took out of its file (it compacts long ones) does not come back
        from the cage's, as long as that is the file we know.
        """
        ours = _whole_lines(beneath.read_regular(host.fd, name, MERGE_BYTES))
        theirs = _whole_lines(beneath.read_regular(cage.fd, name, MERGE_BYTES))
        found = cage.files[name]
        is_known = known is not None and known[2] == found.inode and known[3] <= len(theirs)
        news = theirs[known[3] :] if known is not None and is_known else theirs
        here = {transcripts.plain_line(line) for line in _lines(ours)}
        there = transcripts.known_lines(self.form, _lines(theirs), self.is_ours)
        said = transcripts.spoken_lines(self.form, _lines(news), self.is_ours)
        lacking = [line for line in _lines(ours) if transcripts.plain_line(line) not in there]
        host_now = _add(host.fd, name, len(ours), [line for line in said if line not in here])
        cage_now = _add(cage.fd, name, len(theirs), lacking)
        if host_now is not None and cage_now is not None:
            self.positions[key] = (*host_now, *cage_now)

    def _fail(self, key: str, error: OSError) -> None:
        """Said once, and not tried again: a conversation that is not carried is where it was."""
        if error.errno in (errno.ENOENT, errno.EAGAIN):
            return
        if is_full(error):  # tried again
            self.notes.append(
                f"{self.form.agent}'s conversation {key} is not shared while the disk is full"
            )
            return
        self._stuck.add(key)
        self.notes.append(
            f"{self.form.agent}'s conversation {key} is not shared any more: "
            f"{error.strerror or error}"
        )


def open_side(
    stack: contextlib.ExitStack, root: int, parts: tuple[str, ...], *, make: bool
) -> Side | None:
    """The directory and its files; None if it is not one, or not there and not to be made."""
    try:
        side = Side(beneath.open_dir(root, parts, make=make))
    except OSError:
        return None
    stack.callback(os.close, side.fd)
    uid = os.getuid()
    with os.scandir(side.fd) as entries:
        for entry in itertools.islice(entries, MOST_ENTRIES):
            if entry.is_file(follow_symlinks=False) and entry.name.endswith(_SUFFIXES):
                found = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(found.st_mode) and found.st_uid == uid:
                    file = File(found.st_ino, found.st_size, found.st_mtime_ns)
                    side.files[entry.name] = file
    return side


def read_positions(value: Mapping[str, object]) -> dict[str, Position]:
    """Positions as they were written down; what is none is left out."""
    found: dict[str, Position] = {}
    for key, item in value.items():
        if isinstance(item, list) and len(item) == 4 and all(isinstance(n, int) for n in item):
            found[key] = (item[0], item[1], item[2], item[3])
    return found


def _goes_on(known: Position, ours: File, theirs: File) -> bool:
    """Whether both files are those we knew, or longer."""
    same = (known[0], known[2]) == (ours.inode, theirs.inode)
    return same and ours.size >= known[1] and theirs.size >= known[3]


def _copy_in(host_fd: int, cage_fd: int, name: str, ours: File) -> Position:
    """Copy a host's file into the cage as it is, with its time."""
    if ours.size > COPY_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    data = beneath.read_regular(host_fd, name, COPY_BYTES)
    beneath.write_regular(cage_fd, name, data)
    os.utime(name, ns=(ours.mtime_ns, ours.mtime_ns), dir_fd=cage_fd, follow_symlinks=False)
    found = beneath.stat_at(cage_fd, name)
    return (ours.inode, len(data), found.st_ino, found.st_size)


def _tail(dir_fd: int, name: str, start: int) -> tuple[list[bytes], int]:
    """Whole lines from `start` on, and where they end; none where there is no file."""
    try:
        fd = beneath.open_regular(dir_fd, name)
    except FileNotFoundError:
        return [], start
    with open(fd, "rb", buffering=0):
        data = os.pread(fd, STEP_BYTES, start)
        while data and b"\n" not in data:
            if len(data) >= transcripts.LINE_BYTES:
                raise OSError(errno.EFBIG, "a line is too long")
            more = os.pread(fd, STEP_BYTES, start + len(data))
            if not more:
                break
            data += more
    data = _whole_lines(data)
    return _lines(data), start + len(data)


def _whole_lines(data: bytes) -> bytes:
    return data[: data.rfind(b"\n") + 1]


def _lines(data: bytes) -> list[bytes]:
    return [line + b"\n" for line in data.split(b"\n")[:-1]]


def _add(dir_fd: int, name: str, end: int, lines: Sequence[bytes]) -> tuple[int, int] | None:
    """Append lines to a file that ends at `end`, or make it: its inode and where it ends now.

    None if someone else is writing to it. Raises OSError.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        if not lines:
            return (beneath.stat_at(dir_fd, name).st_ino, end)
        fd = os.open(name, flags | os.O_CREAT, 0o600, dir_fd=dir_fd)
    except FileNotFoundError:
        return (-1, 0)
    with open(fd, "wb", buffering=0) as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        text = b"".join(lines)
        if found.st_size != end:
            if time.time() - found.st_mtime < TORN_S:
                return None
            text, end = b"\n" + text, found.st_size
        end += len(text)
        try:
            _write_all(file, text, end - len(text))
        except OSError:
            if not os.fstat(fd).st_size:
                os.unlink(name, dir_fd=dir_fd)
            raise
        found = os.fstat(fd)
    return (found.st_ino, end) if found.st_size == end else None


def _write_all(file: io.FileIO, text: bytes, begin: int) -> None:
    """All or, on a full disk, nothing: half a line would be in the way of the next one."""
    done = 0
    try:
        while done < len(text):
            done += file.write(text[done:])
    except OSError:
        if os.fstat(file.fileno()).st_size == begin + done:
            os.ftruncate(file.fileno(), begin)
        raise
