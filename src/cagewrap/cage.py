"""From settings to a cage: its name, and everything that is fixed when it is made. Pure."""

from __future__ import annotations

import json

from cagewrap import __version__
from cagewrap.digests import sha256
from cagewrap.model import CageSpec, Mount, Settings

_SLUG_LETTERS = 24
"""A socket's path has at most 107 bytes (sockaddr_un), and a host name 63."""


def cage_name(project: str, session: str, salt: str = "") -> str:
    """`cagewrap-<slug>-<8 hex>`: the slug for people, the hex of project, session and salt.

    salt: not empty for a cage that may not be found again by its key (`--rm`), or whose key was
    taken along by a renamed session.
    """
    key = f"{project}\0{session}\0{salt}".encode(errors="surrogateescape")
    return f"cagewrap-{_slug(session or project.rpartition('/')[2])}-{_hex8(key)}"


def build_spec(
    name: str,
    settings: Settings,
    project: str,
    home: str,
    mounts: tuple[Mount, ...],
    state_dir: str,
) -> CageSpec:
    """Everything that is fixed when the container is made.

    home: the owner's HOME path. state_dir: where the session is kept; becomes a label, so that
    two state directories (another XDG_STATE_HOME) do not clean up each other's containers.
    """
    spec = CageSpec(
        name=name,
        project=project,
        session=settings.session,
        image=settings.image,
        runtime=settings.runtime,
        identity=settings.identity,
        network=settings.network,
        mounts=mounts,
        limits=settings.limits,
        devices=settings.devices,
        podman_args=settings.podman_args,
        home=home,
    )
    return with_labels(spec, state_dir)


def with_labels(spec: CageSpec, state_dir: str) -> CageSpec:
    """The same cage with the labels podman shows."""
    labels = (
        ("cagewrap.state", state_dir),
        ("cagewrap.name", spec.name),
        ("cagewrap.project", spec.project),
        ("cagewrap.session", spec.session),
        ("cagewrap.config", config_hash(spec)),
        ("cagewrap.version", __version__),
    )
    return spec._replace(labels=labels)


def config_hash(spec: CageSpec) -> str:
    """16 hex digits over all that a change of would need a new container for."""
    fixed = spec._asdict() | {
        "mounts": [mount._asdict() for mount in spec.mounts],
        "limits": spec.limits._asdict(),
    }
    for name in ("name", "session", "labels"):
        del fixed[name]
    text = json.dumps(fixed, sort_keys=True, default=lambda value: value.value)
    return sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]


def _hex8(key: bytes) -> str:
    return sha256(key).hexdigest()[:8]


def _slug(text: str) -> str:
    letters = "".join(c if c.isascii() and c.isalnum() else "-" for c in text.lower())
    words = [word for word in letters.split("-") if word]
    return "-".join(words)[:_SLUG_LETTERS].strip("-") or "cage"
