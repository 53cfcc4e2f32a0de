"""Whether a file is open for writing, which the kernel tells its owner by a lease (fcntl(2))."""

from __future__ import annotations

import errno
import fcntl
import os
import signal

from cagewrap import beneath
from cagewrap.holding import tree

_F_SETSIG = 10  # include/uapi/asm-generic/fcntl.h


def is_open_for_writing(root: int, path: str, *, is_new: bool) -> bool:
    """Whether a process has the regular file at a path open for writing, or mapped so: it can
    change it at any time, without anything being told.

    is_new: the file is not what it was; one that was given to another user meanwhile, of which the
    kernel tells us nothing, counts as open. False where a file system has no leases.
    """
    try:
        with tree.parent(root, path) as (above, name):
            fd = beneath.open_regular(above, name)
    except OSError:
        return False
    try:
        # Who opens it for writing in this moment is kept waiting for it, and we would be told by
        # a signal; nobody minds this one.
        fcntl.fcntl(fd, _F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        return error.errno == errno.EAGAIN or (error.errno == errno.EACCES and is_new)
    finally:
        os.close(fd)
    return False
