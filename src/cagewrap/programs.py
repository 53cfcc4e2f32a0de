"""An agent's program on this machine: where it is, and what of the machine it needs to run.

Nothing is started and nothing changed. Every path in an answer is a real one.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from cagewrap import npmprograms
from cagewrap.agentnames import AGENTS, FOR_PEOPLE
from cagewrap.elf import Elf, Script, read_program_at
from cagewrap.libraries import is_self_contained
from cagewrap.ourselves import is_ours

__all__ = ("AGENTS", "FOR_PEOPLE", "Finder", "Follow", "Judge", "Program", "candidates")

_NO_UPDATES = {
    "claude": (
        ("DISABLE_AUTOUPDATER", "1"),
        ("DISABLE_UPDATES", "1"),  # by `claude update`, too
        ("DISABLE_INSTALLATION_CHECKS", "1"),
    ),
    "opencode": (("OPENCODE_DISABLE_AUTOUPDATE", "1"),),
    "pi": (("PI_SKIP_VERSION_CHECK", "1"),),
}
"""Variables with which an agent neither updates itself nor says that it should be: in a cage it
cannot, and the one on this machine does."""

_BELOW_HOME = (
    ".local/bin", ".claude/local", ".claude/local/node_modules/.bin", ".npm-global/bin", ".bun/bin",
    ".opencode/bin", "bin",
)  # fmt: skip
"""Where installers put programs, for a harness whose PATH lacks them (a service's)."""

_RUNNERS = ("node", "nodejs", "bun", "deno")
_SWITCHES = ("mise", "volta", "volta-shim", "asdf", "rtx", "proto", "proto-shim", "fnm", "snap")
"""Programs that stand in the place of many others and choose a version of them."""
_ASDF = re.compile(rb"^# asdf-plugin: (\S+) (\S+)\s*$", re.MULTILINE)
_HEAD_BYTES = 4096

Judge = Callable[[str], str]
"""Why a real path of this machine may not be seen in a cage, "" when it may."""
Follow = Callable[[str], str]
"""Why it is not to be believed where a path leads, "" when it is."""


class Program(NamedTuple):
    """A program to be seen in a cage, read-only, at its own path.

    path: of what is run. mounts: the files and directories it needs. interpreter: what runs it,
    for a script whose interpreter comes along, else "". env: to be set unless the caller sets it.
    """

    name: str
    path: str
    mounts: tuple[str, ...]
    interpreter: str = ""
    env: tuple[tuple[str, str], ...] = ()


class Finder:
    """Looks for programs of one owner. notes: why what was found first could not be taken."""

    def __init__(
        self, home: str, search_path: str, judge: Judge, follow: Follow, machine: str = ""
    ) -> None:
        """search_path: PATH without what an agent can write to. machine: as `uname -m` says it."""
        self._home = home
        self._search_path = search_path
        self._judge = judge
        self._follow = follow
        self._machine = machine or os.uname().machine
        self.notes: list[str] = []

    def find(self, name: str) -> Program | None:
        """The program of that name: the first on PATH, or where installers put it."""
        for path in candidates(name, self._search_path, self._home):
            found = self.examine(path, name)
            if found is not None:
                return found
        return None

    def examine(self, path: str, name: str, *, is_told: bool = False) -> Program | None:
        """What a file stands for, None if that is not for a cage.

        is_told: the owner has named this file: it may be any program that can be executed.
        """
        real = os.path.realpath(path)
        if not os.access(real, os.X_OK) or not os.path.isfile(real):
            return None
        switch = os.path.basename(real) if os.path.basename(real) in _SWITCHES else ""
        # Before anything is read: an agent's file may name a program, too.
        why = (
            self._follow(path)
            or (switch and f"it is {switch}, which stands for another program")
            or (is_ours(real) and "it runs cagewrap itself")
        )
        if why:
            return self._pass_over(path, why)
        kind = read_program_at(real)
        if isinstance(kind, Elf):
            return self._native(path, real, name, kind)
        package = npmprograms.find_package(real)
        native, needs = (
            npmprograms.find_native(package, name, self._machine) if package else ("", "")
        )
        if native:
            return self._judged(path, Program(name, native, (needs,), env=_env(name)))
        if isinstance(kind, Script):
            return self._script(path, real, name, kind, package, is_told=is_told)
        return self._pass_over(
            path, "it is no program, but what an installer has left in its place"
        )

    def _native(self, path: str, real: str, name: str, kind: Elf) -> Program | None:
        if not kind.runs_on(self._machine):
            return self._pass_over(
                path, f"it is made for {kind.machine}, and this machine is {self._machine}"
            )
        directory = os.path.dirname(real)
        # Claude's own installer: one file for each version, and a link to the current one.
        is_versioned = directory.endswith("/claude/versions")
        mount = directory if is_versioned else real
        return self._judged(path, Program(name, real, (mount,), env=_env(name)))

    def _script(
        self, path: str, real: str, name: str, kind: Script, package: str, *, is_told: bool
    ) -> Program | None:
        mount = npmprograms.find_needed(package) if package else real
        if os.path.basename(kind.wanted) in _RUNNERS:
            runner = self._runner(kind.wanted, package)
            mounts = (mount, runner) if runner else (mount,)
            return self._judged(path, Program(name, real, mounts, runner, _env(name)))
        head = _head(real)
        shims = _ASDF.findall(head)
        if b"asdf exec" in head and shims:
            plugin, version = (os.fsdecode(word) for word in shims[-1])
            installs = os.path.join(os.path.dirname(os.path.dirname(path)), "installs")
            return self.examine(os.path.join(installs, plugin, version, "bin", name), name)
        if is_told:
            return self._judged(path, Program(name, real, (real,), env=_env(name)))
        return self._pass_over(path, f"it is a script for {kind.wanted}")

    def _runner(self, wanted: str, package: str) -> str:
        """The interpreter of a script, if it is one that needs nothing else of this machine."""
        name = os.path.basename(wanted)
        beside = npmprograms.node_beside(package) if name.startswith("node") else ""
        places = (wanted,) if "/" in wanted else (beside, *candidates(name, self._search_path, ""))
        for place in filter(None, places):
            real = os.path.realpath(place)
            found = read_program_at(real, libraries=True)
            if (
                isinstance(found, Elf)
                and os.path.basename(real) not in _SWITCHES
                and found.runs_on(self._machine)
                and is_self_contained(found)
                and not self._follow(place)
                and not self._judge(real)
            ):
                return real
        return ""

    def _judged(self, path: str, program: Program) -> Program | None:
        for place in program.mounts:
            why = self._judge(place)
            if why:
                return self._pass_over(path, why)
        return program

    def _pass_over(self, path: str, why: str) -> Program | None:
        self.notes.append(f"{path} is not used: {why}")
        return None


def candidates(name: str, search_path: str, home: str) -> Iterator[str]:
    """Files of that name that can be executed, in the order in which they count."""
    for directory in _directories(search_path, home):
        path = f"{directory}/{name}"
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            yield path


@functools.lru_cache(maxsize=64)
def _directories(search_path: str, home: str) -> tuple[str, ...]:
    directories = [one for one in search_path.split(":") if one.startswith("/")]
    if home:
        directories += [os.path.join(home, one) for one in _BELOW_HOME]
    return tuple(dict.fromkeys(directories))


def _env(name: str) -> tuple[tuple[str, str], ...]:
    return _NO_UPDATES.get(name, ())


def _head(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_HEAD_BYTES)
    except OSError:
        return b""
