"""How much disk sessions and images take."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cagewrap import proc
from cagewrap.errors import CagewrapError
from cagewrap.image.recipe import SESSION_REPOSITORY, base_tag, tag
from cagewrap.image.store import Images, failure
from cagewrap.paths import Paths
from cagewrap.runtimes.podman import list_args
from cagewrap.sessions import Record

_MEASURE_S = 900.0
"""Trees of files are walked, and layers compared."""


@dataclass(frozen=True, slots=True)
class Size:
    """Of one session, in bytes. layer: what was written in its container, outside of HOME and
    the project. kept: what `recreate` kept of earlier ones. home: its private HOME, and its logs
    and copies."""

    layer: int = 0
    kept: int = 0
    home: int = 0

    @property
    def total(self) -> int:
        """All of it goes with `cagewrap rm`."""
        return self.layer + self.kept + self.home


@dataclass(frozen=True, slots=True)
class Usage:
    """Of all sessions by name, and of what they share, in bytes. images: those cagewrap made, each
    with what it adds to the one it stands on; caches: downloads that cages share."""

    sessions: Mapping[str, Size]
    images: int = 0
    superseded: int = 0
    caches: int = 0


def measure(paths: Paths, env: Mapping[str, str], records: Iterable[Record]) -> Usage:
    """Ask podman and walk the directories. Raises CagewrapError."""
    records = tuple(records)
    images = Images({**env, "XDG_RUNTIME_DIR": paths.podman_runtime_dir})
    listed = images.podman(*_with_size(list_args(paths.state_dir))[1:], timeout_s=_MEASURE_S)
    if listed.returncode:
        raise failure(listed)
    layers = parse_layers(listed.stdout)
    sizes = image_sizes(images)
    directories = [paths.cage_dir(record.name) for record in records]
    homes = _walk(images, [*directories, paths.caches_dir])
    superseded = images.superseded()
    return Usage(
        sessions={
            record.name: Size(
                layer=layers.get(record.name, 0),
                kept=_kept(record, sizes),
                home=homes.get(paths.cage_dir(record.name), 0),
            )
            for record in records
        },
        images=_sum_images(images, sizes),
        superseded=sum(entry.size_bytes for entry in superseded),
        caches=homes.get(paths.caches_dir, 0),
    )


def parse_layers(listing: bytes) -> dict[str, int]:
    """Bytes written in each container of `podman ps --size --format json`."""
    return {
        name: int((item.get("Size") or {}).get("rwSize", 0))
        for item in json.loads(listing or b"[]") or ()
        for name in item.get("Names") or ()
    }


def parse_walk(printed: str) -> dict[str, int]:
    """Bytes by path of `du --null`."""
    fields = [line.split("\t", 1) for line in printed.split("\0") if line]
    return {path: int(size) for size, path in fields}


def human(size: int) -> str:
    """`1.2 GB`, in powers of 1000 as podman shows them."""
    if size < 1_000_000:
        return f"{size / 1000:.0f} kB"
    return f"{size / 1e6:.0f} MB" if size < 1_000_000_000 else f"{size / 1e9:.1f} GB"


def image_sizes(images: Images) -> dict[str, int]:
    """The size of every image by each of its names, with what it stands on."""
    listed = images.podman("images", "--format", "json")
    if listed.returncode:
        raise failure(listed)
    found = json.loads(listed.stdout or b"[]") or ()
    return {name: int(item["Size"]) for item in found for name in item.get("Names") or ()}


def _kept(record: Record, sizes: Mapping[str, int]) -> int:
    whole = sizes.get(f"{SESSION_REPOSITORY}:{record.name}", 0)
    return max(whole - sizes.get(record.image, 0), 0) if whole else 0


def _sum_images(images: Images, sizes: Mapping[str, int]) -> int:
    """Each with what it adds: images that stand on each other share their layers."""
    total = 0
    for entry in images.find_all():
        below = [tag(entry.below), base_tag(entry.base)]
        smaller = [sizes[name] for name in below if name in sizes and name not in entry.names]
        total += entry.size_bytes - (max(smaller) if smaller else 0)
    return total


def _with_size(argv: tuple[str, ...]) -> tuple[str, ...]:
    return (*argv, "--size")


def _walk(images: Images, paths: list[str]) -> dict[str, int]:
    """Agents' files may be closed to the owner; root of podman's namespace sees them."""
    argv = ("podman", "unshare", "du", "--summarize", "--null", "--block-size=1", "--", *paths)
    try:
        done = proc.capture(argv, timeout_s=_MEASURE_S, env=images.env)
    except CagewrapError:
        return {}
    return parse_walk(done.stdout.decode(errors="surrogateescape"))
