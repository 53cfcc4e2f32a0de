"""Control groups (v2) for killing a message's whole tree.

Two cases, both measured. The container has a cgroup of its own (podman with systemd): a message
gets a child of it, and the runtime is told to put the process there. The container lives in its
caller's cgroup (rootless podman without systemd): the keeper makes a tree below its own cgroup and
starts each message from a leaf of it; podman itself is never started from there, because its pause
process, which all containers share, would be killed along. Without a writable cgroup neither works.
No controller is needed, only `cgroup.kill` (Linux 5.14) or, before that, signals in a loop.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence

MOUNT = "/sys/fs/cgroup"


def cgroup_of(pid: int | str) -> str:
    """The absolute directory of a process's v2 cgroup, or "" when there is none to see."""
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                if line.startswith("0::"):
                    path = MOUNT + line[3:].rstrip("\n")
                    return path if os.path.exists(path + "/cgroup.procs") else ""
    except OSError:
        pass
    return ""


def make(path: str) -> bool:
    """Make a cgroup; False where we may not."""
    try:
        os.mkdir(path)
    except FileExistsError:
        return True
    except OSError:
        return False
    return True


def may_divide(path: str) -> bool:
    """Whether we may make cgroups below this one."""
    probe = path + "/m0"
    return make(probe) and remove(probe)


def members(path: str) -> list[int]:
    """The pids in a cgroup and the ones below it."""
    found: list[int] = []
    for directory, _, _ in os.walk(path):
        try:
            with open(directory + "/cgroup.procs", encoding="ascii") as file:
                found += [int(line) for line in file]
        except OSError:
            continue
    return found


def signal_all(path: str, number: int) -> None:
    """Signal every process in a cgroup once."""
    for pid in members(path):
        try:
            os.kill(pid, number)
        except OSError:
            continue


def kill(path: str) -> None:
    """Kill every process in a cgroup, also ones being forked at this moment."""
    try:
        with open(path + "/cgroup.kill", "w", encoding="ascii") as file:
            file.write("1")
    except OSError:
        for _ in range(50):
            if not members(path):
                return
            signal_all(path, signal.SIGKILL)


def freeze(path: str, *, is_frozen: bool) -> bool:
    """Hold up everything in a cgroup, or let it go on; False where that cannot be (Linux 5.2). A
    frozen process can be killed."""
    try:
        with open(path + "/cgroup.freeze", "w", encoding="ascii") as file:
            file.write("1" if is_frozen else "0")
    except OSError:
        return False
    return True


def wait_until_frozen(paths: Sequence[str], wait_s: float) -> bool:
    """Whether all of some cgroups that are being frozen are, within so long."""
    deadline = time.monotonic() + wait_s
    while not all(_has_event(path, "frozen 1") for path in paths):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def is_populated(path: str) -> bool:
    """Whether any process lives in a cgroup or below."""
    return _has_event(path, "populated 1")


def _has_event(path: str, line: str) -> bool:
    try:
        with open(path + "/cgroup.events", encoding="ascii") as file:
            return line in file.read()
    except OSError:
        return False


def move_all(path: str, target: str) -> None:
    """Move every process of a cgroup into another one, as far as we may."""
    for _ in range(10):  # a process being forked is met the next time
        pids = members(path)
        if not pids:
            return
        for pid in pids:
            try:
                with open(target + "/cgroup.procs", "w", encoding="ascii") as file:
                    file.write(str(pid))
            except OSError:
                continue


def wait_until_empty(paths: Sequence[str], wait_s: float) -> None:
    """Wait until no process is in these cgroups, whose processes were killed, or for so long."""
    deadline = time.monotonic() + wait_s
    while any(members(path) for path in paths if path) and time.monotonic() < deadline:
        time.sleep(0.002)


def remove(path: str, wait_s: float = 0.0) -> bool:
    """Remove a cgroup and the empty ones below it; False while something lives there.

    wait_s: how long to wait for what is dying there.
    """
    deadline = time.monotonic() + wait_s
    while True:
        for directory, _, _ in os.walk(path, topdown=False):
            try:
                os.rmdir(directory)
            except OSError:
                continue
        if not os.path.exists(path):
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.01)


def oom_kills(path: str) -> int:
    """How many processes below a cgroup the kernel killed for memory; 0 when it does not say."""
    try:
        with open(path + "/memory.events", encoding="ascii") as file:
            for line in file:
                name, value = line.split()
                if name == "oom_kill":
                    return int(value)
    except (OSError, ValueError):
        pass
    return 0
