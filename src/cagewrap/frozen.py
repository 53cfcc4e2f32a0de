"""The entry of a frozen program (PyInstaller), where one file is both cagewrap and its interpreter.

This module is on the wrap path of a frozen program: it imports what that has loaded already.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping, Sequence

INTERNAL = "--cagewrap-internal"
"""What stands before the words of a process of our own (`ahead.self_command`)."""


def main() -> None:
    """Run cagewrap, or a process of its own; never returns."""
    sys.frozen = True  # type: ignore[attr-defined]
    restore_environment(os.environ, sys._MEIPASS)  # type: ignore[attr-defined]  # noqa: SLF001
    from cagewrap import entry

    if is_own_process(sys.argv, sys.executable):
        entry.internal()
    entry.main()


def is_own_process(argv: Sequence[str], program: str) -> bool:
    """Whether cagewrap started this itself. A shim for an agent has other words in argv[0], and a
    person writes neither the program's real path nor just these words."""
    return len(argv) == 4 and argv[0] == program and argv[1] == INTERNAL


def restore_environment(environ: MutableMapping[str, str], bundle: str) -> None:
    """Make it what it was before PyInstaller's bootloader put its own into it.

    Then no child can inherit it, whichever way it is started; what the bundle's libraries need of
    it was read when this process began.
    """
    for name in [name for name in environ if name.startswith("_PYI_")]:
        del environ[name]
    ours, _, before = environ.get("LD_LIBRARY_PATH", "").partition(":")
    if ours != bundle:
        return
    if before:
        environ["LD_LIBRARY_PATH"] = before
        environ.pop("LD_LIBRARY_PATH_ORIG", None)
    else:
        del environ["LD_LIBRARY_PATH"]
