"""Single files that were taken out of a project: kept in a directory of the session's.

The file itself is moved, because an agent may be writing it at this moment. What is shown, and
accepted, is a copy that no descriptor and no hard link of the agent's leads to.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from typing import NamedTuple

from cagewrap import beneath
from cagewrap.diskspace import is_full
from cagewrap.holding import tree
from cagewrap.holding.directory import key_of
from cagewrap.holding.names import why
from cagewrap.holding.tree import write_private

HELD_BYTES = 4 << 20
"""A larger single file is not kept, nor put back: nobody's settings are that large."""


_LIVE = ".live"


class HeldFile(NamedTuple):
    """A file that was taken out of the project, as it is written down beside its content."""

    path: str
    digest: str
    why: str


def hold(root: int, path: str, files: str, *, is_replaced: bool = False) -> None:
    """Move a file or symlink out of the project, to `files`; with a full disk only out of the way,
    to another name beside it.

    is_replaced: the caller puts another in its place, so that it is never missing.
    """
    try:
        _hold(root, path, files, is_replaced=is_replaced)
    except OSError as error:
        if not is_full(error):
            raise
        tree.put_aside(root, path)


def _hold(root: int, path: str, files: str, *, is_replaced: bool) -> None:
    os.makedirs(files, mode=0o700, exist_ok=True)
    target = os.path.join(files, key_of(path))
    _clear(target + _LIVE)
    with tree.parent(root, path) as (above, name):
        try:
            if not (is_replaced and _link(above, name, target + _LIVE)):
                os.rename(name, target + _LIVE, src_dir_fd=above)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            _copy(above, name, target, path)
            if not is_replaced:
                os.unlink(name, dir_fd=above)
            return
    _refresh(files, path)


def _clear(target: str) -> None:
    """Make room for what is taken out next: no directory is renamed over a file, nor over a full
    one."""
    with contextlib.suppress(OSError):
        _remove(target)
    if os.path.lexists(target):
        os.rename(target, f"{target}{os.urandom(6).hex()}")


def _link(above: int, name: str, target: str) -> bool:
    """Give a file a second name; False where the kernel does not allow that."""
    try:
        os.link(name, target, src_dir_fd=above, follow_symlinks=False)
    except PermissionError:
        return False
    return True


def refresh(files: str, *, is_last: bool = False) -> None:
    """Copy again what an agent has written since. is_last: none has anything open any more."""
    try:
        names = [name for name in os.listdir(files) if name.endswith(_LIVE)]
    except FileNotFoundError:
        return
    for name in names:
        try:
            with open(os.path.join(files, name.removesuffix(_LIVE) + ".json"), "rb") as file:
                _refresh(files, json.load(file)["path"])
        except (OSError, ValueError, KeyError):
            pass
        if is_last:
            _remove(os.path.join(files, name))


def _refresh(files: str, path: str) -> None:
    target = os.path.join(files, key_of(path))
    above = beneath.open_root(files)
    try:
        _copy(above, os.path.basename(target) + _LIVE, target, path)
    finally:
        os.close(above)


def _copy(above: int, name: str, target: str, path: str) -> None:
    """What can be no one's work (a FIFO, a file of gigabytes) is written down without a copy."""
    try:
        digest, data = tree.read_raw(above, name, HELD_BYTES) or (tree.MISSING, b"")
    except OSError:
        digest, data = tree.MISSING, b""
    record = json.dumps(HeldFile(path, digest, why(path))._asdict()).encode()
    with contextlib.suppress(FileNotFoundError), open(target + ".json", "rb") as file:
        if file.read() == record:
            return
    write_private(target, data)
    write_private(target + ".json", record)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        os.unlink(path)


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
    for end in (_LIVE, "", ".json"):
        with contextlib.suppress(FileNotFoundError):
            _remove(os.path.join(files, key_of(held.path)) + end)


def set_mode(root: int, path: str, mode: int) -> None:
    """Give a regular file the permissions it had."""
    with tree.parent(root, path) as (above, name):
        fd = beneath.open_regular(above, name)
        try:
            os.fchmod(fd, mode)
        finally:
            os.close(fd)
