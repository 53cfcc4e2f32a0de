"""crun and runc: runtimes that start a second process in a container by `exec --detach`."""

from __future__ import annotations

import json

from cagewrap.errors import UnsupportedError
from cagewrap.runtimes.base import ExecCall, Runtime


class Crun:
    """The default runtime of rootless podman."""

    name = "crun"
    can_exec = True
    keeps_groups = True

    def state_dir(self, runtime_home: str) -> str:
        """`$XDG_RUNTIME_DIR/crun`."""
        return f"{runtime_home}/crun"

    def bundle(self, state_dir: str, container_id: str) -> str:
        """From crun's `status`."""
        return str(_read_json(f"{state_dir}/{container_id}/status").get("bundle", ""))

    def exec_args(self, state_dir: str, call: ExecCall) -> tuple[str, ...]:
        """`crun exec`; the document says user, environment and limits."""
        return (
            "crun", "--root", state_dir, f"--log={call.log_file}",
            "exec", "--detach", "--pid-file", call.pid_file,
            *(("--cgroup", call.cgroup) if call.cgroup else ()),
            *_common(call),
        )  # fmt: skip


class Runc:
    """The reference runtime."""

    name = "runc"
    can_exec = True
    keeps_groups = False

    def state_dir(self, runtime_home: str) -> str:
        """`$XDG_RUNTIME_DIR/runc`."""
        return f"{runtime_home}/runc"

    def bundle(self, state_dir: str, container_id: str) -> str:
        """From runc's `state.json`, where it is a label."""
        config = _read_json(f"{state_dir}/{container_id}/state.json").get("config")
        labels = config.get("labels", []) if isinstance(config, dict) else []
        found = [str(label) for label in labels if str(label).startswith("bundle=")]
        return found[0].partition("=")[2] if found else ""

    def exec_args(self, state_dir: str, call: ExecCall) -> tuple[str, ...]:
        """`runc exec`; it has no short option for a sub-cgroup before 1.1, so always the long."""
        return (
            "runc", "--root", state_dir, "--log", call.log_file,
            "exec", "--detach", "--pid-file", call.pid_file,
            *(("--cgroup", call.cgroup) if call.cgroup else ()),
            *_common(call),
        )  # fmt: skip


def _read_json(path: str) -> dict[str, object]:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _common(call: ExecCall) -> tuple[str, ...]:
    tty = ("--tty", "--console-socket", call.console_socket) if call.console_socket else ()
    fds = ("--preserve-fds", str(call.preserved_fds)) if call.preserved_fds else ()
    return (*tty, *fds, "--process", call.process_file, call.container_id)


_RUNTIMES: dict[str, Runtime] = {"crun": Crun(), "runc": Runc()}


def runtime(name: str) -> Runtime:
    """The runtime of that name. Raises UnsupportedError for one that cannot keep a cage."""
    found = _RUNTIMES.get(name)
    if found is None:
        raise UnsupportedError(
            f"The runtime {name!r} is not supported.", "use --runtime crun or --runtime runc"
        )
    return found
