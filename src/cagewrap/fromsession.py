"""An image of what a session has installed, for others to start from."""

from __future__ import annotations

import os
import re

from cagewrap import __version__, loans, squash
from cagewrap.errors import SessionError, UsageError
from cagewrap.layers import Rewrite
from cagewrap.manage import Sessions
from cagewrap.model import Identity
from cagewrap.runtimes import podman
from cagewrap.sessions import Record, read_state
from cagewrap.squash import Content

MADE_LABEL = "cagewrap.from-session"
"""On such an image: the version of cagewrap that made it, and nothing of its owner's."""
_OF_PODMAN = (
    "run/.containerenv", "run/secrets", "etc/hosts", "etc/hostname", "etc/resolv.conf", "etc/mtab",
)  # fmt: skip
"""Files that podman gives every container."""
_NAME = re.compile(r"[a-z0-9][a-z0-9._/:-]*(:[A-Za-z0-9._-]+)?")
_PASSING = ("tmp", "var/tmp", "run/lock", "run/user")
"""Directories whose content is of the moment."""


def default_tag(record: Record) -> str:
    """The name of a session's image, unless one is given."""
    return f"localhost/{record.name}:latest"


def make_image(sessions: Sessions, record: Record, tag: str) -> None:
    """Make the image `tag` of what a session has installed, on the image it was made from.

    Its HOME, its project and whatever else is mounted in it are no part of that. The session is
    stopped, and kept. Raises SessionError while agents are at work, or when it never ran.
    """
    _refuse_name(tag)
    sessions.refuse_at_work(record, f"cagewrap stop {record.name}")
    with sessions.at_rest(record):
        if not read_state(sessions.paths, record.name).container_id:
            raise SessionError(
                f"{record.name} never ran, so nothing is installed in it.",
                "cagewrap shell",
            )
        base = squash.find_base(sessions.podman, sessions.image_of(record))
        committed = f"localhost/cagewrap-session:{record.name}.now"
        try:
            sessions.commit(record, committed, {})
            content = _content(record, loans.read_targets(sessions.paths.loans_file(record.name)))
            labels = {MADE_LABEL: __version__}
            squash.make_image(sessions.podman, committed, base, content, tag, labels)
        finally:
            sessions.podman(podman.remove_image_args(committed))


def _content(record: Record, lent: frozenset[str]) -> Content:
    mounted = {target for _, target in record.binds}
    homes = {record.home, os.path.realpath(record.home)}
    drop = {*mounted, *homes, *lent, "/run/cagewrap"}
    return Content(
        drop=frozenset((*(path.strip("/") for path in drop), *_OF_PODMAN)),
        empty=_PASSING,
        rewrite=_rewrites(record),
    )


def _rewrites(record: Record) -> dict[str, Rewrite]:
    """The entries of /etc/passwd and /etc/group that make a container the owner's."""
    home = os.fsencode(record.home)
    if record.identity == Identity.ROOT.value:
        return {"etc/passwd": lambda text: passwd_without(text, home, b"")}
    uid, gid = b"%d" % os.getuid(), b"%d" % os.getgid()
    return {
        "etc/passwd": lambda text: passwd_without(text, home, uid),
        "etc/group": lambda text: group_without(text, gid),
    }


def passwd_without(text: bytes, home: bytes, uid: bytes) -> bytes:
    """passwd(5) in which root lives in /root again, and nobody of that uid lives in `home`."""
    lines = []
    for line in text.splitlines(keepends=True):
        entry = line.rstrip(b"\n").split(b":")
        if len(entry) == 7 and entry[5] == home:
            if entry[2] == uid:
                continue
            if entry[2] == b"0":
                lines.append(b":".join((*entry[:5], b"/root", entry[6])) + b"\n")
                continue
        lines.append(line)
    return b"".join(lines)


def group_without(text: bytes, gid: bytes) -> bytes:
    """group(5) without what podman adds for the owner: a group with no member but its namesake."""
    kept = []
    for line in text.splitlines(keepends=True):
        entry = line.rstrip(b"\n").split(b":")
        if not (len(entry) == 4 and entry[2] == gid and entry[3] in (b"", entry[0])):
            kept.append(line)
    return b"".join(kept)


def _refuse_name(tag: str) -> None:
    if not _NAME.fullmatch(tag):
        raise UsageError(f"{tag!r} is no name for an image.", "name it such as localhost/mine:1")
