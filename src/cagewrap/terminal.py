"""The shim with all three descriptors on a terminal.

The owner's terminal never enters a cage: a process there could push input into it. The agent gets
a pty made in the cage, whose master is relayed here with the owner's terminal set raw.
"""

from __future__ import annotations

import _signal
import _socket
import array
import fcntl
import os
import select
import sys
import termios

from cagewrap import protocol
from cagewrap.flows import CHUNK_BYTES, LAST, TROUBLE, Flow, Relay, in_foreground, own_description
from cagewrap.shim import Shim, end_by_signal

_BUFFERED_BYTES = 65536
"""More than a pty holds (drivers/tty/pty.c: 8 KiB each way, and the line discipline's 4)."""
_WORD_BYTES = array.array("i").itemsize


class TerminalRelay(Relay):
    """Between the owner's terminal and the master of the agent's pty."""

    def __init__(self, shim: Shim) -> None:
        """Reads the terminal's attributes."""
        super().__init__(shim)
        self.saved = termios.tcgetattr(0)
        self.end_of_input = bytes(self._codes()[termios.VEOF : termios.VEOF + 1])
        self.is_raw = False
        self.watched = (0,)
        self.master = -1
        self.agent = 0

    def run(self, command: list[str], cwd: bytes) -> None:
        """As the base says."""
        self.shim.forward_signals(self.got_signal)
        _signal.signal(_signal.SIGTTOU, _signal.SIG_IGN)
        self.shim.send_request(command, cwd, [protocol.MODE_TERMINAL, *self._describe()], [])
        try:
            self.serve()
        finally:
            self.give_back()

    def _describe(self) -> list[bytes]:
        """Rows and columns, and the attributes that the agent's pty starts with."""
        columns, rows = os.get_terminal_size(0)
        return [b"%d" % number for number in (rows, columns, *self.saved[:6], *self._codes())]

    def _codes(self) -> list[int]:
        """The terminal's special characters, as numbers."""
        characters: list[bytes | int] = self.saved[6]
        return [code if isinstance(code, int) else code[0] for code in characters]

    # -- packets -------------------------------------------------------------------------------

    def receive(self) -> bytes:
        """The next packet; one of them carries the pty's master."""
        try:
            packet, rights, _, _ = self.shim.connection.recvmsg(
                protocol.PACKET_BYTES, _socket.CMSG_SPACE(_WORD_BYTES), _socket.MSG_CMSG_CLOEXEC
            )
        except OSError:
            return b""
        for _, _, data in rights:
            self.master = int.from_bytes(data[:_WORD_BYTES], sys.byteorder)
        return packet

    def packet(self, packet: bytes) -> bool:
        """As the base says, with the terminal in the state that belongs to it."""
        kind = packet[:1]
        if kind == protocol.TERMINAL:
            return True
        if kind == protocol.STARTED:
            self._begin(int(packet[1:]))
        elif kind == protocol.STOPPED:
            if not self.is_overtaken(packet):
                self.give_back()
                self.suspend(0)
            return True
        elif kind == protocol.NOTE and self.is_raw:
            packet += b"\r"
        elif kind in LAST:
            self.shim.send(protocol.SEEN)
            self._finish()
        return self.shim.handle(packet)

    def _begin(self, agent: int) -> None:
        """Relay from now on. What a runtime wrote to the pty of a command that did not start is
        never shown: the error says it."""
        self.agent = agent
        os.set_blocking(self.master, False)
        keyboard = own_description(0)
        keys = _Keys(keyboard, self)
        if in_foreground():
            keys.held = self._typed_ahead(keyboard)
        self.flows = [Flow(self.master, own_description(1)), keys]
        self.resize()

    def _typed_ahead(self, keyboard: int) -> bytes:
        """The lines typed so far. Read while the terminal is not yet raw, ctrl-d is an end of
        input; later it would be a NUL."""
        poll = select.poll()
        poll.register(keyboard, select.POLLIN)
        typed = b""
        while poll.poll(0) == [(keyboard, select.POLLIN)]:
            typed += os.read(keyboard, CHUNK_BYTES) or self.end_of_input
        return typed

    def _finish(self) -> None:
        """Show what the agent wrote before it ended, then give the terminal back."""
        for flow in self.flows:
            if flow.source == self.master:
                flow.drain(_BUFFERED_BYTES, self.signals)
        self.flows = []
        self.give_back()

    # -- the owner's terminal ------------------------------------------------------------------

    def stand(self, *, is_front: bool) -> None:
        """Raw while we relay in the foreground; in the background it is somebody else's."""
        if not is_front:
            self.is_raw = False
        elif self.flows and not self.is_raw:
            self._take()

    def _take(self) -> None:
        """Raw, keeping what was typed ahead (TCSANOW; tty.setraw would throw it away)."""
        try:
            raw = termios.tcgetattr(0)
            raw[0] &= ~(
                termios.BRKINT | termios.ICRNL | termios.INLCR | termios.IGNCR | termios.INPCK
                | termios.ISTRIP | termios.IXON | termios.PARMRK
            )  # fmt: skip
            raw[1] &= ~termios.OPOST
            raw[2] = (raw[2] & ~(termios.CSIZE | termios.PARENB)) | termios.CS8
            raw[3] &= ~(
                termios.ECHO | termios.ECHONL | termios.ICANON | termios.IEXTEN | termios.ISIG
            )
            raw[6][termios.VMIN], raw[6][termios.VTIME] = 1, 0
            termios.tcsetattr(0, termios.TCSANOW, raw)
        except termios.error:
            return  # it hung up: `look` sees that
        self.is_raw = True

    def give_back(self) -> None:
        """Leave the terminal as it was found."""
        if self.is_raw:
            self.is_raw = False
            try:
                termios.tcsetattr(0, termios.TCSADRAIN, self.saved)
            except termios.error:
                return

    def resize(self) -> None:
        """Give the pty, once there is one, the outer window's size; the kernel tells the agent."""
        if self.master < 0:
            return
        size = array.array("H", [0, 0, 0, 0])
        try:
            fcntl.ioctl(0, termios.TIOCGWINSZ, size)
            fcntl.ioctl(self.master, termios.TIOCSWINSZ, size)
        except OSError:
            return

    def look(self, events: dict[int, int]) -> None:
        """A terminal that hung up takes along the agent and all it started."""
        if events.get(0, 0) & TROUBLE:
            self._hang_up()

    def _hang_up(self) -> None:
        self.shim.connection.close()
        end_by_signal(_signal.SIGHUP)

    # -- signals -------------------------------------------------------------------------------

    def signal(self, number: int) -> None:
        """As the base says. A new size is the pty's affair; after a stop the terminal is taken
        again; a hang-up is told apart from a signal by someone."""
        if number == _signal.SIGWINCH:
            self.resize()
            return
        if number == _signal.SIGHUP and _is_hung_up(0):
            self._hang_up()
        if number == _signal.SIGCONT:
            self.is_raw = False
            self.resize()
        super().signal(number)

    def suspends(self, keys: bytes) -> bool:
        """Whether among these is ctrl-z for the agent itself.

        The pty stops its foreground group, but the kernel drops that stop when the group is
        orphaned, as the agent's is: its parent is in another session.
        """
        try:
            attributes = termios.tcgetattr(self.master)
            foreground = os.tcgetpgrp(self.master)
        except (termios.error, OSError):
            return False
        is_on = bool(attributes[3] & termios.ISIG)
        return is_on and attributes[6][termios.VSUSP] in keys and foreground == self.agent


class _Keys(Flow):
    """From the owner's keyboard to the pty."""

    def __init__(self, source: int, relay: TerminalRelay) -> None:
        super().__init__(source, relay.master)
        self.is_keyboard = True
        self.relay = relay

    def step(self) -> bytes:
        keys = super().step()
        if keys and self.relay.suspends(keys):
            self.relay.shim.send(protocol.SUSPEND)
        return keys


def _is_hung_up(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, 0)
    return bool(poll.poll(0))
