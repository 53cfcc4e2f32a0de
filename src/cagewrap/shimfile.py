"""Shim files: one program to be given to a harness, which runs an agent in a cage.

A file is a script of sh's that only says which cagewrap is to be run and how, so that an update of
cagewrap is an update of every shim.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import stat
from collections.abc import Collection, Sequence

from cagewrap.agentnames import AS
from cagewrap.errors import UnsupportedError, UsageError
from cagewrap.ourselves import MARK, is_shim_file
from cagewrap.waypoints import leads_through, waypoints

_TEXT = """\
#!/bin/sh
# {mark} 1: made by `cagewrap shim`, which makes it anew; runs an agent in a cage.
program={program}
if [ ! -x "$program" ]; then
    printf 'cagewrap: %s is not there, and %s runs its agent with it; install it there, or make \
this file anew: cagewrap shim\\n' "$program" "$0" >&2
    exit 127
fi
exec "$program" {words} -- "$@"
"""


def shim_text(program: str, agent: str, flags: Sequence[str]) -> bytes:
    """The content of a shim file.

    program: absolute path of cagewrap. agent: a name or an absolute path. flags: what would stand
    before `--`. Any text will do in each: it is quoted.
    """
    words = shlex.join((AS, agent, *flags))
    text = _TEXT.format(mark=MARK.decode(), program=shlex.quote(program), words=words)
    return os.fsencode(text)


def write_shim(path: str, content: bytes, *, program: str, force: bool) -> None:
    """Write a shim file, whole or not at all, for everyone to execute. Raises UsageError.

    Anything there but a shim file stays, unless `force` says otherwise. program: cagewrap's own
    file, which never becomes a shim of itself.
    """
    directory = os.path.realpath(os.path.dirname(os.path.abspath(path)))
    place = os.path.join(directory, os.path.basename(os.path.abspath(path)))
    if place in (*waypoints(program), program):
        raise UsageError(f"{path!r} is cagewrap itself.", "name another file")
    _refuse_taken(place, path, force=force)
    temporary = os.path.join(directory, f".cagewrap-shim.{os.getpid()}")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o700)
        try:
            with open(fd, "wb") as file:
                file.write(content)
                os.fchmod(fd, 0o755)
            os.rename(temporary, place)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        raise UsageError(
            f"{path!r} cannot be written: {error.strerror or error}.", _mend(directory)
        ) from error


def _refuse_taken(place: str, path: str, *, force: bool) -> None:
    """Raise UsageError where something is that must stay."""
    try:
        found = os.lstat(place)
    except OSError:
        return  # nothing is there, or it cannot be written, which is said then
    if stat.S_ISDIR(found.st_mode):
        raise UsageError(f"{path!r} is a directory.", f"-o {shlex.quote(path.rstrip('/'))}/NAME")
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISLNK(found.st_mode):
        raise UsageError(f"{path!r} is no regular file.", "name another file")
    if force:
        return
    what = "is a symlink" if stat.S_ISLNK(found.st_mode) else "is no shim of cagewrap's"
    try:
        if stat.S_ISREG(found.st_mode) and is_shim_file(place):
            return
    except OSError:
        what = "cannot be read"
    raise UsageError(
        f"{path!r} is there already, and {what}.",
        "name another file, or say --force to put the shim in its place",
    )


def _mend(directory: str) -> str:
    if not os.path.isdir(directory):
        return f"mkdir -p {shlex.quote(directory)}"
    return "name a file in a directory of yours: -o ~/.local/bin/NAME"


def refuse_agents_place(path: str, written: Collection[str]) -> None:
    """Raise UnsupportedError for a place where an agent could put another text into the shim."""
    place = leads_through(os.path.abspath(path), written)
    if place:
        raise UnsupportedError(
            f"{path!r} lies where an agent can write ({place}), which could then choose what your "
            "harness runs.",
            "name a file outside of the project: -o ~/.local/bin/NAME",
        )
