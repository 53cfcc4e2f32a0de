"""This machine's programs in a running cage: found before each message, lent when they are new.

Nothing of it is part of the container: what a program is, and which, is asked of the host each
time, so an update there is an update here without the container being made anew.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from cagewrap import agentspec, beneath, libraries, loans, protected, sessions, stamps
from cagewrap.childenv import search_path
from cagewrap.elf import Elf, read_program_at
from cagewrap.errors import AgentNotFoundError, CagewrapError, MountRefusedError, SessionError
from cagewrap.keeper import covers, lending
from cagewrap.keeper.cageroot import CageRoot
from cagewrap.keeper.care import Note
from cagewrap.keeper.fitness import Fitness
from cagewrap.keeper.lending import Loan
from cagewrap.keeper.merged import owners_places
from cagewrap.keeper.request import Request
from cagewrap.paths import Paths
from cagewrap.programs import AGENTS, FOR_PEOPLE, Finder, Program, candidates
from cagewrap.sessions import Record, WrittenByCages

BIN_TARGET = "/run/cagewrap/bin"
"""Where the names of lent programs are in a cage: first on PATH."""
LAST_TARGET = BIN_TARGET + "/last"
"""The interpreters of lent scripts: last on PATH, so that an image's own come first."""

_SHELLS = ("sh", "bash", "dash", "zsh", "fish", "ash")

_BASHES = ("bash", "zsh")
"""One of these claude needs for its Bash tool; no other shell will do (2.1.332)."""

_Stamp = tuple[str, stamps.Stamp]
_Key = tuple[str, str, str, str]
"""What the choice of a program depends on: the command, the setting, the caller's PATH and HOME."""


class Command(NamedTuple):
    """What a message starts: the command line, and variables to add."""

    argv: tuple[bytes, ...]
    env: Mapping[bytes, bytes]


class Programs:
    """Of one running container."""

    def __init__(
        self, record: Record, paths: Paths, init_pid: int, log: Callable[[str], None]
    ) -> None:
        """Looks at nothing yet."""
        self._record = record
        self._paths = paths
        self._init_pid = init_pid
        self._log = log
        self._written = WrittenByCages(paths)
        self._fitness = Fitness(record)
        self._bin_dir = paths.bin_dir(record.name)
        self._ledger = paths.loans_file(record.name)
        self._targets = loans.read_targets(self._ledger)
        self._links: dict[str, str] = {}
        self._has_warned = False
        self._known: dict[_Key, tuple[tuple[_Stamp, ...], Program | None, list[str]]] = {}
        self._lent: set[Program] = set()
        self._safe_paths: tuple[set[str], dict[str, str]] = (set(), {})

    def command(self, request: Request, env: Mapping[bytes, bytes], note: Note) -> Command:
        """Lend what the command of a message needs, and say how it is started.

        env: the agent's so far. Raises CagewrapError when it surely cannot run.
        """
        inside = env.get(b"PATH", b"")
        given = os.fsdecode(request.argv[0])
        with CageRoot(self._init_pid) as root:
            program = self._find(given, request, root, inside)
            lent = [program] if program is not None else []
            if program is None and os.path.basename(given) in _SHELLS:
                lent = self._find_all(request, root, inside)
            for one in lent:
                self._lend(root, one)
            command = _command(request, program, lent, env)
            inside = command.env.get(b"PATH", inside)
            self._fitness.check(root, command.argv[0], inside, request.cwd)
            if program is not None and not self._has_warned:
                self._has_warned = True
                self._warn(root, program, inside, note)
        return command

    def _warn(self, root: CageRoot, program: Program, inside: bytes, note: Note) -> None:
        """Say what an agent that starts will miss."""
        if program.name == "claude" and not any(_has(root, name, inside) for name in _BASHES):
            note(
                f"the image {self._record.image} has neither bash nor zsh, so claude's Bash tool "
                "will fail; its other tools work"
            )

    # -- finding -------------------------------------------------------------------------------

    def _find_all(self, request: Request, root: CageRoot, inside: bytes) -> list[Program]:
        """Every agent's program that is there: a shell may be told to run any."""
        found = []
        for name in dict.fromkeys((*FOR_PEOPLE, *(name for name, _ in request.agents))):
            with contextlib.suppress(CagewrapError):  # who runs it is told that it is not there
                program = self._find(name, request, root, inside)
                if program is not None:
                    found.append(program)
        return found

    def _find(self, given: str, request: Request, root: CageRoot, inside: bytes) -> Program | None:
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
        return found

    def _look_again(self, key: _Key) -> tuple[Program | None, list[str]]:
        """What is found, which is looked for anew only when it may be another one now."""
        known = self._known.get(key)
        if known is None or _stamps(self._first(key)) != known[0] or not _are_there(known[1]):
            found, notes = self._look(key)
            known = (_stamps(self._first(key)), found, notes)
            self._known[key] = known
        return known[1:]

    def _may_lack(self, choice: str, name: str, root: CageRoot, inside: bytes) -> bool:
        """Whether a message can do without this machine's program of a name."""
        return choice == agentspec.AUTO and _has(root, name, inside)

    def _is_loan(self, path: str) -> bool:
        """Whether what is at a path in the cage is there because it was lent."""
        real = os.path.realpath(path)
        return path in self._targets or any(protected.lies_in(real, one) for one in self._targets)

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
        finder = Finder(home, self._safe(caller_path), self._judge)
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
            f"{name} is neither on this machine nor in the image {self._record.image}{why}.",
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

    def _judge(self, path: str) -> str:
        if any(protected.lies_in(path, one) for one in self._written()):
            return f"{path} lies where an agent can write"
        places = owners_places(self._record.home, self._paths)
        try:
            protected.refuse_protected(path, path, places, readonly=True)
        except MountRefusedError as error:
            return error.message.rstrip(".")
        return ""

    # -- lending -------------------------------------------------------------------------------

    def _lend(self, root: CageRoot, program: Program) -> None:
        all_loans = [Loan(path, path) for path in program.mounts]
        all_loans.append(Loan(self._bin_dir, BIN_TARGET))
        self._link(program)
        wanted = [
            one for one in all_loans if root.identity(one.target) != covers.identity(one.source)
        ]
        if program not in self._lent:
            wanted += self._library_loans(root, program)
            self._link_in_home(program)
        if wanted:
            self._attach(program, wanted)
        self._lent.add(program)

    def _attach(self, program: Program, wanted: list[Loan]) -> None:
        self._note_targets(one.target for one in wanted)
        fix = f"cagewrap stop {self._record.name}, then send the message again"
        try:
            seen = lending.attach(self._init_pid, wanted)
        except OSError as error:
            raise SessionError(
                f"This machine's {program.name} cannot be mounted in the cage: {error}.", fix
            ) from error
        for loan, found in zip(wanted, seen, strict=True):
            if found != covers.identity(loan.source):
                raise SessionError(
                    f"{loan.target} in the cage is not this machine's: something was moved.", fix
                )

    def _library_loans(self, root: CageRoot, program: Program) -> list[Loan]:
        """The C library, for a program that finds no loader in the image."""
        found: dict[str, str] = {}
        for path in filter(None, (program.interpreter, program.path)):
            kind = read_program_at(path, libraries=True)
            if isinstance(kind, Elf) and kind.loader and root.lacks(kind.loader):
                found |= libraries.find_libraries(kind)
        if found:
            self._log(f"{program.name}: the image has no loader for it; this machine's is lent")
        return [Loan(source, target) for target, source in found.items()]

    def _link(self, program: Program) -> None:
        """Give it its name in the directory that is first on PATH."""
        wanted = {program.name: program.path}
        if program.interpreter:
            last = os.path.basename(LAST_TARGET)
            wanted[f"{last}/{os.path.basename(program.interpreter)}"] = program.interpreter
        for name, target in wanted.items():
            if self._links.get(name) != target:
                path = os.path.join(self._bin_dir, name)
                _make_open(self._bin_dir)
                _make_open(os.path.dirname(path))
                _point(path, target)
                self._links[name] = target

    def _link_in_home(self, program: Program) -> None:
        """The link that installers make, `~/.local/bin/NAME`, where the host has it too: settings
        and hooks name it. What else an agent has put there stays."""
        path = os.path.join(self._record.home, ".local/bin", program.name)
        if not os.path.islink(path) or os.path.realpath(path) != program.path:
            return
        self._note_targets((path,))
        with contextlib.suppress(OSError):
            root = beneath.open_root(self._paths.home_dir(self._record.name))
            try:
                directory = beneath.open_dir(root, [".local", "bin"], make=True)
                try:
                    _point_at(directory, program.name, program.path)
                finally:
                    os.close(directory)
            finally:
                os.close(root)

    def _note_targets(self, targets: Iterable[str]) -> None:
        """Write down where places are made, which are not for an image made of the session."""
        after = self._targets.union(targets)
        if after != self._targets:
            loans.write_targets(self._ledger, after)
            self._targets = after


def _command(
    request: Request, program: Program | None, lent: list[Program], env: Mapping[bytes, bytes]
) -> Command:
    """What is started when `program` is what the command names, and all of `lent` is there."""
    argv = request.argv
    if not lent:
        return Command(argv, {})
    if program is not None and program.interpreter:
        argv = (os.fsencode(program.interpreter), os.fsencode(program.path), *argv[1:])
    elif program is not None and b"/" in argv[0]:
        argv = (os.fsencode(program.path), *argv[1:])
    last = LAST_TARGET.encode() if any(one.interpreter for one in lent) else b""
    inside = (BIN_TARGET.encode(), env.get(b"PATH", b""), last)
    wanted = {os.fsencode(name): os.fsencode(value) for one in lent for name, value in one.env}
    added = {name: value for name, value in wanted.items() if name not in env}
    return Command(argv, added | {b"PATH": b":".join(filter(None, inside))})


def _stamps(path: str) -> tuple[_Stamp, ...]:
    """What tells a program from its successor: where its name leads, and what lies there."""
    real = os.path.realpath(path) if path else ""
    return ((path, stamps.NO_FILE), (real, stamps.stamp(real)))


def _are_there(program: Program | None) -> bool:
    return program is None or all(os.path.lexists(path) for path in (*program.mounts, program.path))


def _stands_alone(program: Program) -> bool:
    kind = read_program_at(program.path, libraries=True)
    return not isinstance(kind, Elf) or libraries.is_self_contained(kind)


def _make_open(directory: str) -> None:
    """A directory that users inside can enter; what lies above it on the host is closed."""
    sessions.make_private(directory)
    os.chmod(directory, 0o755)  # noqa: S103


def _has(root: CageRoot, name: str, search_path: bytes) -> bool:
    _, fd = root.find(os.fsencode(name), search_path, b"/")
    if fd >= 0:
        os.close(fd)
    return fd >= 0


def _point(path: str, target: str) -> None:
    directory = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _point_at(directory, os.path.basename(path), target)
    finally:
        os.close(directory)


def _point_at(directory: int, name: str, target: str) -> None:
    """Make `name` a symlink to `target`, at once; anything but a symlink there stays."""
    try:
        if os.readlink(name, dir_fd=directory) == target:
            return
    except FileNotFoundError:
        pass
    temporary = f"{beneath.TEMPORARY_PREFIX}{os.urandom(6).hex()}"
    os.symlink(target, temporary, dir_fd=directory)
    os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
