"""The machine as the checks see it: an environment, a file system, and a way to start programs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from cagewrap.childenv import search_path
from cagewrap.errors import CagewrapError
from cagewrap.proc import Outcome


class Capture(Protocol):
    """`proc.capture`, or something of its shape."""

    def __call__(self, argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str]) -> Outcome:
        """Run a command to its end and keep what it printed."""


@dataclass(frozen=True, slots=True)
class Host:
    """`root` stands before every absolute path that is read ("" on a real machine)."""

    env: Mapping[str, str]
    uid: int
    user: str
    capture: Capture
    root: str = ""

    def path(self, absolute: str) -> str:
        """Where a file of the machine is."""
        return self.root + absolute

    def read(self, absolute: str) -> str:
        """The text of a file, "" when it cannot be read."""
        try:
            with open(self.path(absolute), encoding="utf-8", errors="replace") as file:
                return file.read()
        except OSError:
            return ""

    def sysctl(self, name: str) -> str:
        """A kernel setting, "" where the kernel does not have it."""
        return self.read("/proc/sys/" + name.replace(".", "/")).strip()

    def find(self, program: str) -> str:
        """The path of a program on PATH, "" when there is none."""
        return shutil.which(program, path=search_path(self.env)) or ""

    def run(self, *argv: str, timeout_s: float) -> Outcome:
        """Run a program; one that is not there ends with 127."""
        try:
            return self.capture(argv, timeout_s=timeout_s, env=self.env)
        except CagewrapError as error:
            return Outcome(argv, 127, b"", error.message)


@dataclass(frozen=True, slots=True)
class FileSystem:
    """What is mounted where: `kind` as in /proc/mounts, `options` of the mount."""

    kind: str
    options: tuple[str, ...]


def file_system_of(host: Host, path: str) -> FileSystem:
    """The file system that holds `path`, by the longest mount point above it."""
    best, found = "", FileSystem("", ())
    for line in host.read("/proc/self/mounts").splitlines():
        words = line.split(" ")
        if len(words) < 4:
            continue
        point = words[1].replace("\\040", " ")
        if _is_below(path, point) and len(point) >= len(best):
            best, found = point, FileSystem(words[2], tuple(words[3].split(",")))
    return found


def existing_parent(path: str) -> str:
    """The path, or the nearest directory above it that exists."""
    while path not in ("/", "") and not os.path.lexists(path):
        path = os.path.dirname(path)
    return path or "/"


def _is_below(path: str, point: str) -> bool:
    return path == point or path.startswith(point.rstrip("/") + "/")
