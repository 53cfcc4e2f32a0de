"""The OCI process document (runtime-spec, config.md "process") for one message. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

# include/uapi/linux/capability.h, in bit order.
CAPABILITIES = (
    "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID",
    "CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP", "CAP_LINUX_IMMUTABLE",
    "CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST", "CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_IPC_LOCK",
    "CAP_IPC_OWNER", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE",
    "CAP_SYS_PACCT", "CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_NICE", "CAP_SYS_RESOURCE",
    "CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_MKNOD", "CAP_LEASE", "CAP_AUDIT_WRITE",
    "CAP_AUDIT_CONTROL", "CAP_SETFCAP", "CAP_MAC_OVERRIDE", "CAP_MAC_ADMIN", "CAP_SYSLOG",
    "CAP_WAKE_ALARM", "CAP_BLOCK_SUSPEND", "CAP_AUDIT_READ", "CAP_PERFMON", "CAP_BPF",
    "CAP_CHECKPOINT_RESTORE",
)  # fmt: skip


class Limit(NamedTuple):
    """One POSIX resource limit, named as in the runtime-spec (`RLIMIT_NOFILE`)."""

    type: str
    soft: int
    hard: int


class Process(NamedTuple):
    """What starts: user, command, environment and where.

    bounding: the container's capability bounding set as a bit mask. Uid 0 gets all of it as
    effective, anyone else none, which is what `podman exec` does. size: (rows, columns) of a
    terminal, or None without one.
    """

    argv: tuple[bytes, ...]
    env: tuple[bytes, ...]
    cwd: bytes
    uid: int
    gid: int
    umask: int
    limits: tuple[Limit, ...]
    bounding: int
    no_new_privileges: bool = False
    selinux_label: str = ""
    size: tuple[int, int] | None = None


def capability_names(mask: int) -> list[str]:
    """The names of the bits set in a mask from `/proc/PID/status`."""
    return [name for bit, name in enumerate(CAPABILITIES) if mask >> bit & 1]


def is_plain(words: Sequence[bytes]) -> bool:
    """Whether every word can stand in a JSON document (is UTF-8)."""
    try:
        for word in words:
            word.decode()
    except UnicodeDecodeError:
        return False
    return True


def process_document(process: Process) -> bytes:
    """The document as JSON. Every word must be UTF-8 (`is_plain`)."""
    bounding = capability_names(process.bounding)
    effective = bounding if process.uid == 0 else []
    document: dict[str, object] = {
        "terminal": process.size is not None,
        "user": {"uid": process.uid, "gid": process.gid, "umask": process.umask},
        "args": [word.decode() for word in process.argv],
        "env": [entry.decode() for entry in process.env],
        "cwd": process.cwd.decode(),
        "capabilities": {
            "bounding": bounding,
            "effective": effective,
            "permitted": effective,
            "inheritable": [],
            "ambient": [],
        },
        "rlimits": [
            {"type": limit.type, "soft": limit.soft, "hard": limit.hard} for limit in process.limits
        ],
        "noNewPrivileges": process.no_new_privileges,
    }
    if process.selinux_label:
        document["selinuxLabel"] = process.selinux_label
    if process.size is not None:
        document["consoleSize"] = {"height": process.size[0], "width": process.size[1]}
    return json.dumps(document).encode()


def split_at_gate(process: Process) -> tuple[Process, bytes]:
    """A process that a document can carry, and the shell script it reads from fd 3 to become
    the one that none can: with words that are not UTF-8. Needs /bin/sh in the image.
    """
    lines: list[bytes] = []
    plain: list[bytes] = []
    for entry in process.env:
        name, _, value = entry.partition(b"=")
        if is_plain((entry,)):
            plain.append(entry)
        elif _is_shell_name(name):
            lines.append(b"export " + name + b"=" + _quoted(value))
    cwd = process.cwd
    if not is_plain((cwd,)):
        lines.append(b"cd " + _quoted(cwd) + b" || exit 127")
        cwd = b"/"
    lines.append(b"set -- " + b" ".join(_quoted(word) for word in process.argv))
    argv = tuple(word.encode() for word in GATE)
    return process._replace(argv=argv, env=tuple(plain), cwd=cwd), b"\n".join(lines) + b"\n"


def _quoted(word: bytes) -> bytes:
    return b"'" + word.replace(b"'", b"'\\''") + b"'"


def _is_shell_name(name: bytes) -> bool:
    return name.replace(b"_", b"a").isalnum() and not name[:1].isdigit()


GATE = ("/bin/sh", "-c", '. /proc/self/fd/3; exec 3<&-; exec "$@"', "sh")
"""What runs in front of a command whose words are not UTF-8."""
