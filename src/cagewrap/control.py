"""A keeper as a person's verbs see it: asked, and killed when it does not answer.

A keeper can be stopped by a signal, or be out of order; that must not keep its owner from listing,
stopping and removing sessions.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from cagewrap import protocol, sessions
from cagewrap.errors import CagewrapError, KeeperError, SessionError
from cagewrap.keeper.processes import descendants
from cagewrap.keepersocket import try_connect
from cagewrap.paths import Paths

ASK_S = 5.0
"""How long a keeper may take to answer what it knows already."""
_LOCK_S = 10.0
"""How long a keeper that is leaving may hold its locks."""
_DEATH_S = 5.0
"""How long a killed process may take to be gone."""

Answer = Mapping[str, object]


def ask(paths: Paths, name: str, command: Answer, timeout_s: float = ASK_S) -> Answer | None:
    """A keeper's answer, or None when no keeper runs. Raises CagewrapError."""
    connection = _connect(paths, name, timeout_s)
    return None if connection is None else exchange(connection, name, command, timeout_s)


def ask_all(
    paths: Paths, names: Iterable[str], command: Answer
) -> tuple[dict[str, Answer], set[str]]:
    """The answers of those whose keeper runs, and the names of those that gave none in time."""
    asked: dict[str, socket.socket] = {}
    answers: dict[str, Answer] = {}
    silent: set[str] = set()
    deadline = time.monotonic() + ASK_S
    for name in names:
        try:
            connection = _connect(paths, name, max(0.01, deadline - time.monotonic()))
            if connection is not None:
                asked[name] = connection
                _send(connection, name, command)
        except CagewrapError:
            silent.add(name)
    for name, connection in asked.items():
        with connection:
            connection.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                answers[name] = _receive(connection, name)
            except CagewrapError:
                silent.add(name)
    return answers, silent


def exchange(connection: socket.socket, name: str, command: Answer, timeout_s: float) -> Answer:
    """Send one command to a keeper and wait for its answer; closes the connection."""
    with connection:
        connection.settimeout(timeout_s)
        _send(connection, name, command)
        return _receive(connection, name)


def is_listening(paths: Paths, name: str) -> bool:
    """Whether a keeper of that session can be connected to."""
    try:
        connection = _connect(paths, name, ASK_S)
    except CagewrapError:
        return True
    if connection is not None:
        connection.close()
    return connection is not None


@contextmanager
def alone(paths: Paths, name: str) -> Iterator[bool]:
    """Hold both locks of a session: no keeper of it lives, and none is started, meanwhile.

    One that does not let go of them in time is killed. False when a new one listens by now.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(_locked(paths, name, sessions.cage_lock(paths, name)))
        has_none = not is_listening(paths, name)
        if has_none:
            stack.enter_context(_locked(paths, name, sessions.keeper_lock(paths, name)))
        yield has_none


@contextmanager
def _locked(paths: Paths, name: str, path: str) -> Iterator[None]:
    try:
        fd = _lock_within(path, _LOCK_S)
        if fd is None and kill_keeper(paths, name):
            fd = _lock_within(path, _LOCK_S)
    except FileNotFoundError as error:
        raise SessionError(f"The session {name} is gone already.", "cagewrap ls") from error
    if fd is None:
        raise KeeperError(
            f"{path} is held by another process: a command may be starting the cage.",
            f"try again; who holds it: fuser -v {path}",
        )
    try:
        yield
    finally:
        os.close(fd)


def _lock_within(path: str, seconds: float) -> int | None:
    deadline = time.monotonic() + seconds
    while (fd := sessions.try_lock(path)) is None and time.monotonic() < deadline:
        time.sleep(0.02)
    return fd


# -- asking ------------------------------------------------------------------------------------


def _connect(paths: Paths, name: str, timeout_s: float) -> socket.socket | None:
    return try_connect(paths.socket_file(name), timeout_s)


def _send(connection: socket.socket, name: str, command: Answer) -> None:
    try:
        connection.send(protocol.COMMAND + json.dumps(command).encode())
    except OSError as error:
        raise _no_answer(name, str(error)) from error


def _receive(connection: socket.socket, name: str) -> Answer:
    try:
        packet = connection.recv(protocol.PACKET_BYTES)
        if packet[:1] == protocol.ERROR:
            raise _keeper_error(packet[1:])
        answer = json.loads(packet[1:]) if packet[:1] == protocol.REPLY else {}
    except (OSError, ValueError) as error:
        raise _no_answer(name, str(error)) from error
    return answer if isinstance(answer, dict) else {}


def _no_answer(name: str, why: str) -> KeeperError:
    return KeeperError(f"The keeper of {name} does not answer: {why}.", f"cagewrap stop {name}")


def _keeper_error(text: bytes) -> CagewrapError:
    code, message, hint = (part.decode(errors="replace") for part in text.split(b"\0"))
    error = CagewrapError(message, hint)
    error.exit_code = int(code)
    return error


# -- killing -----------------------------------------------------------------------------------


def kill_keeper(paths: Paths, name: str) -> bool:
    """Kill a session's keeper and the podman commands it waits for. False when it has none.

    It is known by the lock it holds, looked at through a pidfd: never another process of its pid.
    """
    lock_file = sessions.keeper_lock(paths, name)
    for pid in _own_pids():
        with contextlib.suppress(OSError), _pidfd(pid) as keeper:
            if _is_keeper(pid) and _holds(pid, lock_file):
                signal.pidfd_send_signal(keeper, signal.SIGSTOP)  # it starts nothing more
                with contextlib.ExitStack() as stack:
                    helpers = [stack.enter_context(_pidfd(child)) for child in _helpers(pid)]
                    for fd in (keeper, *helpers):
                        signal.pidfd_send_signal(fd, signal.SIGKILL)
                select.select([keeper], [], [], _DEATH_S)
                return True
    return False


def _own_pids() -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if entry.isdigit() and os.stat(f"/proc/{entry}").st_uid == os.getuid():
                found.append(int(entry))
    return found


@contextmanager
def _pidfd(pid: int) -> Iterator[int]:
    fd = os.pidfd_open(pid)
    try:
        yield fd
    finally:
        os.close(fd)


def _is_keeper(pid: int) -> bool:
    """Whether its command line is that of a keeper: `… keeper FD`."""
    return _words(pid)[-2:-1] == [b"keeper"]


def _holds(pid: int, lock_file: str) -> bool:
    """Whether a process itself took the flock of a file (a child only inherits the descriptor)."""
    wanted = os.stat(lock_file)
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(f"/proc/{pid}/fd/{fd}"), wanted):
                with open(f"/proc/{pid}/fdinfo/{fd}", encoding="ascii") as file:
                    locks = [line.split() for line in file if line.startswith("lock:")]
                if any("FLOCK" in words and str(pid) in words for words in locks):
                    return True
    return False


def _helpers(keeper: int) -> list[int]:
    """What of a keeper's descendants works for it on the host: podman, and forks of itself. (An
    agent that calls itself podman is one too: it ends with the cage anyway.)"""
    return [
        pid
        for pid in descendants(keeper)[1:]
        if _is_keeper(pid) or os.path.basename((_words(pid) or [b""])[0]) == b"podman"
    ]


def _words(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().split(b"\0")[:-1]
    except OSError:
        return []
