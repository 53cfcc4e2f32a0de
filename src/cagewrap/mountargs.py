"""podman's arguments for mounts."""

from __future__ import annotations

from cagewrap.model import Mount

_READONLY = ",ro=true"
_BIND = 'type=bind,"source='


def mount_args(mounts: tuple[Mount, ...]) -> tuple[str, ...]:
    """podman's `--mount`, twice per mount; every path in CSV quotes, so that any path works.

    A tmpfs never copies up what lies below it, which is podman's default and would show exactly
    what a hidden directory hides.
    """
    return tuple(word for mount in mounts for word in ("--mount", _mount_value(mount)))


def _mount_value(mount: Mount) -> str:
    mode = _READONLY if mount.readonly else ""
    target = _csv(f"target={mount.target}")
    if mount.kind == "tmpfs":
        permissions = "0555" if mount.readonly else "0755"
        return f"type=tmpfs,{target},notmpcopyup,tmpfs-mode={permissions}{mode}"
    return f"type=bind,{_csv(f'source={mount.source}')},{target}{mode}"


def _csv(field: str) -> str:
    """One field in quotes, quotes doubled."""
    return '"' + field.replace('"', '""') + '"'


def writable_sources(args: tuple[str, ...]) -> tuple[str, ...]:
    """What of the host the container of this command line can write to: `mount_args`, read back."""
    values = (args[at + 1] for at, word in enumerate(args[:-1]) if word == "--mount")
    found = []
    for value in values:
        if value.startswith(_BIND) and not value.endswith(_READONLY):
            source = value[len(_BIND) :].partition('","target=')[0]
            found.append(source.replace('""', '"'))
    return tuple(found)
