"""One end of a TCP connection, read and written as it comes, with little kept in between."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections import deque
from typing import cast

MOST_BYTES = 65536
"""What may lie here unread before the other end has to wait."""
_RESET = struct.pack("ii", 1, 0)  # struct linger: close() sends a reset
_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6))


class Link(asyncio.Protocol):
    """Made by the event loop for each connection."""

    def __init__(self) -> None:
        """Not connected yet."""
        self.gone = asyncio.Event()
        """Set once the other end sends no more, whatever is still unread here."""
        self._chunks: deque[bytes] = deque()
        self._kept = 0
        self._is_paused = False
        self._error: Exception | None = None
        self._is_lost = False
        self._wanted: asyncio.Future[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._transport: asyncio.Transport | None = None

    # -- called by the event loop ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is connected."""
        self._transport = cast("asyncio.Transport", transport)
        # asyncio does so itself only for sockets that were made with a protocol number.
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        """Keep what came."""
        self._chunks.append(data)
        self._kept += len(data)
        if self._kept >= MOST_BYTES and not self._is_paused:
            self._is_paused = True
            self._open.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        """The other end sends no more; it may still read."""
        self.gone.set()
        self._wake()
        return not self.is_encrypted

    def connection_lost(self, exc: Exception | None) -> None:
        """It is closed."""
        self._error, self._is_lost = exc, True
        self.gone.set()
        self._writable.set()
        self._wake()

    def pause_writing(self) -> None:
        """The other end is slow."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """It has caught up."""
        self._writable.set()

    # -- for us ------------------------------------------------------------------------------------

    @property
    def is_encrypted(self) -> bool:
        """Whether TLS is spoken."""
        return self._transport is not None and self._transport.get_extra_info("sslcontext")

    @property
    def is_quiet(self) -> bool:
        """Whether it is open and nothing has come that nobody asked for."""
        return not (self._chunks or self.gone.is_set())

    async def read(self) -> bytes:
        """What came; b"" at the end. Raises ConnectionError when it was reset."""
        while not self._chunks:
            if self._error is not None:
                raise ConnectionResetError(str(self._error))
            if self.gone.is_set():
                return b""
            self._wanted = asyncio.get_running_loop().create_future()
            await self._wanted
        data = self._chunks.popleft()
        self._kept -= len(data)
        if self._is_paused and self._kept < MOST_BYTES:
            self._is_paused = False
            self._open.resume_reading()
        return data

    async def write(self, data: bytes) -> None:
        """Send, waiting while the other end is slow. Raises ConnectionError when it is gone."""
        if self._is_lost:
            raise ConnectionResetError(str(self._error or "closed"))
        if data:
            self._open.write(data)
        await self._writable.wait()
        if self._is_lost:
            raise ConnectionResetError(str(self._error or "closed"))

    async def encrypt(self, context: ssl.SSLContext, host: str) -> None:
        """Speak TLS from here on. Raises OSError (ssl.SSLError)."""
        loop = asyncio.get_running_loop()
        transport = await loop.start_tls(self._open, self, context, server_hostname=host)
        if transport is None:
            raise ConnectionResetError("closed during the TLS handshake")
        self._transport = transport

    def watch_for_death(self) -> None:
        """Notice within two minutes that the other end, or the way to it, is gone."""
        sock = self._open.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    async def finish(self, within_s: float) -> None:
        """Close once the other end has read all: what it still sends is thrown away, since unread
        data would turn our end into a reset, and what we said would be lost."""
        with contextlib.suppress(OSError, RuntimeError, TimeoutError):
            async with asyncio.timeout(within_s):
                if self._open.can_write_eof():
                    self._open.write_eof()
                while await self.read():
                    pass
        self.close()

    def close(self) -> None:
        """Close, sending first what was written."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once and so that the other end sees an error, not an end."""
        if self._transport is None:
            return
        sock = self._transport.get_extra_info("socket")
        with contextlib.suppress(OSError, AttributeError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._transport.abort()

    @property
    def _open(self) -> asyncio.Transport:
        assert self._transport is not None  # noqa: S101 - it was connected
        return self._transport

    def _wake(self) -> None:
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_result(None)
