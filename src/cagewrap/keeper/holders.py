"""Who holds an end of a pipe, found by looking at all processes' descriptors.

An agent can open the pipes it was given once more, in the harness's direction
(`8>/proc/self/fd/0 9</proc/self/fd/1`): for the kernel they have a reader and a writer then, with
or without the harness. The look is slow, and taken only when the harness has died.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable

READER = stat.S_IRUSR
WRITER = stat.S_IWUSR


def is_held_by_cage_alone(pipe: int, role: int) -> bool:
    """Whether processes of the cage hold an end of a pipe, and no other process that we can see.

    pipe: a descriptor of it, which may be an O_PATH one. role: READER or WRITER.
    """
    name = _link(f"/proc/self/fd/{pipe}")
    cage = _cage_namespaces()
    inside: list[int] = []
    outside: list[int] = []
    for pid in _numbers("/proc"):
        (inside if _link(f"/proc/{pid}/ns/pid") in cage else outside).append(pid)
    # First those of the cage: an agent that holds nothing costs no look at all the others.
    return _any_holds(inside, name, role) and not _any_holds(outside, name, role)


def _cage_namespaces() -> set[str]:
    """The pid namespaces of our children that are not our own: those of the one cage we keep."""
    pid = os.getpid()
    children: list[str] = []
    with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{pid}/children") as file:
        children = file.read().split()
    return {_link(f"/proc/{child}/ns/pid") for child in children} - {_link("/proc/self/ns/pid"), ""}


def _any_holds(pids: Iterable[int], name: str, role: int) -> bool:
    return any(_holds(pid, name, role) for pid in pids)


def _holds(pid: int, name: str, role: int) -> bool:
    """Whether a process has the pipe open in that direction."""
    for number in _numbers(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{number}"
        with contextlib.suppress(OSError):
            # The link's own mode says how it is open; of the file behind it nothing is asked,
            # which on another's network file system could block.
            if os.readlink(path) == name and os.lstat(path).st_mode & role:
                return True
    return False


def _numbers(directory: str) -> list[int]:
    try:
        return [int(name) for name in os.listdir(directory) if name.isdigit()]
    except OSError:
        return []  # gone, or another user's


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
