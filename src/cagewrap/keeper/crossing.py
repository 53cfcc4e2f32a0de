"""Which of a harness's descriptors may enter a cage.

Root in the cage is the owner of the owner's files: given a regular file as fd 0, it can open
`/proc/self/fd/0` again for writing. A socket belongs to the network namespace it was made in, for
ever: an agent could disconnect an inherited TCP or datagram socket and connect it again, to a
server of the host. So pipes, /dev/null and connected unix streams cross as they are; what else is
one stream of bytes is carried (see relay); the rest is refused.
"""

from __future__ import annotations

import os
import socket
import stat
from enum import Enum

from cagewrap.errors import UnsupportedError

_NULL_DEVICE = os.makedev(1, 3)


class Crossing(Enum):
    """What happens to a descriptor."""

    AS_IT_IS = "as it is"
    RELAYED = "relayed"


def crossing(fd: int, number: int) -> Crossing:
    """How fd `number` (0, 1, 2) of a harness reaches its agent. Raises UnsupportedError."""
    found = os.fstat(fd)
    if stat.S_ISSOCK(found.st_mode):
        return _socket_crossing(fd, number)
    if stat.S_ISFIFO(found.st_mode):
        return Crossing.AS_IT_IS
    is_null = stat.S_ISCHR(found.st_mode) and found.st_rdev == _NULL_DEVICE
    return Crossing.AS_IT_IS if is_null else Crossing.RELAYED


def must_relay(fd: int, number: int = 0) -> bool:
    """Whether a descriptor does not cross but is carried. Raises UnsupportedError."""
    return crossing(fd, number) is Crossing.RELAYED


def _socket_crossing(fd: int, number: int) -> Crossing:
    with socket.socket(fileno=os.dup(fd)) as one:
        kind = one.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE)
        is_stream = kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET)
        is_listening = bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
        if is_stream and not is_listening and _is_connected(one):
            if one.family == socket.AF_UNIX:
                return Crossing.AS_IT_IS
            if kind == socket.SOCK_STREAM:
                return Crossing.RELAYED
    name = ("stdin", "stdout", "stderr")[number]
    raise UnsupportedError(
        f"{name} is a socket that is not a connection (listening, datagram or unconnected), and "
        "with it the agent could reach servers of this machine.",
        "give the agent a pipe or a connected stream socket instead",
    )


def _is_connected(one: socket.socket) -> bool:
    """Whether it is or was a connection: one whose other end is gone cannot lead elsewhere."""
    try:
        one.getpeername()
    except OSError:
        return one.family == socket.AF_UNIX and _was_connected(one)
    return True


def _was_connected(one: socket.socket) -> bool:
    """A unix stream whose peer has closed: reading says so, an unconnected one refuses."""
    try:
        one.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return True
    except OSError as error:
        return isinstance(error, ConnectionResetError)
    return True
