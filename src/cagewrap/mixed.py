"""The shim with some descriptors on a terminal (`cagewrap -- claude | tee log`, or a harness that
leaves stderr where it is).

A terminal never enters a cage, so the agent gets a pipe in its place, relayed as it is: the
terminal stays cooked. The others cross as they are.
"""

from __future__ import annotations

import fcntl
import os
import select

from cagewrap import protocol
from cagewrap.flows import LAST, TROUBLE, Flow, Relay, own_description
from cagewrap.shim import Shim

_PIPE_BYTES = 65536
_F_SETPIPE_SZ = 1031  # include/uapi/linux/fcntl.h
_PAGE_BYTES = 4096


class MixedRelay(Relay):
    """Between the terminal and pipes that stand for it in the cage."""

    def __init__(self, shim: Shim) -> None:
        """Nothing is opened yet."""
        super().__init__(shim)
        self._waiting: list[Flow] = []
        self._handed: set[int] = set()

    def run(self, command: list[str], cwd: bytes) -> None:
        """As the base says."""
        self.shim.forward_signals(self.got_signal)
        handed, flows = self._replace_terminals()
        self._handed = set(handed) - {0, 1, 2}
        self.shim.send_request(command, cwd, [protocol.MODE_MIXED], handed)
        self._waiting = flows
        self.serve()
        self._close_handed()
        for flow in flows:
            os.close(flow.target if flow.is_keyboard else flow.source)

    def _close_handed(self) -> None:
        """The keeper has the agent's ends now, or nobody will."""
        for fd in self._handed:
            os.close(fd)
        self._handed.clear()

    def _replace_terminals(self) -> tuple[list[int], list[Flow]]:
        """What the agent gets as 0, 1 and 2, and what carries the bytes.

        stdout and stderr on the same terminal stay one pipe: their lines keep their order.
        """
        handed = [0, 1, 2]
        flows: list[Flow] = []
        for fd in self.shim.relayed:
            if fd == 2 and 1 in self.shim.relayed and os.path.sameopenfile(1, 2):
                handed[2] = handed[1]
                continue
            reader, writer = os.pipe2(os.O_CLOEXEC)
            handed[fd] = writer if fd else reader
            flows.append(Flow(reader, own_description(fd)) if fd else _Lines(writer))
        return handed, flows

    def packet(self, packet: bytes) -> bool:
        """As the base says. Nothing is read before the agent runs: another keeper may get it."""
        kind = packet[:1]
        if kind == protocol.ACCEPTED:  # until then it may have to be asked again
            self._close_handed()
        elif kind == protocol.STARTED:
            self.flows = list(self._waiting)
            self.watched = tuple(flow.target for flow in self.flows if flow.is_keyboard)
        elif kind == protocol.STOPPED:
            if not self.is_overtaken(packet):
                self.suspend(os.getpid())
            return True
        elif kind in LAST:
            self.shim.send(protocol.SEEN)
            for flow in self.flows:
                if not flow.is_keyboard:
                    flow.drain(_PIPE_BYTES, self.signals)
        return self.shim.handle(packet)

    def look(self, events: dict[int, int]) -> None:
        """Once the agent has closed its stdin, what is typed is no longer for it."""
        for flow in list(self.flows):
            if flow.is_keyboard and events.get(flow.target, 0) & TROUBLE:
                self.drop(flow)

    def drop(self, flow: Flow) -> None:
        """Pass the end on: ctrl-d to the agent, or to the agent that nobody reads it."""
        super().drop(flow)
        self.watched = () if flow.is_keyboard else self.watched
        os.close(flow.target if flow.is_keyboard else flow.source)


class _Lines(Flow):
    """From the keyboard into a pipe, one line at a time and only when the agent has taken the one
    before: what it does not want stays on the terminal, for whoever reads there next."""

    def __init__(self, sink: int) -> None:
        super().__init__(0, sink)
        self.is_keyboard = True
        self._has_room = False
        fcntl.fcntl(sink, _F_SETPIPE_SZ, _PAGE_BYTES)  # one page: writable means empty

    def wanted(self) -> tuple[int, int]:
        """Room first, then a line."""
        return (0, select.POLLIN) if self._has_room else (self.target, select.POLLOUT)

    def step(self) -> bytes:
        """As the base says; the line fits, so it is never held."""
        if not self._has_room:
            self._has_room = True
            return b""
        self._has_room = False
        return super().step()
