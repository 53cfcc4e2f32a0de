"""Carrying bytes between a pipe in the cage and a host file that must not be held there.

Root in the cage is the owner of the owner's files: given a regular file as fd 0, it can open
`/proc/self/fd/0` again for writing. So files, directories and devices stay in the keeper and the
cage gets a pipe. One thread, no threads: each relay is a pair of watches on the keeper's loop.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import selectors
import stat
import termios
from collections.abc import Callable

from cagewrap.keeper.loop import Loop

_CHUNK_BYTES = 65536
_F_SETPIPE_SZ = 1031  # include/uapi/linux/fcntl.h
_PIPE_BYTES = 1 << 20
_NULL_DEVICE = os.makedev(1, 3)


def same_file(first: int, second: int) -> bool:
    """Whether two descriptors lead to the same file (stdout and stderr of `>log 2>&1`)."""
    one, two = os.fstat(first), os.fstat(second)
    return (one.st_dev, one.st_ino) == (two.st_dev, two.st_ino)


class InRelay:
    """From a host descriptor into a pipe; `pipe_end` is what the cage reads from."""

    def __init__(self, loop: Loop, source: int) -> None:
        """Owns `source`."""
        self._loop = loop
        self._source = source
        self._buffer = b""
        self.pipe_end, self._sink = _pipe()
        # With an end of our own the pipe lives on, and says what of it was never read.
        self._counted = os.dup(self.pipe_end) if _is_seekable(source) else -1
        os.set_blocking(self._sink, False)
        try:
            loop.watch(source, selectors.EVENT_READ, self._readable)
            self._waits_for_source = True
        except PermissionError:
            self._waits_for_source = False  # a regular file is always ready
            loop.watch(self._sink, selectors.EVENT_WRITE, self._writable)

    def close(self) -> None:
        """Stop carrying. What the cage did not read is given back to a seekable source."""
        if self._source < 0:
            return
        self._loop.unwatch(self._source)
        self._end_pipe()
        if self._counted >= 0:
            self._give_back()
            os.close(self._counted)
        os.close(self._source)
        self._source = -1

    def _give_back(self) -> None:
        """Leave the source's offset where the cage stopped reading, as a shared file would be."""
        unread = _unread(self._counted) + len(self._buffer)
        try:
            os.lseek(self._source, -unread, os.SEEK_CUR)
        except OSError:
            return

    def _end_pipe(self) -> None:
        """Let the cage see the end, once it has read what is in the pipe."""
        if self._sink >= 0:
            self._loop.unwatch(self._sink)
            os.close(self._sink)
            self._sink = -1

    def _end_of_source(self) -> None:
        if self._counted >= 0:
            self._end_pipe()  # the offset is set by close(), when the agent has read or ended
        else:
            self.close()

    def _readable(self, _mask: int) -> None:
        self._fill()
        if self._buffer:
            self._loop.unwatch(self._source)
            self._loop.watch(self._sink, selectors.EVENT_WRITE, self._writable)

    def _fill(self) -> None:
        try:
            self._buffer = os.read(self._source, _CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self._buffer = b""
        if not self._buffer:
            self._end_of_source()

    def _writable(self, _mask: int) -> None:
        if not self._buffer:
            self._fill()
        if not self._buffer:
            return
        try:
            written = os.write(self._sink, self._buffer)
        except BlockingIOError:
            return
        except OSError:
            self._end_of_source()
            return
        self._buffer = self._buffer[written:]
        if not self._buffer and self._waits_for_source:
            self._loop.unwatch(self._sink)
            self._loop.watch(self._source, selectors.EVENT_READ, self._readable)


class OutRelay:
    """From a pipe the cage writes into to a host descriptor."""

    def __init__(self, loop: Loop, target: int, failed: Callable[[OSError], None]) -> None:
        """Owns `target`. `failed` is told when the target takes no more (disk full)."""
        self._loop = loop
        self._target = target
        self._failed = failed
        self._source, self.pipe_end = _pipe()
        os.set_blocking(self._source, False)
        loop.watch(self._source, selectors.EVENT_READ, self._readable)

    def drain(self) -> None:
        """Carry over all that is in the pipe at this moment; others may go on filling it."""
        left = _unread(self._source) if self._target >= 0 else 0
        while left > 0 and (carried := self._step()):
            left -= carried

    def close(self) -> None:
        """Stop carrying; a writer in the cage gets EPIPE."""
        if self._target < 0:
            return
        self._loop.unwatch(self._source)
        os.close(self._source)
        os.close(self._target)
        self._target = -1

    def _readable(self, _mask: int) -> None:
        self._step()

    def _step(self) -> int:
        """Carry one chunk; how many bytes it had."""
        try:
            chunk = os.read(self._source, _CHUNK_BYTES)
        except BlockingIOError:
            return 0
        if not chunk:
            self.close()
            return 0
        try:
            self._write(chunk)
        except OSError as error:
            self._failed(error)
            self.close()
            return 0
        return len(chunk)

    def _write(self, chunk: bytes) -> None:
        view = memoryview(chunk)
        while view:
            try:
                view = view[os.write(self._target, view) :]
            except BlockingIOError:
                with selectors.DefaultSelector() as waiting:
                    waiting.register(self._target, selectors.EVENT_WRITE)
                    waiting.select(1.0)


def _is_seekable(fd: int) -> bool:
    """Whether a descriptor has an offset that others may go on from: a regular file's."""
    return stat.S_ISREG(os.fstat(fd).st_mode)


def _unread(pipe: int) -> int:
    """How many bytes wait in a pipe."""
    count = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]


def _pipe() -> tuple[int, int]:
    reader, writer = os.pipe2(os.O_CLOEXEC)
    with contextlib.suppress(OSError):  # above the user's quota of pipe pages: the default will do
        fcntl.fcntl(writer, _F_SETPIPE_SZ, _PIPE_BYTES)
    return reader, writer
