"""This machine's programs in a running cage: found before each message, lent when they are new.

Nothing of it is part of the container: what a program is, and which, is asked of the host each
time, so an update there is an update here without the container being made anew.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from cagewrap import beneath, libraries, loans, protected, sessions
from cagewrap.elf import Elf, read_program_at
from cagewrap.errors import SessionError
from cagewrap.keeper import covers, lending
from cagewrap.keeper.cageroot import CageRoot
from cagewrap.keeper.care import Note
from cagewrap.keeper.choice import Chooser, has_program
from cagewrap.keeper.fitness import Fitness
from cagewrap.keeper.lending import Loan
from cagewrap.keeper.request import Request
from cagewrap.paths import Paths
from cagewrap.programs import Program
from cagewrap.sessions import Record

BIN_TARGET = "/run/cagewrap/bin"
"""Where the names of lent programs are in a cage: first on PATH."""
LAST_TARGET = BIN_TARGET + "/last"
"""The interpreters of lent scripts: last on PATH, so that an image's own come first."""

_SHELLS = ("sh", "bash", "dash", "zsh", "fish", "ash")

_BASHES = ("bash", "zsh")
"""One of these claude needs for its Bash tool; no other shell will do (2.1.332)."""


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
        written = sessions.WrittenByCages(paths)
        self._chooser = Chooser(record.home, record.image, paths, written, self._is_loan, log)
        self._fitness = Fitness(record)
        self._bin_dir = paths.bin_dir(record.name)
        self._ledger = paths.loans_file(record.name)
        self._targets = loans.read_targets(self._ledger)
        self._links: dict[str, str] | None = None
        self._has_warned = False
        self._lent: set[Program] = set()

    def command(self, request: Request, env: Mapping[bytes, bytes], note: Note) -> Command:
        """Lend what the command of a message needs, and say how it is started.

        env: the agent's so far. Raises CagewrapError when it surely cannot run.
        """
        inside = env.get(b"PATH", b"")
        given = os.fsdecode(request.argv[0])
        self._forget_gone()
        with CageRoot(self._init_pid) as root:
            program = self._chooser.find(given, request, root, inside)
            lent = [program] if program is not None else []
            if program is None and os.path.basename(given) in _SHELLS:
                lent = self._chooser.find_all(request, root, inside)
            for one in lent:
                self._lend(root, one)
            command = _command(request, program, lent, env, self._last_on_path(lent))
            inside = command.env.get(b"PATH", inside)
            self._fitness.check(root, command.argv[0], inside, request.cwd)
            if program is not None and not self._has_warned:
                self._has_warned = True
                self._warn(root, program, inside, note)
        return command

    def _warn(self, root: CageRoot, program: Program, inside: bytes, note: Note) -> None:
        """Say what an agent that starts will miss."""
        if program.name == "claude" and not any(
            has_program(root, name, inside) for name in _BASHES
        ):
            note(
                f"the image {self._record.image} has neither bash nor zsh, so claude's Bash tool "
                "will fail; its other tools work"
            )

    def _is_loan(self, path: str) -> bool:
        """Whether what is at a path in the cage is there because it was lent."""
        real = os.path.realpath(path)
        return path in self._targets or any(protected.lies_in(real, one) for one in self._targets)

    def _lend(self, root: CageRoot, program: Program) -> None:
        all_loans = [Loan(path, path) for path in program.mounts]
        all_loans.append(Loan(self._bin_dir, BIN_TARGET))
        self._link(program)
        wanted = [one for one in all_loans if not _is_seen(root, one)]
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
            if isinstance(kind, Elf) and kind.loader and _is_ours(root, kind.loader):
                found |= libraries.find_libraries(kind)
        loans_of_it = [Loan(source, target) for target, source in found.items()]
        wanted = [one for one in loans_of_it if not _is_seen(root, one)]
        if wanted:
            self._log(f"{program.name}: the image has no C library for it; this machine's is lent")
        return wanted

    def _forget_gone(self) -> None:
        """Take away the names of programs that this machine has no more: what was mounted for one
        is still there."""
        if self._links is None:
            self._links = _read_links(self._bin_dir)
        for name, path in list(self._links.items()):
            if not os.path.lexists(path):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(self._bin_dir, name))
                if "/" not in name:
                    self._unlink_in_home(name, path)
                del self._links[name]

    def _link(self, program: Program) -> None:
        """Give it its name in the directory that is first on PATH."""
        wanted = {program.name: program.path}
        if program.interpreter:
            last = os.path.basename(LAST_TARGET)
            wanted[f"{last}/{os.path.basename(program.interpreter)}"] = program.interpreter
        links = self._links = self._links or {}
        for name, target in wanted.items():
            if links.get(name) != target:
                path = os.path.join(self._bin_dir, name)
                _make_open(self._bin_dir)
                _make_open(os.path.dirname(path))
                _point(path, target)
                links[name] = target

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

    def _unlink_in_home(self, name: str, path: str) -> None:
        """Take away the link that was made there, if it still is that one."""
        with contextlib.suppress(OSError):
            root = beneath.open_root(self._paths.home_dir(self._record.name))
            try:
                directory = beneath.open_dir(root, [".local", "bin"])
                try:
                    if os.readlink(name, dir_fd=directory) == path:
                        os.unlink(name, dir_fd=directory)
                finally:
                    os.close(directory)
            finally:
                os.close(root)

    def _last_on_path(self, lent: list[Program]) -> list[str]:
        """What comes after the image's own directories."""
        own = os.path.join(self._record.home, ".local/bin")
        is_linked = any(os.path.join(own, one.name) in self._targets for one in lent)
        has_interpreter = any(one.interpreter for one in lent)
        return [*([own] if is_linked else []), *([LAST_TARGET] if has_interpreter else [])]

    def _note_targets(self, targets: Iterable[str]) -> None:
        """Write down where places are made, which are not for an image made of the session."""
        after = self._targets.union(targets)
        if after != self._targets:
            loans.write_targets(self._ledger, after)
            self._targets = after


def _command(
    request: Request,
    program: Program | None,
    lent: list[Program],
    env: Mapping[bytes, bytes],
    last_on_path: list[str],
) -> Command:
    """What is started when `program` is what the command names, and all of `lent` is there."""
    argv = request.argv
    if not lent:
        return Command(argv, {})
    if program is not None and program.interpreter:
        argv = (os.fsencode(program.interpreter), os.fsencode(program.path), *argv[1:])
    elif program is not None and b"/" in argv[0]:
        argv = (os.fsencode(program.path), *argv[1:])
    inside = (BIN_TARGET.encode(), env.get(b"PATH", b""), *map(os.fsencode, last_on_path))
    wanted = {os.fsencode(name): os.fsencode(value) for one in lent for name, value in one.env}
    added = {name: value for name, value in wanted.items() if name not in env}
    return Command(argv, added | {b"PATH": b":".join(filter(None, inside))})


def _is_seen(root: CageRoot, loan: Loan) -> bool:
    return root.identity(loan.target) == covers.identity(loan.source)


def _is_ours(root: CageRoot, loader: str) -> bool:
    """Whether a loader is not the image's: it is not there, or was lent to another program."""
    return root.lacks(loader) or _is_seen(root, Loan(os.path.realpath(loader), loader))


def _read_links(directory: str) -> dict[str, str]:
    """What an earlier keeper has made, by name below the directory."""
    found: dict[str, str] = {}
    for below in ("", os.path.basename(LAST_TARGET)):
        with (
            contextlib.suppress(FileNotFoundError),
            os.scandir(os.path.join(directory, below)) as listed,
        ):
            found |= {
                os.path.join(below, one.name): os.readlink(one.path)
                for one in listed
                if one.is_symlink()
            }
    return found


def _make_open(directory: str) -> None:
    """A directory that users inside can enter; what lies above it on the host is closed."""
    sessions.make_private(directory)
    os.chmod(directory, 0o755)  # noqa: S103


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
