"""Being told at once what an agent does in the root of the project (inotify(7))."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection

from cagewrap.holding import inotify
from cagewrap.keeper.insistence import Insistence
from cagewrap.keeper.loop import Loop

_MADE = inotify.CREATE | inotify.MOVED_TO
_DONE = inotify.CLOSE_WRITE | inotify.MOVED_TO | inotify.ATTRIB | inotify.ISDIR
"""Something is there as its writer wants it."""
_WRITING_S = 0.05
"""So long a file may be open for writing before it is looked at: git writes what it brings back
in steps, and only the whole of it is known."""
_MAKING_S = 1.0
"""A file that was made is written for so long at most; later it was opened again."""
_PAUSE_S = 0.01
"""After something happened, the next is looked at so much later: an agent may write for ever."""

_MASK = inotify.MODIFY | inotify.ATTRIB | inotify.CLOSE_WRITE | inotify.MOVED_TO | inotify.CREATE


class RootWatch:
    """Calls back when something with one of the names is made or written in a directory.

    Without inotify (too many watches on this machine) it never does: whoever needs to know looks
    from time to time as well.
    """

    def __init__(
        self, loop: Loop, root: int, changed: Callable[[], None], insistence: Insistence
    ) -> None:
        """root: a descriptor of the directory."""
        self._insistence = insistence
        self._made: dict[bytes, float] = {}
        self.names: Collection[bytes] = ()
        self._loop, self._root, self._changed = loop, root, changed
        self._fd = -1
        self._is_due = False

    def start(self) -> None:
        """Begin, if it has not begun."""
        if self._fd >= 0:
            return
        try:
            self._fd = inotify.open_on(self._root, _MASK)
        except OSError:
            return
        self._loop.watch(self._fd, 1, self._told)

    def stop(self) -> None:
        """No agent works any more."""
        if self._fd >= 0:
            self._loop.unwatch(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _told(self, _mask: int) -> None:
        fd = self._fd
        self._loop.unwatch(fd)
        try:
            found = [(one.name, one.mask) for one in inotify.read(fd) if one.name in self.names]
            masks = [mask for _, mask in found]
            self._count(found)
            if any(mask & _DONE for mask in masks):
                self._changed()
            elif masks and not self._is_due:
                self._is_due = True
                self._loop.later(_WRITING_S, self._due)
        finally:
            self._loop.later(_PAUSE_S, lambda: self._go_on(fd))

    def _count(self, found: list[tuple[bytes, int]]) -> None:
        """An agent may bring the owner's version back before it is looked at."""
        now = time.monotonic()
        made = {name for name, mask in found if mask & _MADE and not mask & inotify.ISDIR}
        self._made.update(dict.fromkeys(made, now))
        if made:
            self._insistence.made()
        written = {name for name, mask in found if mask & inotify.CLOSE_WRITE}
        self._insistence.written(
            [name for name in written if self._made.get(name, 0.0) < now - _MAKING_S]
        )

    def _due(self) -> None:
        self._is_due = False
        if self._fd >= 0:
            self._changed()

    def _go_on(self, fd: int) -> None:
        if self._fd == fd:
            self._loop.watch(fd, 1, self._told)
