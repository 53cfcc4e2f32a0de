"""Who knocks at a keeper: connections from the listening socket, and the packets on them."""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections.abc import Callable

from cagewrap import protocol
from cagewrap.errors import CagewrapError, InternalError
from cagewrap.keeper import rights
from cagewrap.keeper.begin import log
from cagewrap.keeper.loop import Loop
from cagewrap.keeper.message import Message

REQUEST_S = 1.0
"""Between a shim's connect and its request."""
_MOST_FDS = 4

Handle = Callable[[Message, bytes, bytes, list[int]], None]
"""Takes a message, a packet's kind (b"" when its shim is gone), its text and its descriptors."""


class Door:
    """The listening socket of a cage, and those who have not said yet what they want."""

    def __init__(
        self,
        loop: Loop,
        listener: socket.socket,
        path: str,
        handle: Handle,
        finished: Callable[[Message], None],
    ) -> None:
        """Owns the listener, which is bound to `path`. finished: see Message."""
        self._loop = loop
        self._listener = listener
        self._path = path
        self._handle = handle
        self._finished = finished
        self._newcomers: set[Message] = set()
        listener.setblocking(False)  # noqa: FBT003
        loop.watch(listener.fileno(), 1, self._accept)

    def _accept(self, _mask: int) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        connection.setblocking(True)  # noqa: FBT003
        message = Message(self._loop, connection, self._finished, log)
        self._newcomers.add(message)
        self._loop.watch(connection.fileno(), 1, lambda _mask: self._read(message))

    def _read(self, message: Message) -> None:
        try:
            packet, fds = rights.receive(
                message.connection, protocol.PACKET_BYTES, _MOST_FDS, socket.MSG_DONTWAIT
            )
        except BlockingIOError:
            return
        except OSError:
            packet, fds = b"", []
        self._newcomers.discard(message)
        try:
            self._handle(message, packet[:1], packet[1:], fds)
        except CagewrapError as error:
            self._turn_away(message, error)
        except Exception as error:  # noqa: BLE001 - one message's bug must not end the others
            log(f"bug: {type(error).__name__}: {error}")
            self._turn_away(
                message, InternalError(f"A bug in the keeper: {error!r}.", "cagewrap logs")
            )

    def _turn_away(self, message: Message, error: CagewrapError) -> None:
        message.reply_error(error)
        self.drop(message)

    def drop(self, message: Message) -> None:
        """Close a connection; end what was started for it."""
        if message.connection.fileno() < 0:
            return
        self._loop.unwatch(message.connection.fileno())
        if message.request is not None:
            message.hang_up()
        else:
            message.connection.close()

    def read_pending(self) -> None:
        """Take the requests of all who are here, so that each hears what is said to all."""
        count = -1
        while count < len(self._newcomers):
            count = len(self._newcomers)
            self._accept(1)
        for message in list(self._newcomers):
            if select.select([message.connection], [], [], REQUEST_S)[0]:
                self._read(message)

    def close(self) -> None:
        """Nobody finds us any more. Who knocked and was not let in is told so by a reset, and
        tries again."""
        if self._listener.fileno() < 0:
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        self._loop.unwatch(self._listener.fileno())
        self._listener.close()
