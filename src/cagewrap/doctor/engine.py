"""What podman itself answers: `podman info`, its storage, the image, and real containers."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from cagewrap.doctor.host import Host, existing_parent, file_system_of
from cagewrap.doctor.result import CheckResult, failed, passed, raised, warned
from cagewrap.errors import (
    CagewrapError,
    ImageMissingError,
    StorageError,
    UserNamespaceError,
)
from cagewrap.model import DEFAULT_IMAGE
from cagewrap.runtimes.failure_rules.machine import DELEGATE
from cagewrap.runtimes.failures import explain_failure, explain_warning, image_fix
from cagewrap.runtimes.init import find_init
from cagewrap.runtimes.podman import INIT_TARGET
from cagewrap.runtimes.subids import WANTED_COUNT

_INFO_S = 30.0
_PROBE_S = 60.0
_MIN_BYTES, _LOW_BYTES = 64 << 20, 2 << 30
_MIN_FILES, _LOW_FILES = 1000, 50_000
_NETWORK_FILE_SYSTEMS = ("nfs", "nfs4", "cifs", "9p", "fuse.sshfs", "ceph", "lustre")
_LIMITING = ("cpu", "memory", "pids")


@dataclass(frozen=True, slots=True)
class Engine:
    """The part of `podman info` that the checks look at."""

    driver: str
    graph_root: str
    run_root: str
    is_native: bool
    controllers: tuple[str, ...]
    mapped_ids: int


def parse_info(text: bytes) -> Engine:
    """Read `podman info --format json`. Raises ValueError when it is not that."""
    document = json.loads(text)
    try:
        host, store = document["host"], document["store"]
        status = store.get("graphStatus") or {}
        maps = (host.get("idMappings") or {}).get("uidmap") or []
        return Engine(
            driver=store["graphDriverName"],
            graph_root=store["graphRoot"],
            run_root=store["runRoot"],
            is_native=status.get("Native Overlay Diff") == "true",
            controllers=tuple(host.get("cgroupControllers") or ()),
            mapped_ids=sum(entry["size"] for entry in maps),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no {error} in podman info") from error


def check_engine(host: Host) -> tuple[CheckResult, Engine | None]:
    """podman answers, which needs the user namespace, the runtime directory and the storage."""
    wanted = "`podman info` answers"
    argv = ("podman", "info", "--format", "json")
    outcome = host.run(*argv, timeout_s=_INFO_S)
    if outcome.returncode:
        error = explain_failure(argv, outcome.returncode, outcome.stderr)
        return raised("podman-info", error, wanted), None
    try:
        engine = parse_info(outcome.stdout)
    except ValueError as error:
        unknown = CagewrapError(f"podman info cannot be read: {error}", "podman info")
        return raised("podman-info", unknown, wanted), None
    if engine.mapped_ids <= 1:
        found = "podman maps only one id: it was first used before /etc/subuid had a range"
        fix = "podman system migrate"
        return failed("podman-info", UserNamespaceError, found, wanted, fix), engine
    if engine.mapped_ids < WANTED_COUNT:
        found = f"podman maps only {engine.mapped_ids} ids"
        return warned("podman-info", found, wanted, "podman system migrate"), engine
    return passed("podman-info", f"{engine.mapped_ids} ids mapped", wanted), engine


def check_run_root(host: Host, engine: Engine) -> CheckResult:
    """podman's own idea of the runtime directory is ours: two differing ones break containers."""
    wanted = "podman's runroot lies below XDG_RUNTIME_DIR"
    ours = host.env.get("XDG_RUNTIME_DIR") or f"/run/user/{host.uid}"
    if os.path.realpath(engine.run_root).startswith(os.path.realpath(ours) + "/"):
        return passed("runroot", engine.run_root, wanted)
    found = f"{engine.run_root} is not below {ours}: podman was used with another XDG_RUNTIME_DIR"
    fix = f"export XDG_RUNTIME_DIR={os.path.dirname(engine.run_root)}"
    return warned("runroot", found, wanted, fix)


def check_controllers(engine: Engine) -> CheckResult:
    """The controllers that --memory, --cpus and --pids need; crun ignores limits without them."""
    wanted = "the controllers " + ", ".join(_LIMITING)
    missing = [name for name in _LIMITING if name not in engine.controllers]
    if missing:
        found = f"not delegated: {', '.join(missing)}; limits of those have no effect"
        return warned("controllers", found, wanted, DELEGATE)
    return passed("controllers", ", ".join(engine.controllers), wanted)


def check_storage(host: Host, engine: Engine) -> CheckResult:
    """Layers are stacked by the kernel, on a local disk."""
    wanted = "overlay by the kernel, on a local disk"
    kind = file_system_of(host, os.path.realpath(existing_parent(engine.graph_root))).kind
    found = f"{engine.driver} in {engine.graph_root} ({kind or 'unknown file system'})"
    local = "set graphroot to a local disk in ~/.config/containers/storage.conf"
    if kind in _NETWORK_FILE_SYSTEMS:
        return warned("storage", f"{found}: slow, and owners may get lost", wanted, local)
    if engine.driver == "vfs":
        found += ": each container copies its whole image"
        fix = (
            "printf '[storage]\\ndriver = \"overlay\"\\n' > ~/.config/containers/storage.conf && "
            "podman system reset   # deletes all images and containers of this user"
        )
        return warned("storage", found, wanted, fix)
    if engine.driver == "overlay" and not engine.is_native:
        found += ": stacked by fuse-overlayfs, several times slower"
        return warned("storage", found, wanted, local)
    return passed("storage", found, wanted)


def check_space(engine: Engine) -> CheckResult:
    """Room for layers: bytes and inodes."""
    wanted = "2 GB and 50000 files free where podman's storage is"
    place = existing_parent(engine.graph_root)
    info = os.statvfs(place)
    free, files = info.f_bavail * info.f_frsize, info.f_favail if info.f_files else _LOW_FILES
    found = f"{free / 1e9:.1f} GB free in {place}"
    if info.f_files:
        found += f", {files} files"
    fix = "cagewrap gc && podman image prune --force"
    if free < _MIN_BYTES or files < _MIN_FILES:
        return failed("space", StorageError, found, wanted, fix)
    if free < _LOW_BYTES or files < _LOW_FILES:
        return warned("space", found, wanted, fix)
    return passed("space", found, wanted)


def check_image(host: Host, image: str) -> CheckResult:
    """The image of this directory's settings is on the machine, or cagewrap makes it."""
    argv = ("podman", "image", "exists", image)
    outcome = host.run(*argv, timeout_s=_INFO_S)
    if outcome.returncode == 1:
        found = f"{image} is not on this machine"
        if image == DEFAULT_IMAGE:
            found += " yet: the first command makes it, which takes a minute or two"
            return warned("image", found, "the image", image_fix(image))
        return failed("image", ImageMissingError, found, "the image", image_fix(image))
    if outcome.returncode:
        error = explain_failure(argv, outcome.returncode, outcome.stderr, image=image)
        return raised("image", error, "the image")
    return passed("image", image, "the image")


def check_container(host: Host, image: str, runtime: str, *, network: bool) -> CheckResult:
    """A container really starts, with or without a network; it needs nothing of the image."""
    check = "probe-network" if network else "probe"
    wanted = "a container starts" + (" with a network" if network else "")
    argv = probe_args(image, runtime, find_init(), network=network)
    outcome = host.run(*argv, timeout_s=_PROBE_S)
    if outcome.returncode:
        error = explain_failure(argv, outcome.returncode, outcome.stderr, image=image)
        return raised(check, error, wanted)
    warning = explain_warning(outcome.stderr)
    if warning is not None:
        return raised(check, warning, wanted)
    return passed(check, "started and ended", wanted)


def probe_args(image: str, runtime: str, init: str, *, network: bool) -> tuple[str, ...]:
    """A container whose only process is catatonit saying its version."""
    return (
        "podman", "--runtime", runtime, "run", "--rm", "--pull=never",
        "--log-driver", "none",
        "--security-opt", "label=disable",
        *(() if network else ("--network", "none")),
        "--mount", f"type=bind,source={init},target={INIT_TARGET},ro",
        "--entrypoint", f'["{INIT_TARGET}","-V"]',
        image,
    )  # fmt: skip
