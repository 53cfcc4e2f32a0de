"""The ports of a running cage: which lead in, which lead out, and the processes that carry them."""

from __future__ import annotations

import os
import signal
import socket

from cagewrap.errors import SessionError
from cagewrap.keeper import forward, namespaces
from cagewrap.keeper.inheritance import Known
from cagewrap.keeper.loop import Loop


class Ports:
    """Forwards between the host's loopback and the cage's. Made anew at each container start."""

    def __init__(self, loop: Loop, name: str, init_pid: int) -> None:
        """name: of the session, for error texts."""
        self._loop = loop
        self._name = name
        self._init_pid = init_pid
        self._pids: dict[tuple[str, int], int] = {}
        self.published: dict[int, int] = {}

    def hand_on(self) -> Known:
        """For the keeper that goes on as another build: their processes go on."""
        return {
            "processes": [(*key, pid) for key, pid in self._pids.items()],
            "published": list(self.published.items()),
        }

    def go_on(self, known: Known) -> None:
        """As that keeper."""
        self.published = dict(known.get("published", ()))
        for way, port, pid in known.get("processes", ()):
            self._serve((way, port), pid)

    def lead_in(self, inside: int, outside: int) -> None:
        """A port of the cage's loopback that leads to one of the host's. Raises SessionError."""
        if ("in", inside) in self._pids:
            return
        try:
            listener = namespaces.listen_inside(self._init_pid, inside)
        except OSError as error:
            raise SessionError(
                f"Port {inside} of the cage cannot be used: {error}.",
                f"choose another: --host-port {inside + 1}:{outside}",
            ) from error
        self._spawn(listener, outside, (), ("in", inside))

    def publish(self, outside: int, inside: int) -> None:
        """A port of the host's loopback that leads to one of the cage's. Raises SessionError."""
        if self.published.get(outside) == inside:
            return
        try:
            listener = forward.listen_on_host(outside)
        except OSError as error:
            raise SessionError(
                f"Port {outside} of this machine cannot be used: {error.strerror}.",
                f"cagewrap port {self._name} {outside + 1}:{inside}",
            ) from error
        self._spawn(listener, inside, ("net",), ("out", outside))
        self.published[outside] = inside

    def close(self) -> None:
        """End them all."""
        for pid in self._pids.values():
            os.kill(pid, signal.SIGKILL)
        self._pids.clear()

    def _spawn(
        self, listener: socket.socket, port: int, kinds: tuple[str, ...], key: tuple[str, int]
    ) -> None:
        def serve() -> None:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            forward.serve(listener, port)

        pid = namespaces.spawn_inside(self._init_pid, kinds, listener.fileno(), serve)
        listener.close()
        self._serve(key, pid)

    def _serve(self, key: tuple[str, int], pid: int) -> None:
        self._pids[key] = pid
        self._loop.on_end(pid, lambda _status: self._ended(key))

    def _ended(self, key: tuple[str, int]) -> None:
        self._pids.pop(key, None)
        if key[0] == "out":
            self.published.pop(key[1], None)
