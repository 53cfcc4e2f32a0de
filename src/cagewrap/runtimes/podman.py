"""podman's command lines. Pure: values in, argv out."""

from __future__ import annotations

from cagewrap.errors import UnsupportedError
from cagewrap.model import CageSpec, Identity, NetworkMode, Owner
from cagewrap.mountargs import mount_args
from cagewrap.runtimes.oci import runtime

INIT_TARGET = "/dev/cagewrap-init"
"""Where the host's catatonit appears inside. /dev is a tmpfs of the container's own, so nothing
is left in the image's layer and a read-only image works too."""

STOP_TIMEOUT_S = 2
"""catatonit -P ends at once on TERM; the rest of a container may take this long."""


_OURS = (
    "--cgroups", "--cidfile", "--detach", "--entrypoint", "--init", "--name", "--pid",
    "--pidfile", "--privileged", "--replace", "--restart", "--rm", "--runtime", "--user",
    "--userns", "--workdir", "-d", "-u", "-w",
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
        "--stop-timeout", str(STOP_TIMEOUT_S),
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


def start_args(name: str) -> tuple[str, ...]:
    """Start a stopped container; no-op on a running one."""
    return ("podman", "start", name)


def pid_args(name: str) -> tuple[str, ...]:
    """Prints the host pid of a container's init, 0 when it does not run."""
    return ("podman", "inspect", "--type", "container", "--format", "{{.State.Pid}}", name)


def stop_args(name: str) -> tuple[str, ...]:
    """Stop a container and keep its layer."""
    return ("podman", "stop", "--time", str(STOP_TIMEOUT_S), name)


def remove_args(name: str) -> tuple[str, ...]:
    """Remove a container, running or not, with its anonymous volumes."""
    return ("podman", "rm", "--force", "--volumes", "--time", "0", name)


def list_args(state_dir: str) -> tuple[str, ...]:
    """All containers of the sessions kept below `state_dir`, as JSON."""
    label = f"label=cagewrap.state={state_dir}"
    return ("podman", "ps", "--all", "--format", "json", "--filter", label)


def commit_args(name: str, image: str) -> tuple[str, ...]:
    """Make an image of a stopped container's layer. Mounts (HOME, project) are not in it.

    The labels that say what is a cage are blanked: a container of the owner's made from this image
    is none.
    """
    return (
        "podman", "commit", "--quiet",
        "--change", "LABEL cagewrap.name=",
        "--change", "LABEL cagewrap.state=",
        name, image,
    )  # fmt: skip


def remove_image_args(image: str) -> tuple[str, ...]:
    """Remove an image that nothing else uses."""
    return ("podman", "rmi", image)


def says_wedged(err: str) -> bool:
    """Whether podman finds neither its pause process nor a running container to take its user
    namespace from, though it noted some: they were killed. Then it does nothing any more."""
    return "invalid internal status, try resetting the pause process" in err


def migrate_args() -> tuple[str, ...]:
    """Make podman forget its pause process; stops every container, so only when none runs."""
    return ("podman", "system", "migrate")


def says_missing(stderr: str) -> bool:
    """Whether podman said that there is no such container."""
    text = stderr.lower()
    return "no container with name or id" in text or "no such container" in text


def says_improper_state(stderr: str) -> bool:
    """Whether podman said that a container can be neither started nor stopped as it is."""
    return "container state improper" in stderr


def _hostname(name: str) -> str:
    """A host name of at most 63 letters (RFC 1035 label)."""
    return name[:63].rstrip("-")
