"""What the wrap path imports: everything here is loaded before the agent starts, at every message.

An import that is missing below was added by someone: decide whether each message should pay for it
(most cost 1-30 ms), or import it where it is needed.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
WRAP_PATH = ("entry", "wrap", "shim", "warm", "protocol", "errors", "builds")
OURS = {"cagewrap", *(f"cagewrap.{name}" for name in WRAP_PATH)}
STANDARD = {
    "__future__", "_abc", "_socket", "errno", "zlib",
    # What `site` would have loaded.
    "_collections_abc", "_stat", "abc", "genericpath", "os", "os.path", "posixpath", "stat",
}  # fmt: skip
"""Beyond what `python -I -S` has loaded anyway, such as `_signal` and `sys`."""
NEVER = {
    "argparse", "asyncio", "click", "contextlib", "dataclasses", "enum", "json", "logging",
    "pathlib", "re", "selectors", "shutil", "signal", "site", "socket", "subprocess", "tempfile",
    "threading", "tomllib", "typing",
}  # fmt: skip


def loaded_by(code: str) -> set[str]:
    """The modules of a fresh interpreter after some code."""
    program = f"import sys; sys.path.insert(0, {str(SOURCE)!r}); {code}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_the_wrap_path_imports_these_modules_and_no_other() -> None:
    wanted = "; ".join(f"import cagewrap.{name}" for name in ("entry", "wrap"))
    added = loaded_by(wanted) - loaded_by("pass")
    # Some are built into one Python and a file of their own in another: already loaded or not.
    assert added - OURS - STANDARD == set()
    assert added & NEVER == set()
    assert added & OURS == OURS


def test_nothing_heavy_is_loaded_by_the_interpreter_itself() -> None:
    assert loaded_by("pass") & NEVER == set()
