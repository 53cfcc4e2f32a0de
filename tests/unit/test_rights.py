"""Descriptors that the keeper receives must not reach the programs it executes."""

from __future__ import annotations

import os
import socket

from cagewrap.keeper import rights


def test_what_is_received_is_closed_on_exec() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        socket.send_fds(theirs, [b"packet"], [0, 1, 2])
        packet, fds = rights.receive(ours, 100, 4)
    try:
        assert packet == b"packet"
        assert len(fds) == 3
        assert [os.get_inheritable(fd) for fd in fds] == [False, False, False]
    finally:
        for fd in fds:
            os.close(fd)
