"""Carrying TCP connections between the host's loopback and the cage's.

One process per port: it accepts on a listener made in one network namespace and dials from the
namespace it lives in. Independent of podman's network helper, so a port can be opened on a running
cage, and a server bound to the cage's 127.0.0.1 (an OAuth callback) is reached too.
"""

from __future__ import annotations

import socket
import threading

_CHUNK_BYTES = 65536


def listen_on_host(port: int) -> socket.socket:
    """A listener on the host's 127.0.0.1:`port`. Raises OSError when the port is taken."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener


def serve(listener: socket.socket, port: int) -> None:
    """Accept on `listener` and carry each connection to 127.0.0.1:`port`, for ever."""
    while True:
        near, _ = listener.accept()
        threading.Thread(target=_carry, args=(near, port), daemon=True).start()


def _carry(near: socket.socket, port: int) -> None:
    try:
        far = _dial(port)
    except OSError:
        near.close()
        return
    near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    back = threading.Thread(target=_copy, args=(far, near), daemon=True)
    back.start()
    _copy(near, far)
    back.join()
    near.close()
    far.close()


def _dial(port: int) -> socket.socket:
    """Connect to a loopback port; a server may listen on the IPv6 loopback alone."""
    try:
        return socket.create_connection(("127.0.0.1", port))
    except ConnectionRefusedError:
        return socket.create_connection(("::1", port))


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy one direction to its end, then end that direction of the other side."""
    try:
        while chunk := source.recv(_CHUNK_BYTES):
            target.sendall(chunk)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
