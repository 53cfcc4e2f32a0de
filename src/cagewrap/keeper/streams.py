"""A message's three descriptors: which cross, and the relays of those that do not."""

from __future__ import annotations

import os
from collections.abc import Callable

from cagewrap.keeper.crossing import must_relay
from cagewrap.keeper.loop import Loop
from cagewrap.keeper.relay import InRelay, OutRelay, same_file


class Streams:
    """What a shim handed over: its own 0, 1 and 2, or nothing for a terminal."""

    def __init__(self, loop: Loop, fds: list[int], failed: Callable[[OSError], None]) -> None:
        """Owns the descriptors. failed: told when what the agent writes cannot be stored."""
        self.fds = fds
        self._loop = loop
        self._failed = failed
        self._ends: tuple[int, ...] = ()
        self._in: InRelay | None = None
        self._outs: list[OutRelay] = []

    def open(self) -> tuple[int, ...]:
        """The descriptors the agent gets, relays in place of what may not cross.

        Raises UnsupportedError for one that can neither cross nor be relayed.
        """
        if not self.fds:
            return ()
        is_relayed = [must_relay(fd, number) for number, fd in enumerate(self.fds)]
        source, out, err = self.fds
        if is_relayed[0]:
            self._in = InRelay(self._loop, os.dup(source))
            source = self._in.pipe_end
        out_end = self._relay(out) if is_relayed[1] else out
        if is_relayed[1] and is_relayed[2] and same_file(out, err):
            self._ends = (source, out_end, out_end)
        else:
            self._ends = (source, out_end, self._relay(err) if is_relayed[2] else err)
        return self._ends

    def release(self) -> None:
        """Let go of everything the agent has now, and of the shim's own: a copy kept here would
        hide from the harness that the agent closed its end."""
        for fd in {*self.fds, *self._ends}:
            os.close(fd)
        self.fds, self._ends = [], ()

    def drain(self) -> None:
        """Store what the agent has written, and give back what it did not read."""
        for relay in self._outs:
            relay.drain()
        self.close_input()

    def close_input(self) -> None:
        """Stop carrying input. Output goes on for what the agent left in the background."""
        if self._in is not None:
            self._in.close()

    def _relay(self, fd: int) -> int:
        relay = OutRelay(self._loop, os.dup(fd), self._failed)
        self._outs.append(relay)
        return relay.pipe_end
