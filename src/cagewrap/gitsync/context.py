"""What one run of carrying knows and finds out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict

from cagewrap.diskspace import is_full
from cagewrap.gitsync.side import Side, Stamp


class IndexBase(TypedDict, total=False):
    """What was last seen of both indexes."""

    host: list[int] | None
    cage: list[int] | None
    host_digest: str
    cage_digest: str


class Base(TypedDict, total=False):
    """What both sides had when a place was last carried. JSON.

    refs: name -> value. packed: whether the cage has had packed-refs. made: refs that the agent
    made and the host has not changed. large: files of git-lfs were lent. head:
    HEAD's value. files: name -> digest of its content ("": none). config: the host's. logs: sizes
    of logs on the host and in the cage. mirror: path -> digest of a file of which only the host's
    side is carried.
    """

    refs: dict[str, str]
    packed: bool
    made: list[str]
    large: bool
    head: str
    files: dict[str, str]
    index: IndexBase
    config: dict[str, list[str]]
    logs: dict[str, list[int]]
    mirror: dict[str, str]


class Place:
    """A git directory on both sides: of the project, of a submodule, of a linked work tree.

    path: relative to the pair's; "" for the directory itself. has_refs: it has refs and a
    configuration (a linked work tree's has none). leads: HEAD and index of the cage reach the
    host; where not, only the host's reach the cage. has_history: whether the host had refs before
    this run. main: where the host's refs are. bring: moves the agent's objects to the host; the
    error if that failed: then nothing that is new may name any of them. has_object: whether the
    host has one.
    """

    def __init__(
        self,
        path: str,
        host: Side,
        cage: Side,
        base: Base,
        *,
        has_refs: bool = True,
        leads: bool = True,
    ) -> None:
        """Nothing is done yet."""
        self.path, self.host, self.cage, self.base = path, host, cage, base
        self.main = host
        self.has_refs, self.leads, self.has_history = has_refs, leads, True
        self.bring: Callable[[], OSError | None] = lambda: None
        self.has_object: Callable[[str], bool] = lambda _oid: True


class Context:
    """One run.

    session: what a conflict's refs are named after. inside_ids: uid and gid that the owner's files
    seem to have inside. notes: sentences for the owner on what happened. states: on what is so, and
    is said once for as long as it is. is_busy: something could not be carried
    because git's lock of it is held. has_written: something was carried. may_refill: the cage may
    get again what it has lost; is_refillable: it would. is_full: a disk has no space left.
    """

    def __init__(
        self,
        session: str,
        oid_length: int,
        owner_ids: tuple[int, int],
        inside_ids: tuple[int, int],
        *,
        may_refill: bool = False,
    ) -> None:
        """Nothing is done yet."""
        self.session = session
        self.oid_length = oid_length
        self.owner_ids = owner_ids
        self.inside_ids = inside_ids
        self.may_refill = may_refill
        self.notes: list[str] = []
        self.states: list[str] = []
        self.is_busy = False
        self.has_written = False
        self.is_refillable = False
        self.is_full = False

    def failed(self, error: OSError) -> str:
        """Something could not be written: it is tried again where only space is missing. The
        error's text."""
        if is_full(error):
            self.is_busy = self.is_full = True
        return error.strerror or str(error)

    def state(self, text: str) -> None:
        """Say what is so."""
        if text not in self.states:
            self.states.append(text)

    def note(self, text: str) -> None:
        """Say something once."""
        if text not in self.notes:
            self.notes.append(text)

    @property
    def oid_bytes(self) -> int:
        """Bytes of an object id."""
        return self.oid_length // 2


def as_list(stamp: Stamp | None) -> list[int] | None:
    """A stamp as JSON keeps it."""
    return list(stamp) if stamp is not None else None
