"""A mount that the owner asked for: judged, and its source resolved."""

from __future__ import annotations

import os
import stat

from cagewrap.errors import MountRefusedError
from cagewrap.model import Mount, Owner
from cagewrap.project import Project
from cagewrap.protected import Place, lies_in, refuse_protected

COVERED_TARGETS = (
    "/ /bin /boot /dev /etc /home /lib /lib32 /lib64 /libx32 /proc /root /run /sbin /sys /tmp /usr "
    "/usr/bin /usr/lib /usr/lib64 /usr/libexec /usr/local /usr/sbin /usr/share /var /var/lib "
    "/var/tmp"
)
"""Directories of the image that a mount must not cover, in words; below them is fine."""

RESERVED_TARGETS = ("/dev", "/proc", "/sys", "/run/cagewrap")
"""Nothing is mounted in these: the runtime's own, and ours."""


def judge_mount(mount: Mount, project: Project, owner: Owner, places: tuple[Place, ...]) -> Mount:
    """A mount of the configuration, judged and with its source resolved."""
    target = _target(mount, project, owner)
    if mount.kind == "tmpfs":
        return Mount("", target, mount.readonly, "tmpfs", mount.why or "asked for")
    refuse_spelling(mount.source)
    what = f"The mount of {mount.source!r}"
    try:
        source = os.path.realpath(mount.source, strict=True)
        found = os.stat(source)
    except OSError as error:
        raise MountRefusedError(
            f"{what} is not possible: {error.strerror}.", f"ls -ld {mount.source!r}"
        ) from error
    for path in dict.fromkeys((os.path.normpath(mount.source), source)):
        shown = what if path == mount.source else f"{what} (which is {path!r})"
        refuse_protected(shown, path, places, readonly=mount.readonly)
    if not stat.S_ISDIR(found.st_mode) and not stat.S_ISREG(found.st_mode):
        raise MountRefusedError(
            f"{what} is refused: {source!r} is neither a directory nor a file, and a socket or "
            "device acts outside of the cage.",
            "for a device use --device, for a service on a port --host-port",
        )
    if not os.access(source, os.R_OK | (os.X_OK if stat.S_ISDIR(found.st_mode) else 0)):
        raise MountRefusedError(f"{what}: it cannot be read by you.", f"ls -ld {source!r}")
    return Mount(source, target, mount.readonly, why=mount.why or "asked for")


def _target(mount: Mount, project: Project, owner: Owner) -> str:
    """Where it is mounted, normal in spelling; refused where it would cover what a cage needs."""
    given = mount.target or mount.source
    target = os.path.normpath(given)
    reason = ""
    if not given.startswith("/") or ".." in given.split("/"):
        reason = "is not an absolute path without '..'"
    elif covers_system(target):
        reason = "would cover a part of the system in the cage"
    elif target != os.path.normpath(mount.source):
        kept = (project.path, *project.spelled, owner.home, os.path.realpath(owner.home))
        covered = [path for path in kept if path != target and lies_in(path, target)]
        reason = f"would cover {covered[0]!r}" if covered else ""
    if reason:
        raise MountRefusedError(
            f"The mount of {mount.source!r} is refused: its target {given!r} {reason}.",
            "give another target: --mount source=PATH,target=PATH",
        )
    return target


def covers_system(target: str) -> bool:
    """Whether a mount at `target` would take away what a container has of its own."""
    return target in COVERED_TARGETS.split() or any(
        lies_in(target, reserved) for reserved in RESERVED_TARGETS
    )


def refuse_spelling(path: str) -> None:
    """Paths that the engine's formats cannot carry."""
    try:
        path.encode("utf-8")
    except UnicodeEncodeError as error:
        raise MountRefusedError(
            f"The path {os.fsencode(path)!r} is not UTF-8, and the container's configuration, "
            "which is JSON, cannot carry it.",
            "rename it",
        ) from error
    if "\r\n" in path:
        raise MountRefusedError(
            f"The path {path!r} has a carriage return before a newline in it, and podman would "
            "mount the path without.",
            "rename it",
        )
