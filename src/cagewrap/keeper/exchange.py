"""Taking a directory out of the project while an agent works in it, without it noticing."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cagewrap import beneath
from cagewrap.holding import tree
from cagewrap.keeper import covers
from cagewrap.keeper.covers import Cover, Identity

_EXCHANGE = 2  # include/uapi/linux/fs.h

_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def exchanged(
    root: int, project: str, path: str, init_pid: int, targets: Callable[[str], list[str]]
) -> Iterator[str]:
    """Put an empty directory in the place of one that the agent made, which goes on seeing its
    own; inside the block that lies on the host at the path that is given.

    The empty one is covered by the agent's under another name, and then the two change names:
    a mount stays with the directory that it lies on. targets: where a path of the project is seen
    in the cage. Raises OSError, also when the agent takes part in it.
    """
    above, _, name = path.rpartition("/")
    aside = beneath.TEMPORARY_PREFIX + os.urandom(6).hex()
    place = f"{above}/{aside}" if above else aside
    with tree.parent(root, path) as (fd, _):
        os.mkdir(aside, 0o755, dir_fd=fd)
        try:
            empty, own = _open_both(fd, aside, name)
            _cover(init_pid, os.path.join(project, path), own, empty, targets(place))
            _swap(fd, aside, name)
            if _is(fd, name) != empty or _is(fd, aside) != own:
                raise OSError(errno.EAGAIN, f"{path} was moved meanwhile")
            yield place
        finally:
            with contextlib.suppress(OSError):
                os.rmdir(aside, dir_fd=fd)


def _open_both(fd: int, aside: str, name: str) -> tuple[Identity, Identity]:
    below = beneath.open_dir(fd, (aside,))
    os.fchmod(below, 0o755)
    os.close(below)
    return _is(fd, aside), _is(fd, name)


def _cover(init_pid: int, source: str, own: Identity, empty: Identity, targets: list[str]) -> None:
    wanted = [Cover(source, target, empty, source_is=own) for target in targets]
    if any(seen != own for seen in covers.attach(init_pid, wanted)):
        raise OSError(errno.EAGAIN, f"{source} was moved in the cage meanwhile")


def _swap(fd: int, one: str, other: str) -> None:
    if _libc.renameat2(fd, one.encode(), fd, os.fsencode(other), _EXCHANGE) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _is(fd: int, name: str) -> Identity:
    found = beneath.stat_at(fd, name)
    return (found.st_dev, found.st_ino)
