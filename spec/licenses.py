"""The licence texts that go with what a frozen program contains."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
from collections.abc import Iterable

PYTHON_PACKAGES = ("click", "h11", "ptyprocess", "pyinstaller")
"""The last one for its bootloader, which is the program's file itself."""
_NAMES = ("LICENSE", "LICENCE", "COPYING")


def license_files(libraries: Iterable[str]) -> list[tuple[str, str]]:
    """(file, name to give it) of every Python package, and of the Debian package of each library
    if this is a Debian."""
    found = [
        (str(file.locate()), f"{package}.txt")
        for package in PYTHON_PACKAGES
        for file in importlib.metadata.files(package) or ()
        if file.name.startswith(_NAMES)
    ]
    debian = sorted({_debian_package(library) for library in libraries} - {""})
    found += [(f"/usr/share/doc/{package}/copyright", f"{package}.txt") for package in debian]
    return [(file, name) for file, name in found if os.path.exists(file)]


def _debian_package(library: str) -> str:
    """The package that a file belongs to; it knows the file by the path of either tree."""
    path = os.path.realpath(library)
    for known in (path, path.removeprefix("/usr")):
        try:
            done = subprocess.run(
                ["dpkg", "-S", known], capture_output=True, text=True, check=False
            )
        except FileNotFoundError:
            return ""
        if done.returncode == 0:
            return done.stdout.partition(":")[0]
    return ""
