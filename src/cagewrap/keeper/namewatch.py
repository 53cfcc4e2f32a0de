"""Being told at once that another file has got a name: that of the owner's index, or `.git`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from cagewrap.holding import inotify
from cagewrap.keeper.loop import Loop

_MASK = inotify.CREATE | inotify.DELETE | inotify.MOVED_FROM | inotify.MOVED_TO


class NameWatch:
    """Calls back when something is put in the place of a path, or taken away from there.

    Without inotify it never does; whoever needs to know looks from time to time as well.
    """

    def __init__(self, loop: Loop) -> None:
        """Watches nothing yet."""
        self._loop = loop
        self._fd = -1
        self._told: dict[tuple[int, bytes], Callable[[], None]] = {}

    def start(self, wanted: Mapping[str, Callable[[], None]]) -> None:
        """Begin, if it has not begun. wanted: what to call, by path; "" is none."""
        if self._fd >= 0:
            return
        try:
            self._fd = inotify.open_queue()
        except OSError:
            return
        for path, call in wanted.items():
            above, name = os.path.split(path)
            try:
                directory = os.open(above, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                watch = inotify.add(self._fd, directory, _MASK)
            except OSError:
                continue
            finally:
                os.close(directory)
            self._told[watch, os.fsencode(name)] = call
        self._loop.watch(self._fd, 1, self._read)

    def stop(self) -> None:
        """No agent works any more."""
        if self._fd >= 0:
            self._loop.unwatch(self._fd)
            os.close(self._fd)
            self._fd = -1
            self._told.clear()

    def _read(self, _mask: int) -> None:
        seen = {(event.watch, event.name) for event in inotify.read(self._fd)}
        for call in [self._told[one] for one in seen if one in self._told]:
            call()
