"""The shim: one short-lived, childless process per message.

It finds the cage's keeper, hands over the command and its own three file descriptors, and waits.
Everything here runs before the agent does, so the imports are part of the budget: the C modules
`_socket` and `_signal` stand in for `socket` and `signal`, which pull in `enum` and `selectors`
(4 ms). Whatever is rarely needed is imported where it is needed.
"""

from __future__ import annotations

import _signal
import _socket
import os
import sys

from cagewrap import protocol, warm
from cagewrap.errors import CagewrapError, DirectoryError, KeeperError

_FORWARDED = (
    _signal.SIGINT,
    _signal.SIGTERM,
    _signal.SIGHUP,
    _signal.SIGQUIT,
    _signal.SIGUSR1,
    _signal.SIGUSR2,
    _signal.SIGWINCH,
    _signal.SIGCONT,
    _signal.SIGTSTP,
)
_CONNECT_TRIES = 8
"""A keeper that is about to stop sends the shim away; each try may meet one such keeper."""


def wrap(flags: list[str], command: list[str]) -> None:
    """Run `command` in the cage that `flags` and the current directory choose; never returns
    unless it raises CagewrapError."""
    _occupy_closed_fds()
    try:
        cwd = os.getcwdb()
    except OSError as error:
        raise DirectoryError(
            "The current directory no longer exists, so there is nothing to work in.", "cd ~"
        ) from error
    raw_flags = [os.fsencode(flag) for flag in flags]
    ticket = warm.read_ticket(cwd, raw_flags) if command else None  # the full path says it
    connection = _connect(ticket.socket) if ticket else None
    for _ in range(_CONNECT_TRIES):
        if ticket is None or connection is None:
            from cagewrap import launch

            ticket, connection = launch.prepare(flags, command, cwd)
        Shim(connection, ticket).run(command, cwd)
        connection = None
        _wait_a_moment()
    raise _kept_leaving()


def wrap_in(name: str, command: list[str]) -> None:
    """Run `command` in the cage of that name, in the current directory; never returns."""
    from cagewrap import launch

    _occupy_closed_fds()
    for _ in range(_CONNECT_TRIES):
        ticket, connection = launch.prepare_named(name)
        Shim(connection, ticket).run(command, os.getcwdb())
        _wait_a_moment()
    raise _kept_leaving()


def _wait_a_moment() -> None:
    """Let a keeper that is leaving leave."""
    import time

    time.sleep(0.1)


def _kept_leaving() -> KeeperError:
    return KeeperError(
        f"The cage's keeper went away {_CONNECT_TRIES} times before it took the command.",
        "cagewrap logs",
    )


class Shim:
    """One hand-over to one keeper."""

    def __init__(self, connection: _socket.socket, ticket: warm.Ticket) -> None:
        """Nothing is sent yet."""
        self.connection = connection
        self.ticket = ticket
        self.accepted = False
        self.is_terminal = os.isatty(0) and os.isatty(1) and os.isatty(2)
        self.relayed = () if self.is_terminal else tuple(fd for fd in (0, 1, 2) if os.isatty(fd))

    def run(self, command: list[str], cwd: bytes) -> None:
        """Hand over and end as the agent ends. Returns only when this keeper never began."""
        if self.is_terminal:
            from cagewrap.terminal import TerminalRelay

            TerminalRelay(self).run(command, cwd)
            return
        if self.relayed:
            from cagewrap.mixed import MixedRelay

            MixedRelay(self).run(command, cwd)
            return
        self.forward_signals(self.send_signal)
        self.send_request(command, cwd, [protocol.MODE_STREAMS], [0, 1, 2])
        while self.handle(self.receive()):
            pass

    def send_request(
        self, command: list[str], cwd: bytes, head: list[bytes], fds: list[int]
    ) -> None:
        """Send the command, the environment and the three descriptors (none for a terminal).

        head: the mode, and what belongs to it.
        """
        sections = [
            head,
            [os.fsencode(word) for word in command],
            [name + b"=" + value for name, value in os.environb.items()],
            [cwd],
            *self.ticket.policy,
        ]
        body = os.memfd_create("cagewrap-request")
        os.write(body, protocol.pack_sections(sections))
        rights = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (body, *fds))
        packet = protocol.REQUEST + protocol.VERSION
        try:
            self.connection.sendmsg([packet], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
        except OSError:
            return  # the keeper is gone: recv says so next
        finally:
            os.close(body)

    def forward_signals(self, handler: object) -> None:
        """Send each forwardable signal on to the agent; what is ignored stays ignored."""
        for number in _FORWARDED:
            if _signal.getsignal(number) != _signal.SIG_IGN:
                _signal.signal(number, handler)

    def send_signal(self, number: int, _frame: object = None) -> None:
        """Tell the keeper to signal the agent."""
        self.send(protocol.SIGNAL + b"%d" % number)

    def send(self, packet: bytes) -> None:
        """Send a packet; a keeper that is gone is noticed by the next recv."""
        try:
            self.connection.send(packet)
        except OSError:
            return

    def receive(self) -> bytes:
        """The next packet; b"" when the keeper is gone."""
        try:
            return self.connection.recv(protocol.PACKET_BYTES)
        except OSError:
            return b""

    def handle(self, packet: bytes) -> bool:
        """Act on one packet. False: this keeper never began, try another."""
        kind, text = packet[:1], packet[1:]
        if kind == protocol.ACCEPTED:
            self.accepted = True
        elif kind == protocol.STARTED:
            self.close_streams()
        elif kind == protocol.EXITED:
            os._exit(int(text))
        elif kind == protocol.KILLED:
            end_by_signal(int(text))
        elif kind == protocol.STOPPED:
            os.kill(os.getpid(), _signal.SIGSTOP)
        elif kind == protocol.NOTE:
            os.write(2, b"cagewrap: " + text + b"\n")
        elif kind == protocol.ERROR:
            raise _error(text)
        elif not self.accepted:
            self.connection.close()
            return False
        else:
            self.keeper_died()
        return True

    def close_streams(self) -> None:
        """Drop our copies of stdin and stdout, so that the harness sees the agent close its own."""
        if not self.is_terminal:
            for fd in {0, 1} - set(self.relayed):
                os.close(fd)

    def keeper_died(self) -> None:
        """The keeper was killed while the agent ran: leave nothing running, and say so."""
        from cagewrap import launch

        launch.clean_after_keeper(self.ticket.socket)
        raise KeeperError(
            "The cage's keeper was killed while the agent ran; the agent was stopped.",
            "send the message again",
        )


def end_by_signal(number: int) -> None:
    """End as the agent ended: by the same signal, without a core dump of our own."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number not in (_signal.SIGKILL, _signal.SIGSTOP):
        _signal.signal(number, _signal.SIG_DFL)
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    os._exit(128 + number)


def _error(text: bytes) -> CagewrapError:
    code, message, hint = (part.decode(errors="replace") for part in text.split(b"\0"))
    error = CagewrapError(message, hint)
    error.exit_code = int(code)
    return error


def _connect(path: bytes) -> _socket.socket | None:
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    try:
        connection.connect(path)
    except OSError:
        connection.close()
        return None
    return connection


def _occupy_closed_fds() -> None:
    """Put /dev/null where 0, 1 or 2 came closed, so that no file of ours lands there."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open("/dev/null", os.O_RDONLY if fd == 0 else os.O_WRONLY)
            os.set_inheritable(fd, True)  # noqa: FBT003
