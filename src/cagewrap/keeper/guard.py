"""A process that looks at what an agent makes below the root of the project, as it makes it."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable

from cagewrap.holding.sentry import Sentry
from cagewrap.holding.walk import WALK_S, Findings, Walk, load
from cagewrap.keeper import namespaces
from cagewrap.keeper.container import Container
from cagewrap.keeper.loop import Loop

_LENGTH = struct.Struct("I")
_MOST_BYTES = 64 << 20
_LATER_S = 0.25
"""It is started so long after a message began: a shorter one is followed by a walk at once."""
_WATCHES = "/proc/sys/fs/inotify/max_user_watches"


class Guard:
    """Of one session: one such process, while agents work."""

    def __init__(
        self,
        loop: Loop,
        container: Container,
        make: Callable[[float], Walk],
        log: Callable[[str], None],
    ) -> None:
        """make: a walk that takes so many seconds at most."""
        self._loop, self._container, self._make, self._log = loop, container, make, log
        self.told: Callable[[Findings, int], None] = lambda _found, _since_ns: None
        """Called with what was found, and since when it was looked for."""
        self.is_whole = False
        """Whether every directory is watched, as far as is known."""
        self.lacks = ""
        """A sentence on why not."""
        self._socket: socket.socket | None = None
        self._data = b""
        self._since_ns = 0
        self._is_wanted = False

    def start(self) -> None:
        """Begin soon, if it has not begun."""
        if not self._is_wanted:
            self._is_wanted = True
            self._loop.later(_LATER_S, self._begin)

    def stop(self) -> None:
        """No agent works any more."""
        self._is_wanted = self.is_whole = False
        if self._socket is not None:
            self._loop.unwatch(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def _begin(self) -> None:
        if not self._is_wanted or self._socket is not None:
            return
        ours, theirs = socket.socketpair()
        walk = self._make(WALK_S)
        self._since_ns, self._data = walk.since_ns, b""
        most = _most()

        def tell(found: Findings) -> None:
            data = found.dump()
            theirs.sendall(_LENGTH.pack(len(data)) + data)

        def look() -> None:
            with contextlib.suppress(OSError):  # of a container that has just ended
                namespaces.enter(namespaces.podman_user_namespace(self._container.init_pid))
            Sentry(walk, tell, most).run(theirs.fileno())

        try:
            pid = namespaces.spawn_inside(self._container.init_pid, (), theirs.fileno(), look)
        except OSError as error:
            ours.close()
            self._log(f"held back: {error}")
            return
        finally:
            theirs.close()
        self._socket = ours
        self.is_whole = True
        self._loop.on_end(pid, lambda _status: None)
        self._loop.watch(ours.fileno(), 1, lambda _mask: self._read())

    def _read(self) -> None:
        assert self._socket is not None  # noqa: S101
        chunk = self._socket.recv(1 << 16)
        self._data += chunk
        if not chunk or len(self._data) > _MOST_BYTES:
            self._log("held back: the process that watches the project has ended")
            self.stop()
            return
        while len(self._data) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._data)[0]
            if len(self._data) < end:
                return
            found = load(self._data[_LENGTH.size : end])
            self._data = self._data[end:]
            self._take(found)

    def _take(self, found: Findings) -> None:
        if not found.is_whole and self.is_whole:
            self.is_whole = False
            self.lacks = (
                "not every directory of this project can be watched: below its root, git may run "
                "what an agent has just written, until the project is looked through. "
                "sudo sysctl fs.inotify.max_user_watches=1048576"
            )
        self.told(found, self._since_ns)


def _most() -> int:
    """Half of the watches that the owner may have: editors need some."""
    try:
        with open(_WATCHES, encoding="ascii") as file:
            return int(file.read()) // 2
    except (OSError, ValueError):
        return 4096
