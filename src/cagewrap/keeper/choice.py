"""Which of this machine's programs a command means, asked before each message."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from cagewrap import agentspec, libraries, protected, stamps
from cagewrap.childenv import search_path
from cagewrap.elf import Elf, read_program_at
from cagewrap.errors import AgentNotFoundError, CagewrapError, MountRefusedError
from cagewrap.keeper.cageroot import CageRoot
from cagewrap.keeper.merged import owners_places
from cagewrap.keeper.request import Request
from cagewrap.ourselves import is_ours
from cagewrap.paths import Paths
from cagewrap.programs import AGENTS, FOR_PEOPLE, Finder, Program, candidates
from cagewrap.waypoints import leads_through

_Stamp = tuple[str, stamps.Stamp]
_Key = tuple[str, str, str, str]
"""What the choice of a program depends on: the command, the setting, the caller's PATH and HOME."""


class Chooser:
    """Of one owner, for an image. What was found is looked for again only when it may be another
    one."""

    def __init__(
        self,
        home: str,
        image: str,
        paths: Paths,
        written: Callable[[], set[str]],
        is_loan: Callable[[str], bool],
        log: Callable[[str], None],
    ) -> None:
        """written: where agents can write, the same object while it is the same. is_loan: whether
        what the cage has at a path was lent. Looks at nothing yet."""
        self._home = home
        self._image = image
        self._paths = paths
        self._is_loan = is_loan
        self._log = log
        self._written = written
        self._known: dict[_Key, tuple[tuple[_Stamp, ...], Program | None, list[str]]] = {}
        self._judged_by: set[str] = set()
        self._safe_paths: tuple[set[str], dict[str, str]] = (set(), {})

    def find_all(self, request: Request, root: CageRoot, inside: bytes) -> list[Program]:
        """Every agent's program that is there: a shell may be told to run any."""
        found = []
        for name in dict.fromkeys((*FOR_PEOPLE, *(name for name, _ in request.agents))):
            with contextlib.suppress(CagewrapError):  # who runs it is told that it is not there
                program = self.find(name, request, root, inside)
                if program is not None:
                    found.append(program)
        return found

    def find(self, given: str, request: Request, root: CageRoot, inside: bytes) -> Program | None:
        """This machine's program for a command; None when the command is the cage's own.

        inside: the agent's PATH. Raises AgentNotFoundError when neither has one.
        """
        name = os.path.basename(given)
        choice = dict(request.agents).get(name, agentspec.AUTO if name in AGENTS else "")
        if choice == agentspec.IMAGE or not name:
            return None
        if "/" in given:
            if not given.startswith("/") or not (root.lacks(given) or self._is_loan(given)):
                return None
        elif not choice:
            return None
        caller_path = os.fsdecode(request.env.get(b"PATH", b""))
        key = (given, choice, caller_path, os.fsdecode(request.env.get(b"HOME", b"")))
        found, notes = self._look_again(key)
        if found is None and "/" not in given and not self._may_lack(choice, given, root, inside):
            raise self._not_found(name, choice, notes)
        if found is None and "/" in given and is_ours(given):
            raise AgentNotFoundError(
                f"{given} is no agent: it runs cagewrap itself, and is not in the cage.",
                "name the agent: cagewrap -- claude",
            )
        return found

    def find_named(self, name: str, choice: str, caller_path: str, home: str) -> Program | None:
        """This machine's program of a name, whatever cage it may be for."""
        return self._look((name, choice, caller_path, home))[0]

    def _look_again(self, key: _Key) -> tuple[Program | None, list[str]]:
        """What is found, which is looked for anew only when it may be another one now."""
        written = self._written()
        if written is not self._judged_by:  # what was right may lie in a project now
            self._judged_by = written
            self._known.clear()
        known = self._known.get(key)
        if known is None or _stamps(self._first(key)) != known[0] or not _are_there(known[1]):
            found, notes = self._look(key)
            known = (_stamps(self._first(key)), found, notes)
            self._known[key] = known
        return known[1:]

    def _may_lack(self, choice: str, name: str, root: CageRoot, inside: bytes) -> bool:
        """Whether a message can do without this machine's program of a name."""
        return choice == agentspec.AUTO and has_program(root, name, inside)

    def _first(self, key: _Key) -> str:
        """The file that decides which program it is; "" when there is none."""
        given, choice, caller_path, home = key
        if choice.startswith("/"):
            return choice
        if "/" in given:
            return given
        return next(candidates(given, self._safe(caller_path), home), "")

    def _look(self, key: _Key) -> tuple[Program | None, list[str]]:
        given, choice, caller_path, home = key
        name = os.path.basename(given)
        finder = Finder(home, self._safe(caller_path), self._judge, self._follow)
        if choice.startswith("/"):
            found = finder.examine(choice, name, is_told=True)
        elif "/" in given:
            found = finder.examine(given, name)
            if found is not None and not choice and not _stands_alone(found):
                found = None  # not an agent's: more likely a program that belongs into the image
        else:
            found = finder.find(name)
        for note in finder.notes:
            self._log(note)
        return found, finder.notes

    def _not_found(self, name: str, choice: str, notes: list[str]) -> AgentNotFoundError:
        why = f" ({'; '.join(notes)})" if notes else ""
        file = self._paths.config_file
        if choice.startswith("/"):
            what = f"[agents.{name}] program = {choice!r} is no program that a cage can have{why}."
            return AgentNotFoundError(what, f"name another in {file}")
        if choice == agentspec.HOST:
            what = f"{name} is not on this machine, where [agents.{name}] wants it from{why}."
            return AgentNotFoundError(what, f'install it here, or say program = "image" in {file}')
        return AgentNotFoundError(
            f"{name} is neither on this machine nor in the image {self._image}{why}.",
            f'install it here, or name it in {file}: [agents.{name}] program = "PATH"',
        )

    def _safe(self, caller_path: str) -> str:
        """A PATH of the caller's without what an agent can write to."""
        written = self._written()
        if written is not self._safe_paths[0]:
            self._safe_paths = (written, {})
        known = self._safe_paths[1]
        if caller_path not in known:
            known[caller_path] = search_path({"PATH": caller_path}, written)
        return known[caller_path]

    def _follow(self, path: str) -> str:
        place = leads_through(path, self._written())
        return f"what leads there lies where an agent can write ({place})" if place else ""

    def _judge(self, path: str) -> str:
        for one in self._written():
            if protected.lies_in(path, one):
                return f"{path} lies where an agent can write"
            if protected.lies_in(one, path):
                return f"{one}, where an agent can write, lies in {path}"
        places = owners_places(self._home, self._paths)
        try:
            protected.refuse_protected(path, path, places, readonly=True)
        except MountRefusedError as error:
            return error.message.rstrip(".")
        return ""


def _stamps(path: str) -> tuple[_Stamp, ...]:
    """What tells a program from its successor: where its name leads, and what lies there."""
    real = os.path.realpath(path) if path else ""
    return ((path, stamps.NO_FILE), (real, stamps.stamp(real)))


def _are_there(program: Program | None) -> bool:
    return program is None or all(os.path.lexists(path) for path in (*program.mounts, program.path))


def _stands_alone(program: Program) -> bool:
    kind = read_program_at(program.path, libraries=True)
    return not isinstance(kind, Elf) or libraries.is_self_contained(kind)


def has_program(root: CageRoot, name: str, search_path: bytes) -> bool:
    """Whether a program of that name is on a PATH in the cage."""
    _, fd = root.find(os.fsencode(name), search_path, b"/")
    if fd >= 0:
        os.close(fd)
    return fd >= 0
