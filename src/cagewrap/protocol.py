"""What the shim and the keeper say to each other, over a unix seqpacket socket.

The shim sends one REQUEST packet that carries four file descriptors (the request's body in a
memfd, then fds 0, 1, 2; only the body for a terminal), later SIGNAL and the like. The keeper
answers with the packets below. Each packet is one byte that names it, and text. The body is a list
of sections, each a list of byte strings; none can contain NUL (argv, environment and paths
cannot), so NUL joins them.

Shims and keepers of different versions speak with each other (decision 38). What a keeper does not
know of it ignores, what it misses has a default: so sections and words are only ever added at the
end, and need no other version. A change of what is there already is one: NEWEST goes up, and both
sides go on speaking the ones before. Two things stay as they are for ever, so that any two
versions find out what they have in common: REQUEST's own words, and UNSPOKEN.

This module is on the wrap path: it imports nothing.
"""

from __future__ import annotations

OLDEST, NEWEST = 4, 4
"""The versions of this protocol that are spoken here."""

# shim -> keeper
REQUEST = b"R"  # see pack_request
SIGNAL = b"S"  # signal number
GROUP_SIGNAL = b"G"  # signal number, for the agent's process group (as a terminal sends it)
SUSPEND = b"Z"  # ctrl-z was typed on the pty: stop the agent's group, as the kernel does not
SEEN = b"D"  # by a shim that relays: the agent's end has arrived, the message is over
COMMAND = b"C"  # JSON: {"do": "status" | "stop" | "port"}

FIRST_KIND = ord("A")
"""A packet of one byte below this is a signal's number, as the interpreter's C handler writes it
into the socket (set_wakeup_fd): no signal waits for Python code to run."""

# keeper -> shim
ACCEPTED = b"A"  # the request is the keeper's now: never send it to another, unless told to
STARTED = b"S"  # the agent runs; the shim closes its copies of fds 0 and 1
TERMINAL = b"T"  # carries the pty's master
STOPPED = b"P"  # the agent was stopped (job control), after this many CONT of ours
EXITED = b"X"  # exit code
KILLED = b"K"  # signal number
NOTE = b"N"  # a line for stderr
ERROR = b"E"  # exit code NUL message NUL hint
REPLY = b"J"  # JSON answer to COMMAND
UNSPOKEN = b"V"  # oldest and newest version that the keeper speaks: ask again in one of these
RETRY = b"Y"  # nothing was begun and this keeper is going away: connect again

MODE_STREAMS = b"streams"
MODE_MIXED = b"mixed"
"""As streams, but the shim relays some of them: if it dies, so may the agent, of that."""
MODE_TERMINAL = b"terminal"
"""Followed by rows, columns and the terminal's attributes (struct termios, number by number)."""

PACKET_BYTES = 65536
"""Largest packet. A body has no limit: it travels in a memfd."""


def pack_request(version: int, build: tuple[bytes, bytes, bytes]) -> bytes:
    """REQUEST: "cagewrap", the version its body is in, the oldest that the shim speaks, and which
    build it is: id, executable and root (`builds.Build`)."""
    return REQUEST + b"\0".join((b"cagewrap", b"%d" % version, b"%d" % OLDEST, *build))


def unpack_request(text: bytes) -> tuple[int, int, tuple[bytes, bytes, bytes]]:
    """What `pack_request` packed, without its first byte. Raises ValueError."""
    name, version, oldest, id_, executable, root = (text.split(b"\0") + [b""] * 6)[:6]
    if name != b"cagewrap":
        raise ValueError("it is of before version 4")
    return int(version), int(oldest), (id_, executable, root)


def common_version(oldest: int, newest: int) -> int:
    """The newest version that both sides speak, 0 for none. oldest, newest: the other side's."""
    found = min(NEWEST, newest)
    return found if found >= max(OLDEST, oldest) else 0


LINE_BYTES = 16384
"""The longest line of ours on stderr. Harnesses read it line by line, and one that is longer than
they take (64 KiB with Go's bufio.Scanner) is the last that they read: the pipe fills, and the agent
waits for ever. Three such parts fit into a packet."""


def cut(text: bytes) -> bytes:
    """A text of which no line is longer than LINE_BYTES."""
    if len(text) <= LINE_BYTES:
        return text
    return b"\n".join(
        line if len(line) <= LINE_BYTES else line[: LINE_BYTES - 4] + b" ..."
        for line in text.split(b"\n")
    )


def pack_sections(sections: list[list[bytes]]) -> bytes:
    """Join sections into one byte string."""
    parts: list[bytes] = []
    for section in sections:
        parts.append(b"%d" % len(section))
        parts += section
    return b"\0".join(parts)


def unpack_sections(body: bytes) -> list[list[bytes]]:
    """Take apart what `pack_sections` joined. Raises ValueError when it is not that."""
    if not body:
        return []
    parts = body.split(b"\0")
    sections: list[list[bytes]] = []
    at = 0
    while at < len(parts):
        count = int(parts[at])
        section = parts[at + 1 : at + 1 + count]
        if len(section) != count:
            raise ValueError("a section is cut short")
        sections.append(section)
        at += 1 + count
    return sections
