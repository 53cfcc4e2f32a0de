"""Starting a program of the host in a cgroup and a user namespace, with one exec.

A shell that writes to `cgroup.procs` waits for the kernel to hold up every fork of the machine
(10-20 ms), and `sh`, `nsenter` and the program are three execs. clone3 makes the child in the
cgroup it belongs to (Linux 5.7), and the child enters the namespace itself: 10 ms instead of 25.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
from collections.abc import Mapping, Sequence

from cagewrap.keeper import namespaces

_SYS_CLONE3 = 435  # on every architecture
_CLONE_INTO_CGROUP = 0x200000000  # include/uapi/linux/sched.h
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_COPY_BYTES = 4 << 20
HIGH_FD = 64
"""Our own descriptors that a child uses live from here on, out of the way of its numbers."""

# PyDLL keeps the interpreter's lock: the child must not wait for one that nobody gives back.
_libc = ctypes.PyDLL(None, use_errno=True)


class _CloneArguments(ctypes.Structure):
    """struct clone_args."""

    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in (
            "flags", "pidfd", "child_tid", "parent_tid", "exit_signal", "stack", "stack_size",
            "tls", "set_tid", "set_tid_size", "cgroup",
        )
    )  # fmt: skip


class Program:
    """A program found on PATH."""

    def __init__(self, name: str, search_path: str) -> None:
        """Raises FileNotFoundError when there is none of that name."""
        self.path = _find(name, search_path)
        self.copy = -1

    def hold_copy(self) -> None:
        """Execute a sealed copy in memory from now on, unless the program is a large one.

        crun makes one at every start otherwise, and executes itself again from it, so that no
        container can write to the runtime's file.
        """
        with open(self.path, "rb") as file:
            content = file.read(_COPY_BYTES + 1)
        if len(content) > _COPY_BYTES:
            return
        writable = os.memfd_create("cagewrap-runtime", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        with open(writable, "wb") as file:
            file.write(content)
            file.flush()
            fcntl.fcntl(writable, fcntl.F_ADD_SEALS, _SEALS)
            # A file that is open for writing cannot be executed.
            low = os.open(f"/proc/self/fd/{writable}", os.O_RDONLY | os.O_CLOEXEC)
        self.copy = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, HIGH_FD)
        os.close(low)

    def close(self) -> None:
        """Let go of the copy."""
        if self.copy >= 0:
            os.close(self.copy)
            self.copy = -1


def spawn(
    program: Program,
    argv: Sequence[str],
    env: Mapping[str, str],
    fds: Sequence[tuple[int, int]],
    *,
    cgroup: str = "",
    clones: bool = True,
    user_namespace: int = -1,
    log: str = "",
) -> int:
    """Start a program as a child in a session of its own; returns its pid. Raises OSError.

    cgroup: where it lives, "" for where we are. clones: what `can_clone_into` said.
    fds: pairs (ours, its number in the child), made in this order; nothing else is inherited.
    user_namespace: a descriptor of the one to enter, -1 to stay.
    log: the file to write to when it cannot be executed, "" for the child's stderr; it then ends
    with status 127.
    """
    pid = _fork(cgroup, clones=clones)
    if pid == 0:
        try:
            os.setsid()
            if user_namespace >= 0:
                namespaces.enter(user_namespace)
            for fd, number in fds:
                os.dup2(fd, number)
            for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python, for itself
                signal.signal(ignored, signal.SIG_DFL)
            _execute(program, argv, env)
        except BaseException as error:  # noqa: BLE001 - nothing may escape into the parent's code
            _complain(f"{argv[0]}: {error}\n", log)
        finally:
            os._exit(127)
    return pid


def can_clone_into(cgroup: str) -> bool:
    """Whether a child that is made in a cgroup lives. For a new cgroup, which nobody has killed.

    Linux 6.14 and later compare how often the new cgroup and ours were killed (`cgroup.kill`),
    and kill the child when the counts differ.
    """
    pid = _clone_into(cgroup)
    if pid == 0:
        os._exit(0)
    return pid > 0 and os.waitpid(pid, 0)[1] == 0


def _fork(cgroup: str, *, clones: bool) -> int:
    """Fork, the child in a cgroup from its first moment on if that can be."""
    pid = _clone_into(cgroup) if cgroup and clones else -1
    if pid >= 0:
        return pid
    return _fork_and_move(cgroup) if cgroup else os.fork()


def _clone_into(cgroup: str) -> int:
    """As fork; -1 where the kernel or a seccomp filter has no clone3, or not this cgroup."""
    directory = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    arguments = _CloneArguments(
        flags=_CLONE_INTO_CGROUP, exit_signal=signal.SIGCHLD, cgroup=directory
    )
    pid: int = _libc.syscall(_SYS_CLONE3, ctypes.byref(arguments), ctypes.sizeof(arguments))
    if pid != 0:
        os.close(directory)
    return pid


def _fork_and_move(cgroup: str) -> int:
    """The slow way."""
    pid = os.fork()
    if pid == 0:
        try:
            with open(cgroup + "/cgroup.procs", "w", encoding="ascii") as file:
                file.write("0")
        except BaseException:  # noqa: BLE001
            os._exit(127)
    return pid


def _execute(program: Program, argv: Sequence[str], env: Mapping[str, str]) -> None:
    words = list(argv)
    if program.copy >= 0:
        with contextlib.suppress(OSError):  # vm.memfd_noexec
            os.execve(program.copy, words, env)  # noqa: S606
    os.execve(program.path, words, env)  # noqa: S606


def _complain(text: str, log: str) -> None:
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600) if log else 2
    os.write(fd, text.encode(errors="replace"))


def _find(name: str, search_path: str) -> str:
    for directory in search_path.split(":"):
        path = os.path.join(directory, name)
        if directory and os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    raise FileNotFoundError(f"{name}: executable file not found in $PATH")
