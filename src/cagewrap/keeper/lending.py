"""Files of this machine's in a running container, read-only, at a place made for each.

As `covers`, but where nothing need lie before. A place is made as root of podman's user namespace
in the container's own mount namespace, so no symlink in there leads to the host.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Sequence
from typing import NamedTuple

from cagewrap.keeper import covers
from cagewrap.keeper.covers import Cover, Identity


class Loan(NamedTuple):
    """source: a real path of this machine's. target: where it is to be seen in the container."""

    source: str
    target: str


def attach(init_pid: int, loans: Sequence[Loan]) -> list[Identity]:
    """Mount each, over whatever is there, and say what is seen at each target then.

    Raises OSError when one could not be mounted.
    """
    wanted = [Cover(one.source, one.target, (0, 0), is_readonly=True) for one in loans]
    return covers.attached(init_pid, wanted, _attach_all)


def _attach_all(clones: Sequence[int], loans: Sequence[Cover]) -> list[Identity]:
    return [_attach(clone, loan) for clone, loan in zip(clones, loans, strict=True)]


def _attach(clone: int, loan: Cover) -> Identity:
    is_directory = stat.S_ISDIR(os.fstat(clone).st_mode)
    try:
        _make_place(loan.target, is_directory=is_directory)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        with covers.writable_root():
            _make_place(loan.target, is_directory=is_directory)
    covers.move_to(clone, loan.target)
    return covers.identity(loan.target)


def _make_place(target: str, *, is_directory: bool) -> None:
    """An empty directory or file, unless something is there already."""
    if is_directory:
        os.makedirs(target, mode=0o755, exist_ok=True)
        return
    if os.path.lexists(target):
        return
    os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with contextlib.suppress(FileExistsError):
        os.close(os.open(target, flags, 0o644))
