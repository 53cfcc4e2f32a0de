"""Carrying bytes between the owner's terminal and the cage while the shim waits for its agent.

What the two relays (`terminal`, `mixed`) have in common: one loop over the keeper's packets, the
signals and the bytes. A harness that leaves only stderr on a terminal is the most frequent case,
so the imports are counted here too: `_signal` and `_socket`'s methods, no `signal`, no `socket`.
"""

from __future__ import annotations

import _signal
import os
import select

from cagewrap import protocol
from cagewrap.shim import Shim

CHUNK_BYTES = 65536
BACKGROUND_S = 0.25
"""How often a job in the background looks whether it was brought to the foreground."""
LAST = (protocol.EXITED, protocol.KILLED, protocol.ERROR, b"")
"""The packets after which there is nothing more to relay."""
TROUBLE = select.POLLHUP | select.POLLERR | select.POLLNVAL
_TYPED = (_signal.SIGINT, _signal.SIGQUIT, _signal.SIGTSTP, _signal.SIGHUP, _signal.SIGCONT)
"""Signals that a terminal or a job-control shell sends to a whole process group."""


class Flow:
    """Bytes from one descriptor to another. What the target does not take yet is held, and
    nothing more is read until it has."""

    def __init__(self, source: int, target: int) -> None:
        """Owns neither."""
        self.source, self.target = source, target
        self.held = b""
        self.is_open = True
        self.is_keyboard = False

    def wanted(self) -> tuple[int, int]:
        """The descriptor and poll event that `step` waits for."""
        return (self.target, select.POLLOUT) if self.held else (self.source, select.POLLIN)

    def step(self) -> bytes:
        """Go on by one read, one write or both; returns what was read."""
        data = b""
        try:
            if not self.held:
                self.held = data = os.read(self.source, CHUNK_BYTES)
                self.is_open = bool(data)
            self.held = self.held[os.write(self.target, self.held) :] if self.held else b""
        except BlockingIOError:
            pass
        except OSError:  # the terminal hung up, or nobody reads the pipe any more
            self.is_open, self.held = False, b""
        return data

    def drain(self, most: int, signals: list[int]) -> None:
        """Carry what is held and what can be read at this moment, up to `most` bytes of it.

        A process left in the background may go on writing: what it writes later is not waited
        for. Nor is a terminal that takes nothing, once a signal that ends us is in `signals`.
        """
        source, target = select.poll(), select.poll()
        source.register(self.source, select.POLLIN)
        target.register(self.target, select.POLLOUT)
        while self.is_open and (self.held or (most > 0 and source.poll(0))):
            if self.held and not target.poll(BACKGROUND_S * 1000):
                if _signal.SIGTERM in signals or _signal.SIGHUP in signals:
                    return
                continue
            most -= len(self.step())


class Relay:
    """Waits for the keeper's packets, signals and bytes, all at once."""

    def __init__(self, shim: Shim) -> None:
        """Nothing is sent yet. A subclass sets `watched`: descriptors whose hang-up wakes the
        loop."""
        self.shim = shim
        self.flows: list[Flow] = []
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.signals: list[int] = []
        self._continued = 0
        self.watched: tuple[int, ...] = ()

    def run(self, command: list[str], cwd: bytes) -> None:
        """Hand over and relay; ends as the agent ends. Returns only when this keeper never
        began."""
        raise NotImplementedError

    def serve(self) -> None:
        """Until the keeper turns out not to have begun."""
        _signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        connection = self.shim.connection.fileno()
        while True:
            events = self._wait(connection)
            if self._wake_read in events:
                os.read(self._wake_read, CHUNK_BYTES)
            self.look(events)
            while self.signals:
                self.signal(self.signals.pop(0))
            for flow in list(self.flows):
                fd, mask = flow.wanted()
                if events.get(fd, 0) & (mask | TROUBLE):
                    self.step(flow)
            if connection in events and not self.packet(self.receive()):
                _signal.set_wakeup_fd(-1)
                return

    def _wait(self, connection: int) -> dict[int, int]:
        masks = dict.fromkeys(self.watched, 0)
        masks |= {connection: select.POLLIN, self._wake_read: select.POLLIN}
        is_front = in_foreground()
        self.stand(is_front=is_front)
        for flow in self.flows:
            if is_front or not flow.is_keyboard:
                fd, mask = flow.wanted()
                masks[fd] = masks.get(fd, 0) | mask
        poll = select.poll()
        for fd, mask in masks.items():
            poll.register(fd, mask)
        wait_s = 0.0 if self.signals else None if is_front else BACKGROUND_S
        return dict(poll.poll(None if wait_s is None else wait_s * 1000))

    def step(self, flow: Flow) -> None:
        """A flow can go on; one that has ended is forgotten."""
        flow.step()
        if not flow.is_open:
            self.drop(flow)

    def drop(self, flow: Flow) -> None:
        """A flow has come to its end."""
        self.flows.remove(flow)

    def got_signal(self, number: int, _frame: object = None) -> None:
        """The handler: keep it for the loop, once. It is the interpreter that wakes the loop: it
        may run this only when the wait is over."""
        if number not in self.signals:
            self.signals.append(number)

    def receive(self) -> bytes:
        """The keeper's next packet."""
        return self.shim.receive()

    def packet(self, packet: bytes) -> bool:
        """Act on a packet. False: this keeper never began."""
        return self.shim.handle(packet)

    def signal(self, number: int) -> None:
        """Send a signal on: to all of the agent's group what a terminal would send to all."""
        self._continued += number == _signal.SIGCONT
        kind = protocol.GROUP_SIGNAL if number in _TYPED else protocol.SIGNAL
        self.shim.send(kind + b"%d" % number)

    def stand(self, *, is_front: bool) -> None:
        """Before each wait: whether we are in the foreground of the terminal."""

    def look(self, events: dict[int, int]) -> None:
        """After each wait: what of `watched` has hung up."""

    def is_overtaken(self, packet: bytes) -> bool:
        """Whether the agent's stop came before a CONT that we have sent on meanwhile."""
        return int(packet[1:]) < self._continued

    def suspend(self, pid: int) -> None:
        """Stop as by ctrl-z (pid 0: our whole process group), and let the agent go on after.

        With the default action it is the kernel that decides: in a group without a shell that
        could continue it, nothing stops.
        """
        handler = _signal.getsignal(_signal.SIGTSTP)
        if handler != _signal.SIG_IGN:
            _signal.signal(_signal.SIGTSTP, _signal.SIG_DFL)
            os.kill(pid, _signal.SIGTSTP)
            _signal.signal(_signal.SIGTSTP, handler)
        self.got_signal(_signal.SIGCONT)


def own_description(fd: int) -> int:
    """A terminal, opened again so that it never blocks us and still blocks everyone else."""
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return fd  # another user's (su): we may use it, not open it


def in_foreground() -> bool:
    """Whether the terminal on fd 0 is ours to read and change: no other job's."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return True  # not a terminal, or not the one that controls us
