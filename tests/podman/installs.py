"""Installs of cagewrap: copies of this one, changed into another version."""

from __future__ import annotations

import compileall
import functools
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import click

import cagewrap
from cagewrap.launcher import launcher_text

from .cages import Cage

PACKAGE = Path(cagewrap.__file__).parent
SITE_PACKAGES = Path(click.__file__).parents[1]
OLD, NEW = "0.1.0", "0.2.0"

SPEAKS_5: Mapping[str, tuple[str, str]] = {
    "protocol.py": ("OLDEST, NEWEST = 4, 4", "OLDEST, NEWEST = 4, 5"),
    "shim.py": (
        "pack_sections(sections))",
        "pack_sections(sections)[:: 1 if version < 5 else -1])",
    ),
    "keeper/service.py": ("(file.read())", "(file.read()[:: 1 if version < 5 else -1])"),
}
"""A protocol whose version 5 has the body backwards, and which version 4 is spoken beside."""
SPEAKS_5_ALONE = SPEAKS_5 | {"protocol.py": ("OLDEST, NEWEST = 4, 4", "OLDEST, NEWEST = 5, 5")}


class Install:
    """One, in a directory of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.package = root / "lib/cagewrap"
        self.program = root / "bin/cagewrap"

    def put(self, version: str, changes: Mapping[str, tuple[str, str]] | None = None) -> Install:
        """Make it that version, in place if there is one: as pip does, file by file."""
        shutil.rmtree(self.package, ignore_errors=True)
        shutil.copytree(compiled(), self.package)
        for name, (before, after) in {
            "__init__.py": (f'"{cagewrap.__version__}"', f'"{version}"'),
            **(changes or {}),
        }.items():
            file = self.package / name
            text = file.read_text()
            assert before in text, (name, before)
            file.write_text(text.replace(before, after))
        for other in SITE_PACKAGES.iterdir():  # what it needs
            link = self.package.parent / other.name
            if other.name != "cagewrap" and not link.exists():
                link.symlink_to(other)
        self.program.parent.mkdir(parents=True, exist_ok=True)
        self.program.write_text(launcher_text(sys.executable, str(self.package)))
        self.program.chmod(0o755)
        return self

    def use(self, cage: Cage) -> None:
        """From now on this is the `cagewrap` of a place."""
        cage.program = str(self.program)


@functools.cache
def compiled() -> Path:
    """This cagewrap with its bytecode, as pip leaves it."""
    package = Path(tempfile.mkdtemp()) / "cagewrap"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    compileall.compile_dir(package, quiet=1)
    return package
