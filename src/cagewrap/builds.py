"""Which build of cagewrap this is.

A keeper lives for days, and what it was started from may be replaced meanwhile, or be one of
several installs. So shims say which build they are and where it lies, and a keeper can go on as
another one (`keeper.succession`). This module is on the wrap path: `os` and `sys` are loaded
already.
"""

from __future__ import annotations

import os
import sys

from cagewrap import __version__


class Build:
    """One build. id: its version, and what tells its files from others of that version.

    executable, root: what starts it, see `ahead.self_command`; both are empty for one that cannot
    be gone on as (a single file, whose content is unpacked anew by a process in between).
    """

    __slots__ = ("executable", "id", "root")

    def __init__(self, id_: bytes, executable: bytes, root: bytes) -> None:
        """Keep all three."""
        self.id, self.executable, self.root = id_, executable, root

    @property
    def text(self) -> str:
        """The id as a keeper says it of itself (`status`), to be compared."""
        return self.id.decode(errors="replace")

    @property
    def version(self) -> str:
        """The version alone."""
        return self.id.partition(b" ")[0].decode(errors="replace")


def own_build() -> Build:
    """The build that this process was started from, as its files are now."""
    executable = os.fsencode(sys.executable)
    if getattr(sys, "frozen", False):
        unpacked = os.path.basename(getattr(sys, "_MEIPASS", ""))
        is_single = unpacked.startswith("_MEI")
        return Build(_id(executable), b"" if is_single else executable, b"")
    package = os.fsencode(__file__).rpartition(b"/")[0]
    # Every install writes it anew. The directory's own times change with `__pycache__`.
    return Build(_id(package + b"/__init__.py"), executable, package.rpartition(b"/")[0])


def _id(path: bytes) -> bytes:
    try:
        found = os.stat(path)
    except OSError:  # it is being replaced at this moment
        return b"%s gone" % __version__.encode()
    return b"%s %x.%x.%x" % (
        __version__.encode(),
        found.st_mtime_ns,
        found.st_size,
        found.st_ino,
    )
