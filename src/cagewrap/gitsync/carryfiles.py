"""Carrying what else a git directory holds: the index, the files of a merge, the host's hooks."""

from __future__ import annotations

import contextlib
import os
import re
import stat

from cagewrap import beneath
from cagewrap.digests import sha256
from cagewrap.gitsync import index as git_index
from cagewrap.gitsync.context import Context, IndexBase, Place, as_list
from cagewrap.gitsync.side import BusyError, Side, Stamp

TEXT_BYTES = 1 << 20
LIST_BYTES = 16 << 20
_OID = rb"(?:[0-9a-f]{64}|[0-9a-f]{40})"
_ONE_FETCHED = _OID + rb"\t(?:not-for-merge)?\t[^\0\n]*+"
# A line can be read in one way only: what an agent writes must not make the search long.
_OIDS = re.compile(rb"(?>" + _OID + rb"\n)*+(?:" + _OID + rb")?")
_FETCHED = re.compile(rb"(?>" + _ONE_FETCHED + rb"\n)*+(?:" + _ONE_FETCHED + rb")?")
_TEXT = re.compile(rb"[^\0]*")
_MODE = re.compile(rb"(?:no-ff)?\n?")

STATE_FILES = {
    "ORIG_HEAD": (_OIDS, TEXT_BYTES), "FETCH_HEAD": (_FETCHED, LIST_BYTES),
    "MERGE_HEAD": (_OIDS, TEXT_BYTES), "MERGE_MODE": (_MODE, TEXT_BYTES),
    "MERGE_MSG": (_TEXT, TEXT_BYTES), "SQUASH_MSG": (_TEXT, TEXT_BYTES),
    "CHERRY_PICK_HEAD": (_OIDS, TEXT_BYTES), "REVERT_HEAD": (_OIDS, TEXT_BYTES),
    "AUTO_MERGE": (_OIDS, TEXT_BYTES), "shallow": (_OIDS, LIST_BYTES),
}  # fmt: skip
"""Files that git reads as ids and texts: what they must look like, and how long they may be."""

_SHALLOW = "shallow"
"""Where history ends. Says so of a commit whose parents are there, and `git gc` deletes these: so
the cage's reaches the host only while that has no history to lose."""

MIRRORED_DIRS = ("hooks", "info")
MIRRORED_FILES = ("config.worktree", "description")
"""What git runs or obeys: the cage gets the host's, the host never the cage's."""
_MIRRORED_LIMIT = 2000


def carry_state_files(place: Place, context: Context) -> None:
    """Carry the small files of merges, fetches and the like."""
    base = place.base.setdefault("files", {})
    for name, (shape, limit) in STATE_FILES.items():
        try:
            _carry_state_file(place, context, base, name, shape, limit)
        except OSError as error:
            context.failed(error)


def _carry_state_file(
    place: Place,
    context: Context,
    base: dict[str, str],
    name: str,
    shape: re.Pattern[bytes],
    limit: int,
) -> None:
    host = place.host.read(name, limit)
    cage = place.cage.read(name, limit)
    was = base.get(name, "")
    if host == cage:
        base[name] = _digest(host)
        return
    if _digest(host) == was:
        if not place.leads or (cage is not None and not shape.fullmatch(cage)):
            return
        if name == _SHALLOW and place.has_history:
            context.state("where history ends (git's `shallow`) differs in the cage: yours stays")
            return
        _put(place.host, name, cage)
        base[name] = _digest(cage)
    else:
        _put(place.cage, name, host)
        base[name] = _digest(host)
    context.has_written = True


def _put(side: Side, name: str, content: bytes | None) -> None:
    if content is None:
        side.remove(name)
    else:
        side.write(name, content)


def _digest(content: bytes | None) -> str:
    return sha256(content).hexdigest() if content is not None else ""


def carry_index(place: Place, context: Context) -> None:
    """Carry what is staged. How fresh an index is does not count, only what it says."""
    base = place.base.get("index", {})
    stamps = (place.host.stamp("index"), place.cage.stamp("index"))
    if base and [as_list(one) for one in stamps] == [base.get("host"), base.get("cage")]:
        return
    try:
        host, host_digest = _digest_of(
            place.host, context, stamps[0], base.get("host"), base.get("host_digest")
        )
    except (OSError, git_index.IndexRefusedError) as error:
        context.state(f"git's index of the host cannot be read, and is not carried: {error}")
        return
    try:
        _, cage_digest = _digest_of(
            place.cage, context, stamps[1], base.get("cage"), base.get("cage_digest")
        )
    except (OSError, git_index.IndexRefusedError) as error:
        base["host_digest"] = host_digest
        _refused(base, stamps, error, context)
        place.base["index"] = base
        return
    found: IndexBase = {
        "host": as_list(stamps[0]),
        "cage": as_list(stamps[1]),
        "host_digest": host_digest,
        "cage_digest": cage_digest,
    }
    is_cages = cage_digest != base.get("cage_digest", "")
    is_hosts = host_digest != base.get("host_digest", "")
    # A copy that was just filled says that its files are the host's owner's.
    is_first = not base and context.inside_ids != context.owner_ids
    try:
        if is_hosts and (host_digest != cage_digest or is_first):
            _index_to_cage(place, context, host, found, stamps[1])
            if base and is_cages and place.leads:
                context.note("both you and the agent staged changes: yours stay")
        elif is_cages and place.leads and host_digest != cage_digest:
            _index_to_host(place, context, found, stamps[0])
    except BusyError:
        context.is_busy = True
        return
    except OSError as error:
        context.state(f"git's index is not carried: {context.failed(error)}")
        return
    place.base["index"] = found


def _digest_of(
    side: Side, context: Context, stamp: Stamp | None, was: list[int] | None, known: str | None
) -> tuple[bytes, str]:
    """An index and its digest; of one that is as it was, the digest alone."""
    if known is not None and as_list(stamp) == was:
        return b"", known
    content = _read_index(side)
    return content, git_index.digest(content, context.oid_bytes)


def _read_index(side: Side) -> bytes:
    return side.read("index", git_index.INDEX_BYTES) or b""


def _refused(
    base: IndexBase,
    stamps: tuple[tuple[int, int, int] | None, ...],
    error: Exception,
    context: Context,
) -> None:
    base["host"], base["cage"] = as_list(stamps[0]), as_list(stamps[1])
    context.state(f"what the agent staged is not carried: its index is refused: {error}")


def _index_to_host(
    place: Place, context: Context, found: IndexBase, was: tuple[int, int, int] | None
) -> None:
    content = b""
    cleaned = git_index.Clean(b"", (), is_all=True)
    cage = _read_index(place.cage)
    if cage:
        host = _read_index(place.host)
        try:
            written_s = was[1] // 10**9 if was else 0
            cleaned = git_index.clean(cage, context.oid_bytes, host, written_s)
        except git_index.IndexRefusedError as error:
            context.state(f"what the agent staged is not carried: {error}")
            return
        content = cleaned.content
        for path in cleaned.left_out:
            context.note(
                f"the agent's new submodule {path.decode(errors='replace')!r} is not in your "
                "index: git would run what its own configuration says"
            )
    failure = place.bring()
    if failure:
        raise failure
    with place.host.locked("index") as lock:
        if place.host.stamp("index") != was:
            raise BusyError
        if content:
            lock.write(content)
        else:
            lock.remove()
    context.has_written = True
    found["host"] = as_list(place.host.stamp("index"))
    if content and cleaned.is_all:
        found["host_digest"] = found["cage_digest"]
    else:
        found["host_digest"] = git_index.digest(content, context.oid_bytes)


def _index_to_cage(
    place: Place,
    context: Context,
    host: bytes,
    found: IndexBase,
    was: tuple[int, int, int] | None,
) -> None:
    if host and context.inside_ids != context.owner_ids:
        host = git_index.with_owner(host, context.oid_bytes, context.owner_ids, context.inside_ids)
    with place.cage.locked("index") as lock:
        if place.cage.stamp("index") != was:
            raise BusyError
        if host:
            lock.write(host)
        else:
            lock.remove()
    context.has_written = True
    found["cage"] = as_list(place.cage.stamp("index"))
    found["cage_digest"] = found["host_digest"]


def carry_mirrored(place: Place, context: Context) -> None:
    """Bring the host's hooks and the like into the cage, where the agent has not changed them."""
    known = place.base.setdefault("mirror", {})
    found = _mirrored(place.host)
    for path in [*known, *(path for path in found if path not in known)]:
        with contextlib.suppress(OSError):
            _mirror(place, context, known, path, is_there=path in found)


def _mirror(
    place: Place, context: Context, known: dict[str, str], path: str, *, is_there: bool
) -> None:
    content = place.host.read(path, LIST_BYTES) if is_there else None
    digest = _digest(content)
    if digest == known.get(path, ""):
        return
    try:
        is_untouched = _digest(place.cage.read(path, LIST_BYTES)) == known.get(path, "")
    except OSError:
        is_untouched = False
    if is_untouched:
        _put(place.cage, path, content)
        if content is not None:
            _make_executable(place, path)
        context.has_written = True
    if content is None:
        known.pop(path, None)
    else:
        known[path] = digest


def _make_executable(place: Place, path: str) -> None:
    with place.host.parent(path) as (fd, name):
        mode = stat.S_IMODE(beneath.stat_at(fd, name).st_mode)
    with place.cage.parent(path) as (fd, name):
        file = beneath.open_regular(fd, name)
        os.fchmod(file, mode & 0o777)
        os.close(file)


def _mirrored(side: Side) -> set[str]:
    """The regular files of the host's that are mirrored."""
    found: set[str] = set()
    for directory in MIRRORED_DIRS:
        try:
            fd = beneath.open_dir(side.fd, [directory])
        except OSError:
            continue
        with os.scandir(fd) as listed:
            found |= {
                f"{directory}/{one.name}" for one in listed if one.is_file(follow_symlinks=False)
            }
        os.close(fd)
    found |= {name for name in MIRRORED_FILES if side.stamp(name) is not None}
    return found if len(found) <= _MIRRORED_LIMIT else set()
