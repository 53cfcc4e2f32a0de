"""The shim's side of one message: the hand-over to the keeper, and ending as the agent ends.

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
from cagewrap.builds import own_build
from cagewrap.errors import CagewrapError, KeeperError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

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


_WAIT_S = 1_000_000.0
"""How long one wait for the keeper lasts; poll(2) takes 24 days at most."""


def _sent_already(_number: int, _frame: object) -> None:
    """The number is in the keeper's socket before Python code runs."""


class Shim:
    """One hand-over to one keeper."""

    def __init__(self, connection: _socket.socket, ticket: warm.Ticket) -> None:
        """Nothing is sent yet. Raises KeeperError for a keeper of another user."""
        refuse_stranger(connection)
        self.connection = connection
        self.ticket = ticket
        self.accepted = False
        self.is_terminal = os.isatty(0) and os.isatty(1) and os.isatty(2)
        self.relayed = () if self.is_terminal else tuple(fd for fd in (0, 1, 2) if os.isatty(fd))
        self._again: Callable[[int], None] = lambda _version: None

    def run(self, command: list[str], cwd: bytes) -> None:
        """Hand over pipes, sockets and files, and end as the agent ends.

        Returns only when this keeper never began.
        """
        self.connection.settimeout(_WAIT_S)  # the descriptor set_wakeup_fd takes does not block
        _signal.set_wakeup_fd(self.connection.fileno(), warn_on_full_buffer=False)
        self.forward_signals(_sent_already)
        self.send_request(command, cwd, [protocol.MODE_STREAMS], [0, 1, 2])
        while self.handle(self.receive()):
            pass
        _signal.set_wakeup_fd(-1)

    def send_request(
        self, command: list[str], cwd: bytes, head: list[bytes], fds: list[int]
    ) -> None:
        """Send the command, the environment and the three descriptors (none for a terminal).

        head: the mode, and what belongs to it.
        """
        self._again = lambda version: self._send_request(version, command, cwd, head, fds)
        self._again(protocol.NEWEST)

    def _send_request(
        self, version: int, command: list[str], cwd: bytes, head: list[bytes], fds: list[int]
    ) -> None:
        """version: of the protocol; all are the same so far."""
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
        build = own_build()
        packet = protocol.pack_request(version, (build.id, build.executable, build.root))
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

    def send(self, packet: bytes) -> None:
        """Send a packet; a keeper that is gone is noticed by the next recv."""
        try:
            self.connection.send(packet)
        except OSError:
            return

    def receive(self) -> bytes:
        """The next packet; b"" when the keeper is gone."""
        while True:
            try:
                return self.connection.recv(protocol.PACKET_BYTES)
            except TimeoutError:
                continue
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
        elif kind == protocol.UNSPOKEN:
            self._speak(text)
        elif kind == protocol.RETRY or not self.accepted:
            return False
        else:
            self.keeper_died()
        return True

    def _speak(self, text: bytes) -> None:
        """Ask again in a version that an older or younger keeper, which is at work, speaks."""
        oldest, newest = (int(word) for word in text.split()[:2])
        version = protocol.common_version(oldest, newest)
        if not version:
            name = os.path.basename(os.fsdecode(self.ticket.socket)).removesuffix(".sock")
            raise KeeperError(
                f"The cage {name} is kept by another version of cagewrap (it speaks {oldest} to "
                f"{newest}, this one {protocol.OLDEST} to {protocol.NEWEST}), and it cannot be "
                "relieved while its agents are at work.",
                f"wait until they have ended, or end them: cagewrap stop {name}",
            )
        self._again(version)

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


def refuse_stranger(connection: _socket.socket) -> None:
    """Raise KeeperError unless the socket was made by this user: what is sent has secrets in it."""
    peer = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)  # pid, uid, gid
    uid = int.from_bytes(peer[4:8], sys.byteorder)
    if uid != os.getuid():
        connection.close()
        raise KeeperError(
            f"The cage's socket was made by uid {uid}, not by you.",
            "export XDG_RUNTIME_DIR=/run/user/$(id -u)",
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
