"""podman's command line that makes a cage's container. Pure: values in, argv out."""

from __future__ import annotations

from cagewrap.errors import UnsupportedError
from cagewrap.model import CageSpec, Identity, NetworkMode, Owner
from cagewrap.mountargs import mount_args
from cagewrap.runtimes.oci import runtime
from cagewrap.runtimes.podman import INIT_TARGET, STOP_TIMEOUT_S

_OURS = (
    "--cgroups", "--cidfile", "--detach", "--entrypoint", "--init", "--name", "--pid",
    "--pidfile", "--privileged", "--replace", "--restart", "--rm", "--runtime", "--stop-signal",
    "--user", "--userns", "--workdir", "-d", "-u", "-w",
)  # fmt: skip
"""Options of podman that the keeper relies on, or that would take a cage's walls away."""


def check_args(words: tuple[str, ...]) -> None:
    """Raise UnsupportedError for a `--podman-arg` that a cage cannot be made with."""
    for word in words:
        if word.partition("=")[0] in _OURS:
            raise UnsupportedError(
                f"--podman-arg {word} is not possible: cagewrap decides that itself, and what "
                "keeps a cage closed depends on it.",
                "leave it out of --podman-arg and podman_arg; see --user, --rm and --runtime",
            )


def run_args(spec: CageSpec, *, pid_file: str, init: str, owner: Owner) -> tuple[str, ...]:
    """Make and start the container; prints its id.

    pid_file: conmon writes the host pid of the container's init there at every start.
    init: the host's static catatonit.
    """
    check_args(spec.podman_args)
    limits = spec.limits
    keep_groups = owner.groups and runtime(spec.runtime).keeps_groups
    user = "0:0" if spec.identity is Identity.ROOT else f"{owner.uid}:{owner.gid}"
    return (
        "podman", "--runtime", spec.runtime, "run", "--detach", "--pull=never",
        "--name", spec.name,
        "--hostname", _hostname(spec.name),
        "--pidfile", pid_file,
        "--log-driver", "none",
        "--http-proxy=false",
        # A VOLUME of the image may lie over the project; a health check would run unasked.
        "--image-volume=ignore", "--no-healthcheck",
        # Of the image's own STOPSIGNAL the init may know nothing.
        "--stop-signal", "TERM", "--stop-timeout", str(STOP_TIMEOUT_S),
        "--security-opt", "label=disable",
        "--userns", "host" if spec.identity is Identity.ROOT else "keep-id",
        # Said although they are podman's defaults: containers.conf can set weaker ones.
        "--pid", "private", "--ipc", "private", "--uts", "private", "--cgroupns", "private",
        *_network(spec),
        *(("--group-add", "keep-groups") if keep_groups else ()),
        *(("--memory", str(limits.memory_bytes)) if limits.memory_bytes else ()),
        *(("--cpus", f"{limits.cpus:g}") if limits.cpus else ()),
        *(("--pids-limit", str(limits.pids)) if limits.pids else ()),
        *(("--shm-size", str(limits.shm_bytes)) if limits.shm_bytes else ()),
        *(word for device in spec.devices for word in ("--device", device)),
        *(word for name, value in spec.labels for word in ("--label", f"{name}={value}")),
        "--mount", f"type=bind,source={init},target={INIT_TARGET},ro",
        *mount_args(spec.mounts),
        "--workdir", "/",
        "--user", user,
        "--entrypoint", f'["{INIT_TARGET}","-P"]',
        *spec.podman_args,
        spec.image,
    )  # fmt: skip


def _network(spec: CageSpec) -> tuple[str, ...]:
    """The network, unless the owner says it himself: podman takes the option once."""
    if spec.network is NetworkMode.NONE:
        return ("--network", "none")
    own = any(word.startswith(("--network", "--net=")) for word in spec.podman_args)
    return () if own else ("--network", "private")


def _hostname(name: str) -> str:
    """A host name of at most 63 letters (RFC 1035 label)."""
    return name[:63].rstrip("-")
