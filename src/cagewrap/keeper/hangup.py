"""Noticing that a harness is gone, without holding the ends of its pipes.

A copy of the agent's stdout in the keeper would hide from the harness that the agent closed it.
An O_PATH descriptor does not count as a writer: it is opened again for a moment, and poll says
whether the pipe has a reader left. Of a socket the kernel tells, by sock_diag, whether the other
end is still there.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import stat
import struct

from cagewrap.keeper import holders

_SOCK_DIAG_BY_FAMILY = 20  # include/uapi/linux/sock_diag.h
_NETLINK_SOCK_DIAG = 4
_NLM_F_REQUEST = 1
_UDIAG_SHOW_PEER = 4  # include/uapi/linux/unix_diag.h
_UNIX_DIAG_PEER = 2
_ALL_STATES = 0xFFFFFFFF
_NO_COOKIE = 0xFFFFFFFF
_NLMSG_ERROR = 2  # include/uapi/linux/netlink.h
_NO_UNIX_SOCKET = -1  # of that inode
_UNKNOWN = -2  # the kernel does not tell


class Watch:
    """Looks whether the reader of stdout, or the harness with its end of stdin, is gone."""

    def __init__(self, fds: list[int], shim_pid: int) -> None:
        """`fds` are the shim's own 0, 1 and 2 (nothing for a terminal); none is held open."""
        self._in = _Far(fds[0]) if fds else None
        self._out = _Far(fds[1]) if fds else None
        self._parent = _parent_pidfd(shim_pid)
        self._in_ended = False
        self._pipes = [far.inode if far and far.is_pipe else 0 for far in (self._in, self._out)]
        _watches.add(self)

    @property
    def is_needed(self) -> bool:
        """Whether there is anything that could hang up."""
        return any(far is not None and far.is_channel for far in (self._in, self._out))

    @property
    def is_unsure(self) -> bool:
        """Whether the next look should come soon: it tells a harness that dies from one that
        has said all it had to say."""
        return self._in_ended and self._in is not None

    def is_hung_up(self) -> bool:
        """Whether stdout has no reader, or the harness died and stdin has lost its writer with it.

        A stdin that ended while the harness lived (`echo prompt | cagewrap -- … >file &`) says
        nothing about the harness, and is not looked at any more.
        """
        if self._out is not None and self._out.is_channel:
            return self._out.has_no_reader() or self._is_kept_up(self._out, holders.READER)
        if self._in is None or not self._in.is_channel:
            return False
        has_ended = self._in.has_no_writer()
        if has_ended and self.parent_is_gone():
            return True
        if self._is_kept_up(self._in, holders.WRITER):
            return True
        if has_ended and self._in_ended:
            self._in.close()
            self._in = None
        self._in_ended = has_ended
        return False

    def _is_kept_up(self, far: _Far, role: int) -> bool:
        """Whether the harness died, and its end of a pipe is held by the cage alone.

        Not when it was given to another message of this cage (`cagewrap -- a | cagewrap -- b`).
        """
        if not far.is_pipe or not self.parent_is_gone():
            return False
        others = _watches - {self}
        is_given = any(far.inode in other._pipes for other in others)  # noqa: SLF001
        return not is_given and far.is_held_by_cage_alone(role)

    def close(self) -> None:
        """Let go of everything."""
        _watches.discard(self)
        for far in (self._in, self._out):
            if far is not None:
                far.close()
        if self._parent >= 0:
            os.close(self._parent)
            self._parent = -1

    def parent_is_gone(self) -> bool:
        """Whether the process that started the shim has ended."""
        if self._parent < 0:
            return False
        return bool(select.select([self._parent], [], [], 0)[0])


_watches: set[Watch] = set()
"""Those of all messages that run."""


class _Far:
    """The far end of one descriptor."""

    def __init__(self, fd: int) -> None:
        found = os.fstat(fd)
        self.inode = found.st_ino
        self.is_pipe = stat.S_ISFIFO(found.st_mode)
        self.is_socket = stat.S_ISSOCK(found.st_mode)
        self.is_channel = self.is_pipe or self.is_socket
        # Of the harness's end: ours may be closed by all before we look.
        self._peer = _unix_peer(found.st_ino) if self.is_socket else _NO_UNIX_SOCKET
        self._path_fd = os.open(f"/proc/self/fd/{fd}", os.O_PATH) if self.is_pipe else -1

    def has_no_reader(self) -> bool:
        if self.is_socket:
            return self._peer_is_gone()
        try:
            writer = os.open(f"/proc/self/fd/{self._path_fd}", os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            return error.errno == errno.ENXIO  # a named pipe without readers
        return _has_event(writer, select.POLLERR)

    def has_no_writer(self) -> bool:
        if self.is_socket:
            return self._peer_is_gone()
        try:
            reader = os.open(f"/proc/self/fd/{self._path_fd}", os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            return False
        return _has_event(reader, select.POLLHUP)

    def is_held_by_cage_alone(self, role: int) -> bool:
        return holders.is_held_by_cage_alone(self._path_fd, role)

    def _peer_is_gone(self) -> bool:
        if self._peer < 0:
            return False  # of TCP and the like it shows when they are written to
        return self._peer == 0 or _unix_peer(self._peer) == _NO_UNIX_SOCKET

    def close(self) -> None:
        if self._path_fd >= 0:
            os.close(self._path_fd)
            self._path_fd = -1


def _has_event(fd: int, event: int) -> bool:
    """Whether poll reports the event on a descriptor, which is closed."""
    try:
        poll = select.poll()
        poll.register(fd, 0)
        return any(mask & event for _, mask in poll.poll(0))
    finally:
        os.close(fd)


def _parent_pidfd(pid: int) -> int:
    """A descriptor of a process's parent, or -1 when that is the system's init or unknown."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            parent = int(file.read().rpartition(b")")[2].split()[1])
        return os.pidfd_open(parent) if parent > 1 else -1
    except OSError:
        return -1


def _unix_peer(inode: int) -> int:
    """The inode of a unix socket's peer, 0 when that is gone. Negative: see below."""
    request = struct.pack(
        "=IHHIIBBHIIIII",
        40, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0,
        socket.AF_UNIX, 0, 0, _ALL_STATES, inode & 0xFFFFFFFF, _UDIAG_SHOW_PEER,
        _NO_COOKIE, _NO_COOKIE,
    )  # fmt: skip
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as diag:
            diag.settimeout(0.2)
            diag.send(request)
            answer = diag.recv(8192)
    except OSError:
        return _UNKNOWN
    return _peer_attribute(answer)


def _peer_attribute(answer: bytes) -> int:
    """Read struct nlmsghdr, struct unix_diag_msg and its attributes."""
    length, kind = struct.unpack_from("=IH", answer)
    if kind == _NLMSG_ERROR:
        number = -struct.unpack_from("=i", answer, 16)[0]
        return _NO_UNIX_SOCKET if number == errno.ENOENT else _UNKNOWN
    if kind != _SOCK_DIAG_BY_FAMILY:
        return _UNKNOWN
    at = 16 + 16
    while at + 4 <= min(length, len(answer)):
        size, name = struct.unpack_from("=HH", answer, at)
        if name == _UNIX_DIAG_PEER:
            return int(struct.unpack_from("=I", answer, at + 4)[0])
        at += max(4, (size + 3) & ~3)
    return 0
