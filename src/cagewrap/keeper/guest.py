"""What is done inside a container once it runs, from outside, without any program of the image."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import NamedTuple

from cagewrap.keeper import covers, namespaces

_NEW_PASSWD = "/etc/passwd.cagewrap"  # noqa: S105 - a file


class Owner(NamedTuple):
    """Who the owner is inside."""

    uid: int
    gid: int
    name: str
    home: str


def set_home(owner: Owner) -> None:
    """Make /etc/passwd agree with HOME; for a process inside. Raises OSError.

    podman can only add an entry, and uid 0 is in every image with another home. A container
    without /etc/passwd gets one. Written in place of the old file, as `useradd` does.
    """
    try:
        before = namespaces.read_regular("/etc/passwd").decode(errors="surrogateescape")
    except FileNotFoundError:
        before = ""
    after = passwd_with_home(before, *owner)
    if after == before:
        return
    try:
        _write_passwd(after)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        _write_readonly_passwd(after)


def _write_passwd(text: str) -> None:
    os.makedirs("/etc", exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_NEW_PASSWD)  # an agent's FIFO would block
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    fd = os.open(_NEW_PASSWD, flags, 0o600)
    with open(fd, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
        os.fchmod(fd, 0o644)
    os.replace(_NEW_PASSWD, "/etc/passwd")


def _write_readonly_passwd(text: str) -> None:
    """Where `/` is read-only; podman has mounted a file of its own if the image has none."""
    if os.path.exists("/etc/passwd") and os.stat("/etc/passwd").st_dev != os.stat("/etc").st_dev:
        with (
            covers.writable("/etc/passwd"),
            open("/etc/passwd", "r+", encoding="utf-8", errors="surrogateescape") as file,
        ):
            file.write(text)
            file.truncate()
    else:
        with covers.writable_root():
            _write_passwd(text)


def passwd_with_home(text: str, uid: int, gid: int, name: str, home: str) -> str:
    """passwd(5) text in which the first entry of `uid` has `home`; added when there is none."""
    lines = text.splitlines()
    for at, line in enumerate(lines):
        entry = line.split(":")
        if len(entry) == 7 and entry[2] == str(uid):
            entry[5] = home
            entry[6] = entry[6] or "/bin/sh"
            lines[at] = ":".join(entry)
            break
    else:
        lines.append(f"{name}:x:{uid}:{gid}::{home}:/bin/sh")
    return "\n".join(lines) + "\n"


def write_resolv_conf(init_pid: int, content: bytes) -> None:
    """Replace what the container's resolver reads, in place: it is a bind mount. Raises OSError."""

    def work() -> bytes:
        namespaces.read_regular("/etc/resolv.conf")
        with open("/etc/resolv.conf", "r+b") as file:
            file.write(content)
            file.truncate()
        return b""

    namespaces.run_inside(init_pid, ("mnt",), work)


def resolv_conf(host: bytes, inside: bytes) -> bytes:
    """What the container's resolv.conf must say after the host's has changed.

    Name servers on the host's loopback are not reachable from a cage, except through the network
    helper's forwarder, which the container's file already names. slirp4netns's (10.0.2.3) follows
    the host's file, so it stays first. pasta's (169.254.1.1) leads to the server of when pasta was
    started, so it is the last resort.
    """
    before = inside.splitlines()
    wanted = [line for line in host.splitlines() if not _is_loopback_server(line)]
    has_server = any(line.split()[:1] == [b"nameserver"] for line in wanted)
    first = [line for line in before if line.split() == [b"nameserver", b"10.0.2.3"]]
    last = [line for line in before if line.split() == [b"nameserver", b"169.254.1.1"]]
    return b"\n".join([*first, *wanted, *([] if has_server else last)]) + b"\n"


def _is_loopback_server(line: bytes) -> bool:
    words = line.split()
    return words[:1] == [b"nameserver"] and (
        words[1:2] == [b"::1"] or (len(words) > 1 and words[1].startswith(b"127."))
    )
