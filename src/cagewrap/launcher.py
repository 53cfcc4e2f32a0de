"""Write the program `cagewrap` that starts quickest: `python -m cagewrap.launcher TARGET`.

The script that pip makes imports `re`, and the interpreter imports `site`: 5 ms of the 12 that an
idle `cagewrap` takes. This one does neither, so it says itself where cagewrap is.
"""

from __future__ import annotations

import os
import shlex
import sys

_SHEBANG_BYTES = 250
"""The kernel reads 255 bytes of a script's first line."""


def launcher_text(python: str, package_dir: str) -> str:
    """A script that runs cagewrap from `package_dir`'s parent with that interpreter."""
    program = (
        "import sys\n"
        f"sys.path.insert(0, {os.path.dirname(package_dir)!a})\n"
        "from cagewrap.entry import main\n"
        "main()\n"
    )
    head = f"#!{python} -IS\n"
    if len(os.fsencode(head)) > _SHEBANG_BYTES or any(letter.isspace() for letter in python):
        # A first line cannot hold this path. The name by which it was called comes first.
        program = program.replace("import sys\n", "import sys\ndel sys.argv[0]\n", 1)
        return f'#!/bin/sh\nexec {shlex.quote(python)} -ISc {shlex.quote(program)} "$0" "$@"\n'
    return head + program


def write_launcher(target: str) -> None:
    """Write it for this interpreter and this package; the old one works until the new one does."""
    package_dir = os.path.dirname(os.path.abspath(__file__))
    temporary = f"{target}.{os.getpid()}"
    with open(temporary, "wb") as file:
        file.write(os.fsencode(launcher_text(sys.executable, package_dir)))
        os.fchmod(file.fileno(), 0o755)
    os.replace(temporary, target)


if __name__ == "__main__":
    write_launcher(sys.argv[1])
