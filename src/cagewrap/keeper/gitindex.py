"""Being told at once that the owner's git has written its index."""

from __future__ import annotations

import os
from collections.abc import Callable

from cagewrap.holding import inotify
from cagewrap.keeper.loop import Loop


class IndexWatch:
    """Calls back when a file is put in the place of an index: git writes beside it, and renames.

    Without inotify it never does; whoever needs to know looks from time to time as well.
    """

    def __init__(self, loop: Loop, written: Callable[[], None]) -> None:
        """Watches nothing yet."""
        self._loop, self._written = loop, written
        self._name = b""
        self._fd = -1

    def start(self, index: str) -> None:
        """Begin, if it has not begun. index: its path; "" for none."""
        if self._fd >= 0 or not index:
            return
        above, name = os.path.split(index)
        queue = directory = -1
        try:
            queue = inotify.open_queue()
            directory = os.open(above, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            inotify.add(queue, directory, inotify.MOVED_TO)
        except OSError:
            if queue >= 0:
                os.close(queue)
            return
        finally:
            if directory >= 0:
                os.close(directory)
        self._fd, self._name = queue, os.fsencode(name)
        self._loop.watch(queue, 1, self._told)

    def stop(self) -> None:
        """No agent works any more."""
        if self._fd >= 0:
            self._loop.unwatch(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _told(self, _mask: int) -> None:
        if any(one.name == self._name for one in inotify.read(self._fd)):
            self._written()
