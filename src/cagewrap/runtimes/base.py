"""What the keeper must know of an OCI runtime to start a process in a running container."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class ExecCall(NamedTuple):
    """One process to start in a container.

    container_id: full id. pid_file: where the runtime writes the new process's pid.
    log_file: where it writes its own errors. process_file: the OCI process document.
    cgroup: sub-cgroup below the container's own ("" for none). console_socket: "" without a pty.
    preserved_fds: how many descriptors from 3 on the process inherits.
    """

    container_id: str
    pid_file: str
    log_file: str
    process_file: str
    cgroup: str = ""
    console_socket: str = ""
    preserved_fds: int = 0


class Runtime(Protocol):
    """A runtime podman can be told to use."""

    name: str
    can_exec: bool
    """False for a runtime whose container is one byte stream (a micro-VM): no second process."""
    keeps_groups: bool
    """True when it understands podman's `--group-add keep-groups`."""

    def state_dir(self, runtime_home: str) -> str:
        """Where rootless podman makes it keep its state, below `$XDG_RUNTIME_DIR`."""

    def bundle(self, state_dir: str, container_id: str) -> str:
        """The container's directory in podman's storage, gone when podman removes it; "" if the
        runtime does not say."""

    def exec_args(self, state_dir: str, call: ExecCall) -> tuple[str, ...]:
        """The command that starts `call` and returns once it runs."""
