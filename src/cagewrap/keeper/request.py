"""What a shim asks for, and what of the shim itself its agent must share."""

from __future__ import annotations

import os
import resource
from typing import NamedTuple

from cagewrap import protocol
from cagewrap.errors import AgentNotFoundError, KeeperError
from cagewrap.keeper.console import Terminal, parse_terminal
from cagewrap.runtimes.process import Limit

_LIMITS = {
    "RLIMIT_" + name: getattr(resource, "RLIMIT_" + name)
    for name in (
        "AS", "CORE", "CPU", "DATA", "FSIZE", "MEMLOCK", "MSGQUEUE", "NICE", "NOFILE", "NPROC",
        "RSS", "RTPRIO", "RTTIME", "SIGPENDING", "STACK",
    )
}  # fmt: skip
_UNLIMITED = (1 << 64) - 1


class Request(NamedTuple):
    """What a shim asks for.

    is_relayed: the shim stands between the agent and a terminal. terminal: None for streams.
    login: the settings of its login, as `auth.pack` makes them. agents: by name of a program,
    where it comes from (`AgentProgram`).
    """

    argv: tuple[bytes, ...]
    env: dict[bytes, bytes]
    cwd: bytes
    is_relayed: bool
    terminal: Terminal | None
    passed: tuple[str, ...]
    fixed: tuple[tuple[str, str], ...]
    secret_names: tuple[str, ...]
    secret_files: tuple[tuple[str, str], ...]
    login: bytes = b""
    agents: tuple[tuple[str, str], ...] = ()


def parse_request(body: bytes) -> Request:
    """Read a request's body. Raises KeeperError when it is not one."""
    try:
        head, argv, env, (cwd,), *policy = protocol.unpack_sections(body)
        absent: list[list[bytes]] = [[]] * 6  # an older shim's; a younger one may add further ones
        passed, fixed, names, files, login, agents = [*policy, *absent][:6]
        terminal = parse_terminal(head[1:]) if head[0] == protocol.MODE_TERMINAL else None
    except ValueError as error:
        raise KeeperError("The keeper was sent a request it cannot read.", "") from error
    if not argv or not argv[0]:
        raise AgentNotFoundError("The name of the agent's program is empty.", "cagewrap -- claude")
    return Request(
        argv=tuple(argv),
        env=dict(_pair(entry) for entry in env),
        cwd=cwd,
        is_relayed=head[0] != protocol.MODE_STREAMS,
        terminal=terminal,
        passed=tuple(_texts(passed)),
        fixed=tuple(_text_pair(entry) for entry in fixed),
        secret_names=tuple(_texts(names)),
        secret_files=tuple(_text_pair(entry) for entry in files),
        login=b"".join(login[:1]),
        agents=tuple(_text_pair(entry) for entry in agents),
    )


def shim_limits(pid: int) -> tuple[Limit, ...]:
    """The resource limits of a shim, none above our own hard ones (we could not grant them)."""
    found: list[Limit] = []
    for name, number in _LIMITS.items():
        try:
            soft, hard = resource.prlimit(pid, number)
        except OSError:
            continue
        ours = _unsigned(resource.getrlimit(number)[1])
        hard = min(_unsigned(hard), ours)
        found.append(Limit(name, min(_unsigned(soft), hard), hard))
    return tuple(found)


def shim_umask(pid: int) -> int:
    """The file mode creation mask of a shim."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("Umask:"):
                    return int(line.split()[1], 8)
    except OSError:
        pass
    return 0o022


def _pair(entry: bytes) -> tuple[bytes, bytes]:
    name, _, value = entry.partition(b"=")
    return name, value


def _text_pair(entry: bytes) -> tuple[str, str]:
    name, value = _pair(entry)
    return os.fsdecode(name), os.fsdecode(value)


def _texts(words: list[bytes]) -> list[str]:
    return [os.fsdecode(word) for word in words]


def _unsigned(limit: int) -> int:
    return _UNLIMITED if limit == resource.RLIM_INFINITY else limit
