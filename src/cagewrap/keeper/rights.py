"""Receiving descriptors over a unix socket.

Not `socket.recv_fds`: up to Python 3.12 it ignores its flags, so that what it receives is
inherited by every program started meanwhile. conmon then held a harness's stdout open for as long
as the container ran.
"""

from __future__ import annotations

import array
import socket


def receive(
    connection: socket.socket, size: int, count: int, flags: int = 0
) -> tuple[bytes, list[int]]:
    """One packet and at most `count` descriptors, which no child inherits. Raises OSError."""
    fds = array.array("i")
    room = socket.CMSG_SPACE(count * fds.itemsize)
    packet, control, _, _ = connection.recvmsg(size, room, flags | socket.MSG_CMSG_CLOEXEC)
    for level, kind, data in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return packet, list(fds)
