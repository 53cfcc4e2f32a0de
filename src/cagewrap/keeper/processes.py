"""Which processes belong together, read from /proc."""

from __future__ import annotations

import os


def processes_inside(init_pid: int) -> list[int]:
    """Every process in a container's pid namespace except its init."""
    try:
        namespace = os.stat(f"/proc/{init_pid}/ns/pid").st_ino
        if namespace == os.stat("/proc/self/ns/pid").st_ino:
            return []  # the owner asked podman for the host's (--podman-arg): all would be ours
    except OSError:
        return []
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == init_pid:
            continue
        try:
            if os.stat(f"/proc/{entry}/ns/pid").st_ino == namespace:
                found.append(int(entry))
        except OSError:
            continue
    return found


def descendants(pid: int) -> list[int]:
    """A process and everything that still descends from it."""
    found = [pid]
    for parent in found:
        try:
            with open(f"/proc/{parent}/task/{parent}/children", encoding="ascii") as file:
                found += [int(word) for word in file.read().split()]
        except OSError:
            continue
    return found
