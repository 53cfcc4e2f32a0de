"""Starting a process in a running container on the caller's own descriptors; ending its tree.

A child enters podman's user namespace and becomes the OCI runtime's `exec --detach`: the runtime
exits once the process runs, and the process becomes the keeper's child (the keeper is a
subreaper), across the namespaces. So its wait status is the real one.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from cagewrap.errors import CagewrapError, KeeperError
from cagewrap.keeper import cgroups, namespaces, spawn
from cagewrap.keeper.console import HOLD, Console, Terminal, can_hold
from cagewrap.keeper.loop import Loop
from cagewrap.keeper.processes import descendants, processes_inside
from cagewrap.runtimes.base import ExecCall, Runtime
from cagewrap.runtimes.failures import explain_exec_failure
from cagewrap.runtimes.process import (
    Limit,
    Process,
    is_plain,
    process_document,
    split_at_gate,
)

_PROCESS_FD = 11
_GATE_FD = 3
_PF_EXITING = 4  # include/linux/sched.h, field 9 of /proc/PID/stat


_PASSING = "could not ensure we are a cloned binary"
"""runc 1.1 copies itself into a memfd at every start, and can fail to seal it on a busy machine
(EBUSY). Nothing has been started then."""


class PassingError(KeeperError):
    """Nothing was started, and the next try may well succeed."""


class Launch(NamedTuple):
    """One process to start. `stdio` is empty for a terminal; `cgroup` is "" without cgroups."""

    argv: tuple[bytes, ...]
    env: tuple[bytes, ...]
    cwd: bytes
    umask: int
    limits: tuple[Limit, ...]
    terminal: Terminal | None
    stdio: tuple[int, ...]
    cgroup: str


class Inside(NamedTuple):
    """What is known of a running container.

    own_cgroup: it has a cgroup of its own and messages go below it; else messages go below the
    keeper's. uid and gid are those inside.
    """

    init_pid: int
    container_id: str
    state_dir: str
    uid: int
    gid: int
    own_cgroup: bool
    container_cgroup: str
    bounding: int
    no_new_privileges: bool
    selinux_label: str
    environment: dict[bytes, bytes]


def look_inside(init_pid: int, container_id: str, state_dir: str, ids: tuple[int, int]) -> Inside:
    """Read from /proc what a process must share with the container's init. Raises OSError.

    Whether the container has a cgroup of its own is told by the name: podman puts the id into it.
    """
    status = _status(init_pid)
    with open(f"/proc/{init_pid}/environ", "rb") as file:
        entries = [entry.partition(b"=") for entry in file.read().split(b"\0") if entry]
    container_cgroup = cgroups.cgroup_of(init_pid)
    return Inside(
        init_pid=init_pid,
        container_id=container_id,
        state_dir=state_dir,
        uid=ids[0],
        gid=ids[1],
        own_cgroup=container_id in container_cgroup,
        container_cgroup=container_cgroup,
        bounding=int(status.get("CapBnd", "0"), 16),
        no_new_privileges=status.get("NoNewPrivs") == "1",
        selinux_label=_selinux_label(init_pid),
        environment={name: value for name, _, value in entries},
    )


class Launcher:
    """Starts processes in one running container."""

    def __init__(
        self,
        loop: Loop,
        runtime: Runtime,
        inside: Inside,
        work_dir: str,
        env: dict[str, str],
        is_alone: Callable[[], bool],
    ) -> None:
        """work_dir: for pid files and console sockets. is_alone: at most one message runs."""
        self.loop = loop
        self.runtime = runtime
        self.inside = inside
        self.work_dir = work_dir
        self.env = env
        self.is_alone = is_alone
        self._count = 0
        self._clones = True
        self._program = spawn.Program(runtime.name, env.get("PATH", ""))
        self._program.hold_copy()
        self._user_fd = namespaces.podman_user_namespace(inside.init_pid)

    def close(self) -> None:
        """Let go of the user namespace."""
        self._program.close()
        os.close(self._user_fd)

    def start(
        self,
        launch: Launch,
        started: Callable[[int], None],
        failed: Callable[[CagewrapError], None],
        terminal: Callable[[int], None],
    ) -> int:
        """Start a process; exactly one of `started` (host pid) and `failed` is called later.

        Returns the runtime's pid, to be killed if it hangs.

        `terminal` is called with the pty's master before `started`.
        """
        self._count += 1
        base = f"{self.work_dir}/{self._count}"
        console = (
            Console(self.loop, base + ".tty", launch.terminal, terminal)
            if launch.terminal
            else None
        )
        call, document, script = self._call(launch, base, console)
        own = self._descriptors(launch, base)
        own.append((_memory_file(document), _PROCESS_FD))
        if script:
            own.append((_memory_file(script), _GATE_FD))
        fds = [(fd, at) for at, fd in enumerate(launch.stdio)] + own
        if console is not None and call.preserved_fds and not script:
            fds.append((console.hold, _GATE_FD))
        cgroup = "" if self.inside.own_cgroup else launch.cgroup
        if self._count == 1 and cgroup:
            self._clones = spawn.can_clone_into(cgroup)
        self.loop.pending_launches += 1
        try:
            pid = spawn.spawn(
                self._program,
                self.runtime.exec_args(self.inside.state_dir, call),
                self.env,
                fds,
                cgroup=cgroup,
                clones=self._clones,
                user_namespace=self._user_fd,
                log=call.log_file,
            )
        except OSError:
            self.loop.pending_launches -= 1
            if console is not None:
                console.close()
            raise
        finally:
            for fd, _ in own:
                os.close(fd)

        def ended(status: int) -> None:
            if console is not None:
                console.runtime_ended(status)
            self._runtime_ended(status, base, launch, started, failed)

        self.loop.on_end(pid, ended)
        return pid

    def _call(
        self, launch: Launch, base: str, console: Console | None
    ) -> tuple[ExecCall, bytes, bytes]:
        """The runtime's call, the document that goes to fd 11, and the gate's script for fd 3
        (b"" where a document can say all)."""
        inside = self.inside
        needs_gate = not is_plain((*launch.argv, *launch.env, launch.cwd))
        is_held = (
            console is not None
            and not needs_gate
            and can_hold(inside.init_pid, launch.argv, launch.env, launch.cwd)
        )
        process = Process(
            argv=(*HOLD, *launch.argv) if is_held else launch.argv, env=launch.env,
            cwd=launch.cwd, uid=inside.uid, gid=inside.gid,
            umask=launch.umask, limits=launch.limits, bounding=inside.bounding,
            no_new_privileges=inside.no_new_privileges, selinux_label=inside.selinux_label,
            size=(launch.terminal.rows, launch.terminal.columns) if launch.terminal else None,
        )  # fmt: skip
        script = b""
        if needs_gate:
            process, script = split_at_gate(process)
        call = ExecCall(
            container_id=inside.container_id,
            pid_file=base + ".pid",
            log_file=base + ".log",
            cgroup=os.path.basename(launch.cgroup) if inside.own_cgroup and launch.cgroup else "",
            console_socket=console.path if console is not None else "",
            preserved_fds=int(is_held or needs_gate),
            process_file=f"/proc/self/fd/{_PROCESS_FD}",
        )
        return call, process_document(process), script

    def _descriptors(self, launch: Launch, base: str) -> list[tuple[int, int]]:
        """The runtime's own 0, 1 and 2, as (ours, its), where the agent gets a pty."""
        if launch.stdio:
            return []
        log = os.open(base + ".log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        return [(os.open(os.devnull, os.O_RDWR), 0), (os.open(os.devnull, os.O_RDWR), 1), (log, 2)]

    def _runtime_ended(
        self,
        status: int,
        base: str,
        launch: Launch,
        started: Callable[[int], None],
        failed: Callable[[CagewrapError], None],
    ) -> None:
        self.loop.pending_launches -= 1
        log = _read_and_remove(base + ".log")
        pid = _read_and_remove(base + ".pid")
        if status == 0 and pid.strip().isdigit():
            started(int(pid))
        else:
            if launch.cgroup:
                cgroups.kill(launch.cgroup)
            reason = log or f"{self.runtime.name} ended with wait status {status}"
            error = explain_exec_failure(reason, os.fsdecode(launch.argv[0]))
            if _PASSING in reason:
                failed(PassingError(error.message, error.hint))
            else:
                failed(error)

    # -- ending a tree -------------------------------------------------------------------------

    def signal_tree(self, cgroup: str, pid: int, number: int) -> None:
        """Signal all of a message's tree once."""
        for member in self._tree(cgroup, pid):
            try:
                os.kill(member, number)
            except OSError:
                continue

    def tree_lives(self, cgroup: str, pid: int) -> bool:
        """Whether anything of a message is left."""
        if cgroup:
            return cgroups.is_populated(cgroup)
        return bool(self._tree(cgroup, pid))

    def kill_tree(self, cgroup: str, pid: int) -> None:
        """Kill all of a message's tree; by cgroup this cannot miss a process being forked."""
        if cgroup:
            cgroups.kill(cgroup)
        else:
            self.signal_tree(cgroup, pid, _SIGKILL)

    def container_is_ending(self) -> bool:
        """Whether the container's init is on its way out, which kills everything else in it."""
        try:
            with open(f"/proc/{self.inside.init_pid}/stat", "rb") as file:
                flags = int(file.read().rpartition(b")")[2].split()[6])
        except OSError:
            return True
        return bool(flags & _PF_EXITING)

    def oom_kills(self) -> int:
        """How many processes of the cage the kernel has killed for memory."""
        return cgroups.oom_kills(self.inside.container_cgroup) if self.inside.own_cgroup else 0

    def _tree(self, cgroup: str, pid: int) -> Sequence[int]:
        if cgroup:
            return cgroups.members(cgroup)
        if self.is_alone():
            return processes_inside(self.inside.init_pid)
        return descendants(pid) if pid else ()


def _memory_file(content: bytes) -> int:
    """A memfd with content, at its start, above the descriptors a child uses."""
    low = os.memfd_create("cagewrap-process")
    os.write(low, content)
    os.lseek(low, 0, os.SEEK_SET)
    fd = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, spawn.HIGH_FD)
    os.close(low)
    return fd


def _status(pid: int) -> dict[str, str]:
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        pairs = [line.partition(":") for line in file]
    return {name: value.strip() for name, _, value in pairs}


def _selinux_label(pid: int) -> str:
    if not os.path.exists("/sys/fs/selinux/enforce"):
        return ""
    try:
        with open(f"/proc/{pid}/attr/current", encoding="utf-8") as file:
            return file.read().strip("\0\n")
    except OSError:
        return ""


def _read_and_remove(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
        os.unlink(path)
    except OSError:
        return ""
    return text


_SIGKILL = 9
