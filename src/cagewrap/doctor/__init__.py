"""`cagewrap doctor`: everything that can keep a cage from starting, checked at once.

Cheap looks at the machine come first, then one `podman info`, then real containers. Each check
gives one frozen result with its own fix, and the exit code that a start would end with.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from cagewrap.disk import Usage
from cagewrap.doctor import directories, engine, images, kernel, namespaces, programs
from cagewrap.doctor.host import Capture, Host
from cagewrap.doctor.result import CheckResult, exit_code_of
from cagewrap.errors import CagewrapError
from cagewrap.image.settings import Staleness
from cagewrap.runtimes.init import find_init

__all__ = ("Capture", "CheckResult", "Host", "Wish", "examine", "exit_code_of", "find_init")


@dataclass(frozen=True, slots=True)
class Wish:
    """What cages are to be made of. Without `network` nothing is asked of the network helpers.

    measure: finds out how much disk all takes. stale: what is known of the image's recipe.
    """

    image: str
    runtime: str = "crun"
    network: bool = True
    measure: Callable[[], Usage] | None = None
    stale: Staleness | None = None


def examine(host: Host, wish: Wish, *, probe: bool = True) -> tuple[CheckResult, ...]:
    """Run every check that makes sense on this machine, in the order a start would fail in.

    Without `probe` no container is started.
    """
    runtime = wish.runtime
    places = (
        directories.check_cwd(host),
        namespaces.check_user(host),
        directories.check_home(host),
        directories.check_runtime_dir(host),
    )
    podman, version = programs.check_podman(host)
    results = [
        *places,
        podman,
        programs.check_program(host, "runtime", runtime, f"{runtime}, which starts containers"),
        programs.check_init(),
        namespaces.check_subids(host),
        namespaces.check_id_maps(host, "newuidmap"),
        namespaces.check_id_maps(host, "newgidmap"),
        namespaces.check_no_new_privileges(host),
        namespaces.check_user_namespaces(host),
        namespaces.check_apparmor(host),
        kernel.check_cgroup_version(host, runtime),
        kernel.check_cgroup_writable(host),
    ]
    if wish.network:
        results.append(kernel.check_tun(host))
    if version and wish.network:
        results.append(programs.check_network_helper(host, version))
    if version:
        results += _ask_podman(host, wish, probe=probe and _is_fit(results))
    return tuple(results)


def _ask_podman(host: Host, wish: Wish, *, probe: bool) -> list[CheckResult]:
    answer, info = engine.check_engine(host)
    results = [answer]
    if info is None:
        return results
    results += [
        engine.check_run_root(host, info),
        engine.check_controllers(info),
        engine.check_storage(host, info),
        engine.check_space(info),
        engine.check_image(host, wish.image),
    ]
    has_image = results[-1].status == "ok"
    if wish.stale is not None:
        results.append(images.check_recipe(wish.stale))
    if wish.measure is not None:
        with suppress(CagewrapError):
            results.append(images.check_disk(wish.measure()))
    if probe and has_image and _is_fit(results):
        networks = (False, True) if wish.network else (False,)
        results += [
            engine.check_container(host, wish.image, wish.runtime, network=network)
            for network in networks
        ]
    return results


def _is_fit(results: list[CheckResult]) -> bool:
    return exit_code_of(tuple(results)) == 0
