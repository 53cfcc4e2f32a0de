"""Which processes belong together, read from /proc."""

from __future__ import annotations

import os

_FLAGS_FIELD = 6
"""Of /proc/PID/stat, counted after the name: the kernel's flags of the process."""
_FORKED_NOT_EXECUTED = 0x40  # PF_FORKNOEXEC of include/linux/sched.h


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


def is_ending(pid: int) -> bool:
    """Whether a process is gone or on its way out, killed: its root goes before it is a zombie."""
    try:
        os.readlink(f"/proc/{pid}/root")
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def never_executed(stat: str) -> bool:
    """Whether a process that ended never became its program, by its /proc/PID/stat.

    A runtime with --detach reports success before the last execve. When that fails (a program for
    another processor, an interpreter that is not there) the process ends with code 1 or 255 of the
    runtime's own; the kernel still marks it as forked but never executed, as long as it is not
    reaped (waitid with WNOWAIT). Holds for crun and runc.
    """
    fields = stat.rpartition(")")[2].split()
    return len(fields) > _FLAGS_FIELD and bool(int(fields[_FLAGS_FIELD]) & _FORKED_NOT_EXECUTED)
