"""The host's own claude, which renews cagewrap's login. It is looked for, never made."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator

from cagewrap.ourselves import is_ours
from cagewrap.waypoints import leads_through

PASSED_ON = (
    "HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "all_proxy",
    "no_proxy", "NODE_EXTRA_CA_CERTS", "NODE_USE_SYSTEM_CA", "SSL_CERT_FILE", "SSL_CERT_DIR",
)  # fmt: skip
"""What claude needs of the caller's environment to reach the internet from here."""

_HEAD_BYTES = 4096
_ELF = b"\x7fELF"
_PACKAGE = "@anthropic-ai"
_BELOW_HOME = (
    ".local/bin/claude",
    ".claude/local/claude",
    ".npm-global/bin/claude",
    ".bun/bin/claude",
)
_NODE_MODULES = ("/usr/local/lib/node_modules", "/usr/lib/node_modules")


def find_claude(search_path: str, home: str, projects: Collection[str] = (), told: str = "") -> str:
    """The claude to run on the host, "" when there is none.

    search_path: PATH without what an agent can write to. projects: real paths where agents write.
    told: the one the owner names, which is taken or none.
    """
    for path in [told] if told else _candidates(search_path, home):
        for one in (path, *_beside_stub(path)):
            # All of the way: it is run by its name, after a symlink may have got another text.
            if is_claude(one) and not leads_through(one, projects):
                return one
    return ""


def is_claude(path: str) -> bool:
    """Whether it can be one: a program, not what a package manager leaves where it should be, and
    not cagewrap nor a script that runs it (which would renew the login by an agent in a cage)."""
    head = _head(path)
    return (
        head.startswith(_ELF) or (head.startswith(b"#!") and not _is_stub(head))
    ) and not is_ours(path)


def find_ours(search_path: str, home: str, told: str = "") -> list[str]:
    """What stands where claude is looked for, and runs cagewrap itself: to be named to whoever
    misses claude."""
    found = [told] if told else _candidates(search_path, home)
    return [path for path in found if os.access(path, os.X_OK) and is_ours(path)]


def ours_in_words(found: list[str]) -> str:
    """For a sentence that says that there is no claude."""
    return f" ({', '.join(found)}: runs cagewrap itself)" if found else ""


def is_native(path: str) -> bool:
    """Whether it is one file that needs nothing beside it."""
    return _head(path).startswith(_ELF)


def _candidates(search_path: str, home: str) -> Iterator[str]:
    for directory in search_path.split(":"):
        if directory.startswith("/"):
            yield os.path.join(directory, "claude")
    for name in _BELOW_HOME:
        yield os.path.join(home, name)
    for directory in (os.path.join(home, ".npm-global/lib/node_modules"), *_NODE_MODULES):
        yield os.path.join(directory, _PACKAGE, "claude-code", "bin", "claude.exe")


def _beside_stub(path: str) -> Iterator[str]:
    """Where npm has put the program that a stub stands for: it lacks only the link."""
    if not _is_stub(_head(path)):
        return
    package = os.path.dirname(os.path.dirname(os.path.realpath(path)))
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(os.uname().machine, "")
    for above in (os.path.join(package, "node_modules", _PACKAGE), os.path.dirname(package)):
        yield os.path.join(above, f"claude-code-linux-{machine}", "claude")


def _is_stub(head: bytes) -> bool:
    return len(head) < _HEAD_BYTES and b"native binary not installed" in head


def _head(path: str) -> bytes:
    """The beginning of an executable file; b"" for anything else."""
    try:
        if not os.access(path, os.X_OK):
            return b""
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            return file.read(_HEAD_BYTES) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    except OSError:
        return b""
