"""Connecting to a keeper that may or may not be there."""

from __future__ import annotations

import socket
import struct

from cagewrap.errors import KeeperError


def try_connect(path: str, timeout_s: float = 0.0) -> socket.socket | None:
    """A connection to a keeper's socket, or None when nobody listens there.

    timeout_s: how long to wait while the queue of those who were not let in yet is full; 0: for
    ever. Raises KeeperError.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if timeout_s:
        wait = struct.pack("@ll", int(timeout_s), int(timeout_s % 1 * 1_000_000))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, wait)
    try:
        connection.connect(path)
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    except OSError as error:
        connection.close()
        raise KeeperError(
            f"The socket {path} cannot be used: {error.strerror}.", f"rm {path}"
        ) from error
    return connection
