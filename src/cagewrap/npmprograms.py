"""Programs that npm and its like have installed: what of a package a cage needs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

from cagewrap.elf import Elf, read_program_at

_MODULES = "node_modules"
_ARCHITECTURES = {"x86_64": "x64", "aarch64": "arm64", "armv7l": "arm", "riscv64": "riscv64"}
"""node's `process.arch` by `uname -m`."""
_MAX_JSON = 1 << 20


def find_package(script: str) -> str:
    """The directory of the package that a file (a real path) belongs to; "" for none."""
    directory = os.path.dirname(script)
    while directory != "/":
        above = os.path.dirname(directory)
        scope = os.path.basename(above)
        holder = os.path.dirname(above) if scope.startswith("@") else above
        if os.path.basename(holder) == _MODULES:
            return directory if os.path.isfile(os.path.join(directory, "package.json")) else ""
        directory = above
    return ""


def find_native(package: str, name: str, machine: str) -> tuple[str, str]:
    """The program that stands in a package of its own for this platform, and the directory that
    it needs; ("", "") when the package has none.

    package: the directory that has only a stub or a launcher. name: of the program. machine: as
    `uname -m` says it.
    """
    wanted = "linux-" + _ARCHITECTURES.get(machine, "?")
    optional = _read(package).get("optionalDependencies")
    names = [one for one in optional if wanted in one] if isinstance(optional, dict) else []
    for one in sorted(names, key=lambda one: (len(one), one)):  # `…-x64` before `…-x64-musl`
        for directory in _installed(package, one):
            for program, needs in _programs(directory, name):
                found = read_program_at(program)
                if (
                    isinstance(found, Elf)
                    and found.runs_on(machine)
                    and os.access(program, os.X_OK)
                ):
                    return program, needs
    return "", ""


def find_needed(package: str) -> str:
    """The directory with all that a script of a package needs.

    That is the package, when what it depends on lies in it, as npm installs a global one; else the
    outermost `node_modules` that it lies in.
    """
    wanted = _read(package).get("dependencies")
    inside = os.path.join(package, _MODULES)
    if not isinstance(wanted, dict) or all(
        os.path.isdir(os.path.join(inside, name)) for name in wanted
    ):
        return package
    before, _, _ = package.partition(f"/{_MODULES}/")
    return os.path.join(before, _MODULES)


def node_beside(package: str) -> str:
    """Where the node is that a package was installed with: `PREFIX/bin/node` for
    `PREFIX/lib/node_modules`. It need not exist."""
    prefix = package.partition(f"/lib/{_MODULES}/")[0]
    return os.path.join(prefix, "bin", "node") if prefix != package else ""


def _installed(package: str, name: str) -> Iterator[str]:
    """Where a package's dependency may be: in it, or in any `node_modules` that it lies in."""
    directory = package
    while directory != "/":
        if os.path.basename(directory) != _MODULES:
            real = os.path.realpath(os.path.join(directory, _MODULES, name))
            if os.path.isdir(real):
                yield real
        directory = os.path.dirname(directory)


def _programs(directory: str, name: str) -> Iterator[tuple[str, str]]:
    """Where a platform's package may have its program, and which directory belongs to it."""
    yield os.path.join(directory, name), directory
    yield os.path.join(directory, "bin", name), directory
    vendor = os.path.join(directory, "vendor")
    for target in sorted(os.listdir(vendor)) if os.path.isdir(vendor) else ():
        yield os.path.join(vendor, target, "bin", name), os.path.join(vendor, target)


def _read(package: str) -> dict[str, object]:
    try:
        with open(os.path.join(package, "package.json"), "rb") as file:
            found = json.loads(file.read(_MAX_JSON))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
