"""Tickets: how the next message finds its running cage without reading the configuration.

Working out which cage a command belongs to (configuration, project, session) costs tens of
milliseconds of imports. The full path writes the result down as a ticket, a file in the runtime
directory named for everything the answer depends on and holding the same in full; the next
message compares and connects. Anything that differs (configuration file touched, another
directory, flag or variable) means no ticket, and the full path runs again.

This module is on the wrap path: `os` is loaded already, `zlib` is built in.
"""

from __future__ import annotations

import os
import zlib

from cagewrap.builds import own_build
from cagewrap.protocol import pack_sections, unpack_sections

_DEPENDS_ON = (
    b"HOME",
    b"PWD",
    b"SSH_AUTH_SOCK",
    b"XDG_CONFIG_HOME",
    b"XDG_RUNTIME_DIR",
    b"XDG_STATE_HOME",
)
_NAMES_FILE = b"session-variables"
_END = b"end"
"""The last section: a ticket that was cut short by a full disk does not have it."""


class Ticket:
    """Where a command's keeper listens, and the sections of the request that never change."""

    __slots__ = ("policy", "socket")

    def __init__(self, socket: bytes, policy: list[list[bytes]]) -> None:
        """Keep both."""
        self.socket = socket
        self.policy = policy


def runtime_dir() -> bytes:
    """The directory of sockets and tickets, as `paths.Paths.runtime_dir` works it out."""
    home = os.environb.get(b"XDG_RUNTIME_DIR", b"")
    if not home.startswith(b"/"):
        home = b"/run/user/%d" % os.getuid()
    return home + b"/cagewrap"


def identity(directory: bytes, cwd: bytes, flags: list[bytes]) -> list[bytes]:
    """Everything the choice of a cage depends on, apart from the configuration file's content: the
    build too, since another one may make something else of the same settings."""
    environ = os.environb
    try:
        session_names = _read_names(directory)
    except OSError:
        session_names = []
    named = [name + b"=" + environ.get(name, b"") for name in (*_DEPENDS_ON, *session_names)]
    ours = sorted(
        name + b"=" + value for name, value in environ.items() if name.startswith(b"CAGEWRAP_")
    )
    return [own_build().id, cwd, b"%d" % len(ours), *named, *ours, *flags]


def stamp(path: bytes) -> bytes:
    """A file's identity and time of change, or b"missing"."""
    try:
        found = os.stat(path)
    except OSError:
        return b"missing"
    return b"%d %d %d" % (found.st_mtime_ns, found.st_size, found.st_ino)


def read_ticket(cwd: bytes, flags: list[bytes]) -> Ticket | None:
    """The ticket for this command, or None when there is none that still holds."""
    directory = runtime_dir()
    wanted = identity(directory, cwd, flags)
    try:
        with open(_ticket_file(directory, wanted), "rb") as file:
            sections = unpack_sections(file.read())
    except (OSError, ValueError):
        return None
    if len(sections) < 3 or sections[0] != wanted or sections.pop() != [_END]:
        return None
    config_file, config_stamp, socket = sections[1]
    if stamp(config_file) != config_stamp:
        return None
    return Ticket(socket, sections[2:])


def write_ticket(
    cwd: bytes,
    flags: list[bytes],
    config: tuple[bytes, bytes],
    ticket: Ticket,
    session_names: list[bytes],
) -> None:
    """Write the ticket for this command; the runtime directory must exist.

    config: the configuration file and its `stamp`, taken before it was read. A failure to write
    is no error: the next message only takes the full path.
    """
    directory = runtime_dir()
    try:
        _note_names(directory, session_names)
        wanted = identity(directory, cwd, flags)
        body = pack_sections([wanted, [*config, ticket.socket], *ticket.policy, [_END]])
        os.makedirs(directory + b"/tickets", mode=0o700, exist_ok=True)
        _replace(_ticket_file(directory, wanted), body)
    except OSError:
        return


def forget_tickets() -> None:
    """Let every next message take the full path: what a ticket says may no longer hold."""
    directory = runtime_dir() + b"/tickets"
    try:
        for name in os.listdir(directory):
            os.unlink(directory + b"/" + name)
    except OSError:
        return


def _read_names(directory: bytes) -> list[bytes]:
    with open(directory + b"/" + _NAMES_FILE, "rb") as file:
        return file.read().split(b"\0")


def _note_names(directory: bytes, names: list[bytes]) -> None:
    """Add to the variables that name sessions. Those of another project's table or of a flag stay,
    or two harnesses would take the other's names away, and with them the tickets, each time."""
    try:
        known = _read_names(directory)
    except OSError:
        known = []
    added = [name for name in names if name not in known]
    if added or not known:
        _replace(directory + b"/" + _NAMES_FILE, b"\0".join([*filter(None, known), *added]))


def _ticket_file(directory: bytes, wanted: list[bytes]) -> bytes:
    return directory + b"/tickets/%08x" % zlib.crc32(b"\0".join(wanted))


def _replace(path: bytes, content: bytes) -> None:
    """Write a file so that a reader sees the old content or the new, never half."""
    temporary = path + b".%d" % os.getpid()
    with open(temporary, "wb") as file:
        file.write(content)
    os.replace(temporary, path)
