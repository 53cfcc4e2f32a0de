"""The files of git-lfs. The cage has a store of its own, with a symlink for each of the host's
files, which it sees read-only; what it adds is brought to the host if it is what it is named."""

from __future__ import annotations

import contextlib
import os
import re
from typing import IO

from cagewrap import beneath
from cagewrap.gitsync.objects import OBJECT_BYTES, UnsoundError
from cagewrap.gitsync.side import Side

STORE = "lfs/objects"
LENT = "cagewrap/lfs/objects"
"""Where in a private copy the host's are seen."""
FILES_LIMIT = 100_000
_UP = "../" * 4
_FAN = re.compile(r"[0-9a-f]{2}")
_OID = re.compile(r"[0-9a-f]{64}")
_CHUNK = 1 << 20


def lend_large(host: Side, cage: Side) -> int:
    """Make the symlinks that the cage lacks; how many. Raises OSError."""
    if cage.stamp(LENT) is None:
        return 0  # it is not mounted
    missing = _files(host).difference(_files(cage, with_links=True))
    for path in missing:
        with (
            cage.parent(f"{STORE}/{path}", make=True) as (fd, name),
            contextlib.suppress(FileExistsError),
        ):
            os.symlink(f"{_UP}{LENT}/{path}", name, dir_fd=fd)
    return len(missing)


def bring_large(cage: Side, host: Side) -> int:
    """Copy the cage's own files to the host; how many. Raises OSError."""
    count = 0
    for path in _files(cage):
        whole = f"{STORE}/{path}"
        if host.stamp(whole) is None:
            with (
                contextlib.suppress(UnsoundError),
                cage.parent(whole) as (source, name),
                host.parent(whole, make=True) as (target, _),
            ):
                _bring_one(source, target, name, host)
                count += 1
    return count


def _bring_one(source: int, target: int, name: str, host: Side) -> None:
    try:
        fd = beneath.open_regular(source, name)
    except OSError as error:
        raise UnsoundError from error
    temporary = beneath.temporary_name(host.mark)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(fd, "rb", buffering=0) as file:
        out = os.open(temporary, flags, host.file_mode, dir_fd=target)
        try:
            with open(out, "wb") as copy:
                digest = _copy(file, copy)
            if digest != name:
                raise UnsoundError  # noqa: TRY301 - what was copied is removed
            os.rename(temporary, name, src_dir_fd=target, dst_dir_fd=target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=target)
            raise


def _copy(file: IO[bytes], copy: IO[bytes]) -> str:
    """Copy all of a file; its digest."""
    import hashlib  # its implementation is the fast one

    digest, size = hashlib.sha256(), 0
    while chunk := file.read(_CHUNK):
        size += len(chunk)
        if size > OBJECT_BYTES:
            raise UnsoundError
        digest.update(chunk)
        copy.write(chunk)
    return digest.hexdigest()


def _files(side: Side, *, with_links: bool = False) -> set[str]:
    """Paths in the store, which is `aa/bb/aabb…`, of regular files. with_links: of all else too."""
    found: set[str] = set()
    for outer in _directories(side, STORE):
        for inner in _directories(side, f"{STORE}/{outer}"):
            with contextlib.suppress(OSError):
                fd = beneath.open_dir(side.fd, [*STORE.split("/"), outer, inner])
                try:
                    with os.scandir(fd) as listed:
                        found |= {
                            f"{outer}/{inner}/{one.name}"
                            for one in listed
                            if one.name.startswith(outer + inner)
                            and _OID.fullmatch(one.name)
                            and (with_links or one.is_file(follow_symlinks=False))
                        }
                finally:
                    os.close(fd)
            if len(found) > FILES_LIMIT:
                return found
    return found


def _directories(side: Side, path: str) -> list[str]:
    try:
        fd = beneath.open_dir(side.fd, path.split("/"))
    except OSError:
        return []
    try:
        return sorted(name for name in os.listdir(fd) if _FAN.fullmatch(name))
    finally:
        os.close(fd)
