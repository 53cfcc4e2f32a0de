"""What a session installed, as one layer on the image that it was made from.

podman writes an image out as an archive and reads one in. In the archive that it reads in, layers
that its storage has already are only named, so the base image is not copied.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import io
import json
import os
import tarfile
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from cagewrap import layers, proc
from cagewrap.errors import CagewrapError, StorageError
from cagewrap.runtimes.failures import explain_failure
from cagewrap.runtimes.podman import BASE_LABEL, LAYERS_LABEL

_QUICK_S = 60.0
_COPY_S = 900.0
_OCI = "application/vnd.oci.image"
_CONFIG_KEYS = (
    "User", "ExposedPorts", "Env", "Entrypoint", "Cmd", "Volumes", "WorkingDir", "Labels",
    "StopSignal",
)  # fmt: skip
"""What podman tells of an image's configuration that the OCI format has too."""

Run = Callable[..., proc.Outcome]
"""Runs podman: `run(argv, timeout_s=…)`."""


class Base(NamedTuple):
    """The image a session stands on. id: "" when it was removed from podman's list. layers: its
    layers' digests, lowest first. config: as `podman image inspect` has it."""

    id: str
    layers: tuple[str, ...]
    config: Mapping[str, Any]


class Content(NamedTuple):
    """What of the session's layers becomes part of the image; see layers.merge."""

    drop: Collection[str] = ()
    empty: Collection[str] = ()
    rewrite: Mapping[str, layers.Rewrite] = {}


def find_base(run: Run, image: str) -> Base:
    """What lies below what a session has installed, by the image its container was made from.

    That may be one made by an earlier `recreate`, which says so. Raises CagewrapError.
    """
    found = _inspect(run, image)
    labels = _labels(found)
    if LAYERS_LABEL not in labels:
        return Base(found["Id"], tuple(found["RootFS"]["Layers"]), found)
    own = tuple(found["RootFS"]["Layers"][: int(labels[LAYERS_LABEL])])
    with contextlib.suppress(CagewrapError):
        below = _inspect(run, labels.get(BASE_LABEL, ""))
        if tuple(below["RootFS"]["Layers"]) == own:
            return Base(below["Id"], own, below)
    config = {**found["Config"], "Entrypoint": None, "Cmd": None, "User": ""}
    return Base("", own, {**found, "Config": config})


def count_layers(run: Run, image: str) -> int:
    """How many layers an image has. Raises CagewrapError."""
    return len(_inspect(run, image)["RootFS"]["Layers"])


def flatten(run: Run, image: str, base: Base, name: str, labels: Mapping[str, str]) -> None:
    """Give `name` to an image that is as `image`, with one layer on its base. Raises
    CagewrapError."""
    found = _inspect(run, image)
    _make(run, found, base, Content(), name, {**_labels(found), **labels}, found)


def make_image(
    run: Run, image: str, base: Base, content: Content, name: str, labels: Mapping[str, str]
) -> None:
    """Give `name` to an image that runs as the base does, and has the content of `image`. Raises
    CagewrapError.

    labels: beside those of the base, less what cagewrap has put there: they are not true of it.
    """
    found = _labels(base.config).items()
    own = {key: value for key, value in found if not key.startswith(_OURS)}
    _make(run, _inspect(run, image), base, content, name, {**own, **labels}, base.config)


_OURS = "cagewrap."


def _make(
    run: Run,
    found: Mapping[str, Any],
    base: Base,
    content: Content,
    name: str,
    labels: Mapping[str, str],
    config: Mapping[str, Any],
) -> None:
    with _scratch() as scratch:
        saved = os.path.join(scratch, "saved.tar")
        argv = ("podman", "save", "--quiet", "--format", "docker-archive", "--output", saved)
        _check(run((*argv, found["Id"]), timeout_s=_COPY_S))
        layer = os.path.join(scratch, "layer.tar")
        made = os.path.join(scratch, "made.tar")
        try:
            _merge(saved, found["RootFS"]["Layers"][len(base.layers) :], content, layer)
            os.unlink(saved)
            _write_archive(made, layer, name, base.layers, _config(config, labels))
        except (OSError, tarfile.TarError) as error:
            raise StorageError(
                f"The image cannot be put together in {scratch}: {error}.",
                "export TMPDIR=DIR, a directory with more space",
            ) from error
        os.unlink(layer)
        _check(run(("podman", "load", "--quiet", "--input", made), timeout_s=_COPY_S))


def _merge(saved: str, digests: Sequence[str], content: Content, out: str) -> None:
    with contextlib.ExitStack() as stack:
        archive = stack.enter_context(tarfile.open(saved))
        files = []
        for digest in digests:
            file = archive.extractfile(digest.partition(":")[2] + ".tar")
            assert file is not None  # noqa: S101 - podman writes each layer as a file
            files.append(stack.enter_context(file))
        with open(out, "wb") as target:
            layers.merge(
                files, target, drop=content.drop, empty=content.empty, rewrite=content.rewrite
            )


def _config(found: Mapping[str, Any], labels: Mapping[str, str]) -> dict[str, Any]:
    """The configuration of an image in the OCI format."""
    config = {key: found["Config"].get(key) for key in _CONFIG_KEYS}
    config["Labels"] = dict(labels)
    return {
        "created": dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "architecture": found["Architecture"],
        "os": found["Os"],
        "config": {key: value for key, value in config.items() if value},
    }


def _write_archive(
    path: str, layer: str, name: str, below: Sequence[str], config: dict[str, Any]
) -> None:
    """An OCI archive in which only the last layer has its content."""
    size = os.path.getsize(layer)
    with open(layer, "rb") as file:
        digest = "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
    config["rootfs"] = {"type": "layers", "diff_ids": [*below, digest]}
    config["history"] = [{"created_by": "cagewrap"} for _ in (*below, digest)]
    layer_type = f"{_OCI}.layer.v1.tar"
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_OCI}.manifest.v1+json",
        "config": _described(f"{_OCI}.config.v1+json", config),
        "layers": [
            *({"mediaType": layer_type, "digest": one, "size": 0} for one in below),
            {"mediaType": layer_type, "digest": digest, "size": size},
        ],
    }
    described = _described(f"{_OCI}.manifest.v1+json", manifest)
    described["annotations"] = {"org.opencontainers.image.ref.name": name}
    with tarfile.open(path, "w") as archive:
        _add(archive, "oci-layout", {"imageLayoutVersion": "1.0.0"})
        _add(archive, "index.json", {"schemaVersion": 2, "manifests": [described]})
        for value in (config, manifest):
            _add(archive, _blob(_digest(value)), value)
        archive.add(layer, _blob(digest))


def _described(media_type: str, value: Mapping[str, Any]) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": _digest(value), "size": len(_encoded(value))}


def _encoded(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value).encode()


def _digest(value: Mapping[str, Any]) -> str:
    return "sha256:" + hashlib.sha256(_encoded(value)).hexdigest()


def _blob(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


def _add(archive: tarfile.TarFile, name: str, value: Mapping[str, Any]) -> None:
    member = tarfile.TarInfo(name)
    data = _encoded(value)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


@contextmanager
def _scratch() -> Iterator[str]:
    """A directory for a copy of an image; what a killed one has left goes."""
    where = os.environ.get("TMPDIR") or "/var/tmp"  # noqa: S108 - often another disk
    prefix = f"cagewrap-squash-{os.getuid()}-"
    for entry in os.scandir(where):
        pid = entry.name.removeprefix(prefix).partition("-")[0]
        if entry.name.startswith(prefix) and not os.path.exists(f"/proc/{pid}"):
            _remove(entry.path)
    path = tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=where)
    try:
        yield path
    finally:
        _remove(path)


def _remove(directory: str) -> None:
    with contextlib.suppress(OSError):
        for entry in os.scandir(directory):
            os.unlink(entry.path)
        os.rmdir(directory)


def _inspect(run: Run, image: str) -> Mapping[str, Any]:
    done = run(("podman", "image", "inspect", "--", image), timeout_s=_QUICK_S)
    _check(done, image)
    [found] = json.loads(done.stdout)
    assert isinstance(found, dict)  # noqa: S101
    return found


def _labels(found: Mapping[str, Any]) -> dict[str, str]:
    return dict(found["Config"].get("Labels") or {})


def _check(done: proc.Outcome, image: str = "") -> None:
    if done.returncode:
        raise explain_failure(done.argv, done.returncode, done.stderr, image=image)
