"""Layers of a container image as archives: several made into one, and parts left out of it.

What a layer deletes of those below it stands in it as empty files, `.wh.NAME`, and `.wh..wh..opq`
in a directory that hides all of its older self (OCI image specification, layer.md).
"""

from __future__ import annotations

import copy
import io
import tarfile
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import IO, NamedTuple

_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
_FILE_BYTES = 1 << 20

Rewrite = Callable[[bytes], bytes]
"""From a small file's content to the content that it is to have."""


class _Entry(NamedTuple):
    """One entry of the result. content: what a hard link becomes when its own file is not there."""

    name: str
    member: tarfile.TarInfo
    layer: tarfile.TarFile
    content: tarfile.TarInfo | None


def merge(
    layers: Iterable[IO[bytes]],
    out: IO[bytes],
    *,
    drop: Collection[str] = (),
    empty: Collection[str] = (),
    rewrite: Mapping[str, Rewrite] | None = None,
) -> int:
    """Write one layer that does what these do, oldest first; how many entries it has.

    drop: paths (without a leading slash) that are left out with all below them, and the
    directories around them with nothing else in them. empty: directories of which all is left out
    but themselves. rewrite: small files by path, and what becomes of their content. The archives
    must be seekable. Raises OSError and tarfile.TarError.
    """
    merged = _Merged()
    for layer in reversed(list(layers)):
        merged.add(tarfile.open(fileobj=layer))  # noqa: SIM115 - read until the end
    entries = _without(merged.entries, drop, empty)
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as target:
        for entry in sorted(entries, key=lambda one: (one.member.islnk(), one.name.split("/"))):
            _write(target, entry, (rewrite or {}).get(entry.name))
    return len(entries)


class _Merged:
    """Entries of layers, added from the newest to the oldest."""

    def __init__(self) -> None:
        self.entries: dict[str, _Entry] = {}
        self._hidden: set[str] = set()  # with all below, in older layers
        self._opaque: set[str] = set()  # all below alone

    def add(self, layer: tarfile.TarFile) -> None:
        members = {_name(member): member for member in layer.getmembers()}
        members.pop("", None)
        taken: dict[str, str] = {}
        hidden: set[str] = set()
        opaque: set[str] = set()
        for name, member in members.items():
            directory, _, base = name.rpartition("/")
            if base == _OPAQUE:
                opaque.add(directory)
                self._add_opaque(directory, member, layer)
            elif base.startswith(_WHITEOUT):
                deleted = f"{directory}/{base[len(_WHITEOUT) :]}".lstrip("/")
                hidden.add(deleted)
                self._add_whiteout(name, deleted, member, layer)
            elif name not in self.entries and not self._is_hidden(name):
                self._take(name, member, layer, members, taken)
                if not member.isdir():
                    hidden.add(name)
        self._hidden |= hidden
        self._opaque |= opaque

    def _is_hidden(self, name: str) -> bool:
        """Whether newer layers hide what older ones have at a path."""
        if name in self._hidden:
            return True
        above = name.rpartition("/")[0]
        while above:
            if above in self._hidden or above in self._opaque:
                return True
            above = above.rpartition("/")[0]
        return False

    def _add_opaque(self, directory: str, member: tarfile.TarInfo, layer: tarfile.TarFile) -> None:
        name = f"{directory}/{_OPAQUE}"
        newer = self.entries.get(directory)
        if name in self.entries or self._is_hidden(name):
            return
        if newer is None or newer.member.isdir():
            self.entries[name] = _Entry(name, member, layer, None)

    def _add_whiteout(
        self, name: str, deleted: str, member: tarfile.TarInfo, layer: tarfile.TarFile
    ) -> None:
        newer = self.entries.get(deleted)
        if newer is None:
            if not self._is_hidden(deleted):
                self.entries[name] = _Entry(name, member, layer, None)
        elif newer.member.isdir():  # made anew since: what the base has in it stays hidden
            self._add_opaque(deleted, member, layer)

    def _take(
        self,
        name: str,
        member: tarfile.TarInfo,
        layer: tarfile.TarFile,
        members: dict[str, tarfile.TarInfo],
        taken: dict[str, str],
    ) -> None:
        """taken: where the content of this layer's hard links is, by the name they link to."""
        content = None
        if member.islnk():
            linked = member.linkname.removeprefix("./").strip("/")
            is_whole = self.entries.get(linked)
            if is_whole is None or is_whole.layer is not layer:
                if linked in taken:
                    member = copy.copy(member)
                    member.linkname = taken[linked]
                else:
                    taken[linked] = name
                    content = members.get(linked)
        self.entries[name] = _Entry(name, member, layer, content)


def _without(
    entries: dict[str, _Entry], drop: Collection[str], empty: Collection[str]
) -> list[_Entry]:
    kept = {
        name: entry
        for name, entry in entries.items()
        if not _lies_in_any(name, drop) and not _lies_below_any(name, empty)
    }
    around = {above for path in drop for above in _above(path)}
    for directory in sorted(around, key=len, reverse=True):
        if directory in kept and not any(name.startswith(directory + "/") for name in kept):
            del kept[directory]
    return _with_whole_links(kept)


def _with_whole_links(kept: dict[str, _Entry]) -> list[_Entry]:
    """A hard link whose own file was left out goes too: it is the same file."""
    return [
        entry
        for entry in kept.values()
        if not entry.member.islnk() or entry.content is not None or _linked(entry) in kept
    ]


def _linked(entry: _Entry) -> str:
    return entry.member.linkname.removeprefix("./").strip("/")


def _write(target: tarfile.TarFile, entry: _Entry, rewrite: Rewrite | None) -> None:
    member = copy.copy(entry.member)
    member.name = entry.name
    if entry.name.rpartition("/")[2].startswith(_WHITEOUT):
        target.addfile(_empty(member))
        return
    if entry.content is not None:  # a hard link becomes the file
        member = copy.copy(entry.content)
        member.name = entry.name
    member.pax_headers = {
        key: value for key, value in member.pax_headers.items() if key.startswith("SCHILY.xattr.")
    }
    if not member.isreg():
        target.addfile(member)
        return
    source = entry.layer.extractfile(entry.content or entry.member)
    assert source is not None  # noqa: S101 - it is a regular file
    if rewrite is not None and member.size <= _FILE_BYTES:
        data = rewrite(source.read())
        member.size = len(data)
        source = io.BytesIO(data)
    target.addfile(member, source)


def _empty(member: tarfile.TarInfo) -> tarfile.TarInfo:
    made = tarfile.TarInfo(member.name)
    made.mode, made.mtime = 0o600, member.mtime
    return made


def _name(member: tarfile.TarInfo) -> str:
    name = member.name.removeprefix("./").strip("/")
    return "" if name == "." else name


def _above(path: str) -> Iterable[str]:
    above = path.rpartition("/")[0]
    while above:
        yield above
        above = above.rpartition("/")[0]


def _lies_in_any(name: str, trees: Collection[str]) -> bool:
    return any(name == tree or name.startswith(tree + "/") for tree in trees)


def _lies_below_any(name: str, trees: Collection[str]) -> bool:
    return any(name.startswith(tree + "/") for tree in trees)
