"""podman's command lines for a container that is there, and what its texts mean.

Pure: values in, argv out. Small: the keeper imports it before anything else.
"""

from __future__ import annotations

from collections.abc import Mapping

INIT_TARGET = "/dev/cagewrap-init"
"""Where the host's catatonit appears inside. /dev is a tmpfs of the container's own, so nothing
is left in the image's layer and a read-only image works too."""

STOP_TIMEOUT_S = 2
"""catatonit -P ends at once on TERM; the rest of a container may take this long."""


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


BASE_LABEL = "cagewrap.session-base"
"""On an image made of a session's layer: the id of the image below it."""
LAYERS_LABEL = "cagewrap.session-base-layers"
"""How many of its layers are that image's."""


def image_args(name: str) -> tuple[str, ...]:
    """Prints the id of the image that a container was made from."""
    return ("podman", "container", "inspect", "--format", "{{.Image}}", name)


def image_id_args(image: str) -> tuple[str, ...]:
    """Prints the id of an image."""
    return ("podman", "image", "inspect", "--format", "{{.Id}}", image)


def commit_args(name: str, image: str, labels: Mapping[str, str]) -> tuple[str, ...]:
    """Make an image of a stopped container's layer. Mounts (HOME, project) are not in it.

    The labels that say what is a cage are blanked: a container of the owner's made from this image
    is none.
    """
    return (
        "podman", "commit", "--quiet",
        "--change", "LABEL cagewrap.name=",
        "--change", "LABEL cagewrap.state=",
        *(word for key, value in labels.items() for word in ("--change", f"LABEL {key}={value}")),
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


def forget_args(runtime: str, state_dir: str, container_id: str) -> tuple[str, ...]:
    """Let a runtime forget a container that it has made and podman knows nothing of, since it was
    killed in between: `podman start` fails for ever then."""
    remove = (runtime, "--root", state_dir, "delete", "--force", container_id)
    return ("podman", "unshare", *remove)


def says_begun(stderr: str) -> bool:
    """Whether the runtime said that it has such a container already (crun, runc)."""
    text = stderr.lower()
    return "container" in text and "already exists" in text


def says_missing(stderr: str) -> bool:
    """Whether podman said that there is no such container."""
    text = stderr.lower()
    return "no container with name or id" in text or "no such container" in text


def says_improper_state(stderr: str) -> bool:
    """Whether podman said that a container can be neither started nor stopped as it is."""
    return "container state improper" in stderr
