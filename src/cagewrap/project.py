"""Which directory is the project: the enclosing git work tree, without running git.

Nothing in the project is believed further than needed, because an agent can write there. A `.git`
can only narrow the project; one that an agent removed does not widen it, if the caller names the
projects that already have a cage (`known`).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from cagewrap.errors import DirectoryError, UsageError

GITFILE_LIMIT = 8192
"""Bytes read of a `.git` file, a `commondir` or a back-link; git writes one line."""


class Project(NamedTuple):
    """The directory that a cage is for.

    path: real absolute path; the key of the cage.
    spelled: further spellings of the same directory that must work inside as well.
    cwd: real absolute path of the caller's current directory; lies in `path`.
    pwd: the caller's own spelling of `cwd`, what PWD should say inside.
    """

    path: str
    spelled: tuple[str, ...]
    cwd: str
    pwd: str


def caller_cwd(env: Mapping[str, str]) -> str:
    """The current directory as its caller spells it: PWD where that is true, else the real path."""
    try:
        real = os.getcwd()
        here = os.stat(".")
    except OSError as error:
        raise _cwd_gone(env.get("PWD", "."), error) from error
    pwd = env.get("PWD", "")
    if not pwd.startswith("/") or os.path.normpath(pwd) != pwd or pwd.startswith("/proc/"):
        return real
    try:
        return pwd if os.path.samestat(os.stat(pwd), here) else real
    except OSError:
        return real


def find_project(
    cwd: str, home: str, override: str = "", *, known: Collection[str] = ()
) -> Project:
    """The project of a caller in `cwd`.

    cwd: as the caller spells it (`caller_cwd`). home: the owner's HOME. override: `--project`.
    known: real paths of projects that already have a cage.
    """
    try:
        real_cwd = os.path.realpath(cwd, strict=True)
    except OSError as error:
        raise _cwd_gone(cwd, error) from error
    _refuse_led_out(cwd, real_cwd, known)
    if override:
        path, given = _overridden(override, cwd, real_cwd, home)
    else:
        path, given = _work_tree(real_cwd, os.path.realpath(home), known), ""
    spelled = dict.fromkeys((*_spellings(path, cwd, home), *filter(None, (given,))))
    spelled.pop(path, None)
    return Project(path=path, spelled=tuple(spelled), cwd=real_cwd, pwd=os.path.normpath(cwd))


def _overridden(override: str, cwd: str, real_cwd: str, home: str) -> tuple[str, str]:
    """The real path and the spelling of `--project`, which must hold the current directory."""
    if override == "~" or override.startswith("~/"):
        override = home + override[1:]
    given = os.path.join(cwd, override)
    try:
        path = os.path.realpath(given, strict=True)
    except OSError as error:
        raise UsageError(
            f"The project {override!r} cannot be used: {error.strerror}.",
            "give the path of an existing directory: --project DIR",
        ) from error
    if not os.path.isdir(path):
        raise UsageError(
            f"The project {override!r} is not a directory.",
            "give the path of an existing directory: --project DIR",
        )
    if real_cwd != path and not real_cwd.startswith(path.rstrip("/") + "/"):
        raise UsageError(
            f"The current directory {real_cwd!r} is not in the project {path!r}, so it would not "
            "exist in the cage.",
            f"cd {path!r}, or leave --project out",
        )
    lexical = os.path.normpath(given)
    return path, lexical if os.path.realpath(lexical) == path else ""


def _work_tree(cwd: str, home: str, known: Collection[str]) -> str:
    """The nearest work tree at or above `cwd`; `cwd` itself if there is none below HOME.

    The walk ends where git's own does: at another owner's directory, at another file system.
    """
    above, device = cwd, os.stat(cwd).st_dev
    while above not in ("/", home) and not home.startswith(above + "/"):
        found = os.stat(above)
        if found.st_dev != device or found.st_uid != os.getuid():
            break
        if above in known or is_work_tree(above):
            return above
        above = os.path.dirname(above)
    return cwd


def is_work_tree(path: str) -> bool:
    """Whether git would take `path` for the top of a work tree."""
    git = os.path.join(path, ".git")
    try:
        found = os.stat(git)
    except OSError:
        return False
    if stat.S_ISDIR(found.st_mode):
        return is_git_dir(git)
    return stat.S_ISREG(found.st_mode) and read_small(git).startswith("gitdir:")


def is_git_dir(path: str) -> bool:
    """Whether `path` has what git asks of a repository: HEAD, objects and refs."""
    return os.path.lexists(os.path.join(path, "HEAD")) and all(
        os.path.isdir(os.path.join(path, name)) for name in ("objects", "refs")
    )


def read_small(path: str, limit: int = GITFILE_LIMIT) -> str:
    """The start of a regular file; "" for anything else. Never blocks, never follows a symlink."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        return os.fsdecode(os.read(descriptor, limit))
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def _spellings(path: str, cwd: str, home: str) -> Iterator[str]:
    """Other names of the directory `path`: on the way to the caller's cwd, and through HOME."""
    above = os.path.normpath(cwd)
    while above != "/":
        if above != path and os.path.realpath(above) == path:
            yield above
        above = os.path.dirname(above)
    real_home = os.path.realpath(home)
    if path.startswith(real_home + "/"):
        yield os.path.normpath(home) + path[len(real_home) :]


def _refuse_led_out(cwd: str, real_cwd: str, known: Collection[str]) -> None:
    """A symlink in a caged project must not lead the next cage to somewhere else."""
    above = os.path.normpath(cwd)
    while above != "/":
        real = os.path.realpath(above)
        if real in known and real_cwd != real and not real_cwd.startswith(real + "/"):
            raise DirectoryError(
                f"The current directory {cwd!r} is in the caged project {real!r}, but a symlink "
                f"there leads to {real_cwd!r}. The agent may have made it.",
                f"look at it, then cd {real_cwd!r} if you mean that directory",
            )
        above = os.path.dirname(above)


def _cwd_gone(cwd: str, error: OSError) -> DirectoryError:
    return DirectoryError(
        f"The current directory {cwd!r} cannot be used: {error.strerror}.",
        "cd into a directory that exists",
    )
