"""Carrying TCP connections between the host's loopback and the cage's.

One process per port: it accepts on a listener made in one network namespace and dials from the
namespace it lives in. Independent of podman's network helper, so a port can be opened on a running
cage, and a server bound to the cage's 127.0.0.1 (an OAuth callback) is reached too.

Whatever an agent opens, sends or leaves unread, it costs the host one thread and no more than
`CONNECTIONS` times two buffers of `_CHUNK_BYTES`: these processes are outside of the cage's cgroup.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import struct
import time
from collections.abc import Callable

CONNECTIONS = 256
"""At once; who comes later waits in the listener's queue."""
_CHUNK_BYTES = 65536
_ROUNDS = 8
"""Chunks of one connection before the others have their turn."""
_PAUSE_S = 0.1
"""Before the next try when a connection cannot be accepted: no descriptors or memory left."""
_RESET = struct.pack("ii", 1, 0)  # struct linger: close() sends a reset

_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


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
    forwarder = _Forwarder(listener, port)
    while True:
        try:
            forwarder.turn()
        except OSError:  # the kernel is short of something: not for ever
            time.sleep(_PAUSE_S)


class _Forwarder:
    """The one loop: the listener and everything accepted on it."""

    def __init__(self, listener: socket.socket, port: int) -> None:
        self.port = port
        self.chunk = memoryview(bytearray(_CHUNK_BYTES))
        self._selector = selectors.DefaultSelector()
        self._listener = listener
        self._listens = 0
        self._count = 0
        self._paused_until = 0.0
        listener.setblocking(False)  # noqa: FBT003

    def turn(self) -> None:
        """Wait until something can be done, and do it."""
        pause = max(0.0, self._paused_until - time.monotonic())
        wanted = 0 if pause or self._count >= CONNECTIONS else _READ
        if wanted != self._listens:
            self._listens = self.watch(self._listener, self._listens, wanted, self._accept)
        for key, events in self._selector.select(pause or None):
            key.data(events)

    def watch(
        self, sock: socket.socket, before: int, wanted: int, call: Callable[[int], None]
    ) -> int:
        """Call `call` on the wanted events instead of those before; returns the wanted ones."""
        if not before:
            self._selector.register(sock, wanted, call)
        elif not wanted:
            self._selector.unregister(sock)
        else:
            self._selector.modify(sock, wanted, call)
        return wanted

    def ended(self) -> None:
        """A connection is gone: there is room for another."""
        self._count -= 1

    def _accept(self, _events: int) -> None:
        """Take one connection, if there are descriptors for both of its sides."""
        try:
            with contextlib.ExitStack() as undo:
                far = undo.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
                near, _ = self._listener.accept()
                undo.pop_all()
        except BlockingIOError:
            return
        except OSError:
            self._paused_until = time.monotonic() + _PAUSE_S
            return
        self._count += 1
        _Connection(self, near, far)


class _Side:
    """One socket of a connection."""

    def __init__(self, sock: socket.socket, ready: Callable[[_Side, int], None]) -> None:
        """Owns the socket. `ready` is called with the events there are."""
        sock.setblocking(False)  # noqa: FBT003
        self.socket = sock
        self.unsent = b""
        self.reads = True
        self.writes = True
        self._watched = 0
        self._ready = ready

    def watch(self, forwarder: _Forwarder, wanted: int) -> None:
        """Wait for these events from now on."""
        if wanted != self._watched:
            self._watched = forwarder.watch(self.socket, self._watched, wanted, self._call)

    def send(self, data: memoryview | bytes) -> None:
        """Send what the other end takes now, and keep the rest. Raises OSError."""
        try:
            sent = self.socket.send(data)
        except BlockingIOError:
            sent = 0
        self.unsent = b"" if sent == len(data) else bytes(data[sent:])

    def end(self) -> None:
        """There is nothing more to send."""
        self.writes = False
        self.unsent = b""
        with contextlib.suppress(OSError):  # gone already
            self.socket.shutdown(socket.SHUT_WR)

    def close(self, forwarder: _Forwarder) -> None:
        """Let go of it."""
        self.watch(forwarder, 0)
        self.socket.close()

    def _call(self, events: int) -> None:
        self._ready(self, events)


class _Connection:
    """Two sockets and the bytes between them, from the dial to the end of both directions."""

    def __init__(self, forwarder: _Forwarder, near: socket.socket, far: socket.socket) -> None:
        """Owns the socket that was accepted and the one to connect."""
        self._forwarder = forwarder
        self._near = _Side(near, self._is_ready)
        self._far = _Side(far, self._is_ready)
        self._is_dialing = True
        self._is_over = False
        self._dial("127.0.0.1")

    # -- the dial ------------------------------------------------------------------------------

    def _dial(self, address: str) -> None:
        """Begin to connect the far side."""
        number = self._far.socket.connect_ex((address, self._forwarder.port))
        if number not in (0, errno.EINPROGRESS):
            self._dial_failed(number)
            return
        try:
            self._far.watch(self._forwarder, _WRITE)
        except OSError:
            self._close()

    def _dial_failed(self, number: int) -> None:
        """Try once more: a server may listen on the IPv6 loopback alone."""
        is_first = self._far.socket.family == socket.AF_INET
        self._far.close(self._forwarder)
        if is_first and number == errno.ECONNREFUSED:
            with contextlib.suppress(OSError):  # no descriptor left, or no IPv6
                self._far = _Side(socket.socket(socket.AF_INET6), self._is_ready)
                self._dial("::1")
                return
        self._close()

    def _has_dialed(self) -> None:
        """Look how the dial ended."""
        number = self._far.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number:
            self._dial_failed(number)
            return
        self._is_dialing = False
        for side in (self._near, self._far):
            side.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._settle()

    # -- the bytes -----------------------------------------------------------------------------

    def _is_ready(self, side: _Side, events: int) -> None:
        if self._is_over:
            return  # in this same turn
        if self._is_dialing:
            self._has_dialed()
            return
        other = self._near if side is self._far else self._far
        if events & _WRITE and side.unsent:
            self._send(other, side, side.unsent)
        if events & _READ and side.reads and not other.unsent:
            self._carry(side, other)
        if not self._is_over:
            self._settle()

    def _carry(self, source: _Side, target: _Side) -> None:
        """Read from one side and send to the other, as long as neither has to wait."""
        chunk = self._forwarder.chunk
        for _ in range(_ROUNDS):
            try:
                count = source.socket.recv_into(chunk)
            except BlockingIOError:
                return
            except OSError:
                self._reset(target)
                return
            if count == 0:
                source.reads = False
                target.end()
                return
            self._send(source, target, chunk[:count])
            if count < _CHUNK_BYTES or target.unsent or not source.reads:
                return

    def _send(self, source: _Side, target: _Side, data: memoryview | bytes) -> None:
        """What nobody takes any more need not be read; what it said before is still carried."""
        try:
            target.send(data)
        except OSError:
            source.reads = False
            target.end()

    def _settle(self) -> None:
        """Wait for what can happen next, or end."""
        near, far = self._near, self._far
        if not (near.writes or far.writes):
            self._close()
            return
        try:
            for side, other in ((near, far), (far, near)):
                reads = _READ if side.reads and not other.unsent else 0
                side.watch(self._forwarder, reads | (_WRITE if side.unsent else 0))
        except OSError:  # the kernel watches no more for this user
            self._close()

    # -- the end -------------------------------------------------------------------------------

    def _reset(self, survivor: _Side) -> None:
        """One side was reset: so is the other, which must not take a torn answer for a whole."""
        with contextlib.suppress(OSError):
            survivor.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._close()

    def _close(self) -> None:
        self._is_over = True
        self._near.close(self._forwarder)
        self._far.close(self._forwarder)
        self._forwarder.ended()
