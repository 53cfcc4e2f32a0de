"""Single files that were taken out of a project: kept in a directory of the session's.

Each is a copy that no descriptor and no hard link of an agent's leads to.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass

from cagewrap import beneath
from cagewrap.holding import tree
from cagewrap.holding.directory import key_of
from cagewrap.holding.names import why

HELD_BYTES = 4 << 20
"""A larger single file is not kept, nor put back: nobody's settings are that large."""


@dataclass(frozen=True, slots=True)
class HeldFile:
    """A file that was taken out of the project, as it is written down beside its content."""

    path: str
    digest: str
    why: str


def hold(root: int, path: str, files: str) -> HeldFile:
    """Copy a file or symlink to `files` and remove it from the project.

    What can be no one's work (a FIFO, a file of gigabytes) is removed without a copy.
    """
    try:
        digest, data = tree.read_raw(root, path, HELD_BYTES) or (tree.MISSING, b"")
    except OSError:
        digest, data = tree.MISSING, b""
    held = HeldFile(path, digest, why(path))
    os.makedirs(files, mode=0o700, exist_ok=True)
    target = os.path.join(files, key_of(path))
    write_private(target, data)
    write_private(target + ".json", json.dumps(asdict(held)).encode())
    with tree.parent(root, path) as (above, name):
        os.unlink(name, dir_fd=above)
    return held


def held_files(files: str) -> list[HeldFile]:
    """All that is kept in a directory."""
    try:
        names = sorted(name for name in os.listdir(files) if name.endswith(".json"))
    except FileNotFoundError:
        return []
    found: list[HeldFile] = []
    for name in names:
        path = os.path.join(files, name)
        with (
            contextlib.suppress(OSError, ValueError, TypeError),
            open(path, encoding="utf-8") as file,
        ):
            found.append(HeldFile(**json.load(file)))
    return found


def held_content(files: str, held: HeldFile) -> bytes:
    """The content of a kept file, or the text of a symlink."""
    with open(os.path.join(files, key_of(held.path)), "rb") as file:
        return file.read()


def put_held(files: str, held: HeldFile, root: int) -> None:
    """Write a kept file to its place."""
    content = held_content(files, held)
    if held.digest.startswith("l:"):
        tree.put_link(root, held.path, os.fsdecode(content))
    else:
        is_program = held.digest.startswith("x:")
        tree.put(root, held.path, content, is_program=is_program, is_public=True)


def forget_held(files: str, held: HeldFile) -> None:
    """Remove a kept file."""
    for end in ("", ".json"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(files, key_of(held.path)) + end)


def set_mode(root: int, path: str, mode: int) -> None:
    """Give a regular file the permissions it had."""
    with tree.parent(root, path) as (above, name):
        fd = beneath.open_regular(above, name)
        try:
            os.fchmod(fd, mode)
        finally:
            os.close(fd)


def write_private(path: str, data: bytes) -> None:
    """Write a file of ours, whole or not at all."""
    temporary = f"{path}.{os.getpid()}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(data)
    os.replace(temporary, path)
