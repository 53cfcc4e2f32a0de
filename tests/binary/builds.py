"""The programs that the tests run: two builds, and the source install beside them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FROZEN = Path("/opt/cagewrap/frozen")
"""Where tests/host/frozen.py puts it."""
DIRECTORY = FROZEN / "program/cagewrap"
[SINGLE] = (FROZEN / "out").glob("cagewrap-*-linux-" + os.uname().machine)
[TARBALL] = (FROZEN / "out").glob("*.tar.gz")
BUILDS = {"directory": DIRECTORY, "single file": SINGLE}
UNPACKED = "cagewrap-program"
"""Where in XDG_CACHE_HOME the single file unpacks itself."""


def source_program(directory: Path) -> Path:
    """The program that ./install writes, for the venv that runs the tests."""
    target = directory / "cagewrap"
    subprocess.run([sys.executable, "-m", "cagewrap.launcher", target], check=True)
    return target


def executable(pid: int) -> str:
    """The file that a process runs."""
    return os.readlink(f"/proc/{pid}/exe")


def children(pid: int) -> list[int]:
    """Those of any of its threads."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for one in lists for child in one.read_text().split()]


@contextmanager
def over(place: Path | str, *options: str) -> Iterator[None]:
    """A small file system over a directory, for as long as this lasts; whoever runs may write."""
    mount = ["sudo", "mount", "-t", "tmpfs", "-o", ",".join(("mode=1777", *options)), "over", place]
    subprocess.run(mount, check=True)
    try:
        yield
    finally:
        subprocess.run(["sudo", "umount", "--lazy", place], check=True)
