"""What an agent wrote and the host has not got, because the host would run it.

`cagewrap review` lists it, hands it over, or throws it away. Each kind of it has a provider.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from cagewrap.errors import SessionError

DIFF_BYTES = 256 * 1024
"""A longer difference is cut off; what differs is said in any case."""


class Held(NamedTuple):
    """One change that is held back.

    kind: a word for what it is: "file", "git config", "git file", "git conflict".
    path: what `--accept` and `--drop` take: relative to the project, unique in a session, and the
    same on every call (`.claude/settings.json`, `.git/config:core.fsmonitor`).
    why: a sentence: what on the host would run it, or what it conflicts with.
    diff: what would change on the host, as a unified diff if it is text; "" if it cannot be shown.
    Both are of the agent's making: whoever prints them escapes them (`printable`).
    """

    kind: str
    path: str
    why: str
    diff: str = ""


class Provider(Protocol):
    """What one part of cagewrap holds back of one session.

    Called by `cagewrap review` in a process of its own, whether the session's keeper runs or not:
    what both change, they change under a lock of the provider's. Methods raise CagewrapError or
    OSError.
    """

    def pending(self, *, is_look: bool = True) -> Sequence[Held]:
        """All that is held back. is_look: a person is shown it now; `accept` may hold on to that,
        and refuse what the agent has changed since."""

    def count(self) -> int:
        """How many that are, for `ls`: in few milliseconds, without reading what is as it was."""

    def accept(self, path: str) -> str:
        """Hand one of `pending` over to the host; a sentence on what was done, "" if nothing is
        to be said. Never through a symlink of the agent's."""

    def drop(self, path: str) -> str:
        """Throw the agent's version away: the cage sees the host's again. The same sentence."""


def printable(text: str) -> str:
    """Text of an agent's, safe to print on a terminal: its lines, escape sequences as \\x1b."""
    return "".join(
        one if one in "\n\t" or one.isprintable() else one.encode("unicode_escape").decode()
        for one in text
    )


def find(providers: Sequence[Provider], path: str) -> Provider:
    """The provider that holds `path`. Raises SessionError when none does."""
    for provider in providers:
        if any(one.path == path for one in provider.pending(is_look=False)):
            return provider
    raise SessionError(f"Nothing is held back at {path!r}.", "cagewrap review")
