"""Being told at once that another file has got a name: that of the owner's index, or `.git`."""

from __future__ import annotations

import os
from collections.abc import Callable

from cagewrap.holding import inotify
from cagewrap.keeper.loop import Loop

ANY_CHANGE = inotify.CREATE | inotify.DELETE | inotify.MOVED_FROM | inotify.MOVED_TO


class NameWatch:
    """Calls back when something is put in the place of a path, or taken away from there.

    Without inotify it never does; whoever needs to know looks from time to time as well.
    """

    def __init__(
        self,
        loop: Loop,
        changed: Callable[[], None],
        *,
        mask: int = inotify.MOVED_TO,
        pause_s: float = 0.0,
    ) -> None:
        """mask: which changes count. pause_s: after anything happened in the directory, so long is
        nothing looked at, for directories that an agent writes in for ever. Watches nothing yet."""
        self._loop, self._changed = loop, changed
        self._mask, self._pause_s = mask, pause_s
        self._name = b""
        self._fd = -1

    def start(self, path: str) -> None:
        """Begin, if it has not begun. path: "" for none."""
        if self._fd >= 0 or not path:
            return
        above, name = os.path.split(path)
        try:
            directory = os.open(above, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                self._fd = inotify.open_on(directory, self._mask)
            finally:
                os.close(directory)
        except OSError:
            return
        self._name = os.fsencode(name)
        self._loop.watch(self._fd, 1, self._told)

    def stop(self) -> None:
        """No agent works any more."""
        if self._fd >= 0:
            self._loop.unwatch(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _told(self, _mask: int) -> None:
        fd = self._fd
        is_changed = any(one.name == self._name for one in inotify.read(fd))
        if self._pause_s:
            self._loop.unwatch(fd)
            self._loop.later(self._pause_s, lambda: self._go_on(fd))
        if is_changed:
            self._changed()

    def _go_on(self, fd: int) -> None:
        if self._fd == fd:
            self._loop.watch(fd, 1, self._told)
