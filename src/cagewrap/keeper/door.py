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

Hold = Callable[[bytes], bool]
"""Whether whoever sends such a first packet is to be kept waiting, unread."""
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
        hold: Hold,
    ) -> None:
        """Owns the listener, which is bound to `path`. finished: see Message."""
        self._hold = hold
        self._held: set[Message] = set()
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
        self.let_in(connection)

    def let_in(self, connection: socket.socket) -> None:
        """Hear what a connection has to say."""
        connection.setblocking(True)  # noqa: FBT003
        message = Message(self._loop, connection, self._finished, log)
        self._newcomers.add(message)
        self._watch(message)

    def hand_on(self) -> tuple[int, list[int]]:
        """The listener, and the connections of those who have not been heard."""
        return self._listener.fileno(), [one.connection.fileno() for one in self._newcomers]

    def release(self) -> None:
        """Hear those who were kept waiting."""
        held, self._held = self._held, set()
        for message in held:
            self._watch(message)
            self._read(message, is_held=True)

    def _watch(self, message: Message) -> None:
        self._loop.watch(message.connection.fileno(), 1, lambda _mask: self._read(message))

    def _must_wait(self, message: Message) -> bool:
        """Look at a first packet, and leave it where it is."""
        if message not in self._newcomers:
            return False
        flags = socket.MSG_PEEK | socket.MSG_DONTWAIT
        try:
            return self._hold(message.connection.recv(protocol.PACKET_BYTES, flags))
        except OSError:
            return False

    def _read(self, message: Message, *, is_held: bool = False) -> None:
        if not is_held and self._must_wait(message):
            self._loop.unwatch(message.connection.fileno())
            self._held.add(message)
            return
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
                self._read(message, is_held=True)

    def close(self) -> None:
        """Nobody finds us any more. Who knocked and was not let in is told so by a reset, and
        tries again."""
        if self._listener.fileno() < 0:
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        self._loop.unwatch(self._listener.fileno())
        self._listener.close()
