"""Where the base comes from: a registry that answers quickly, else Debian packages."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

import pytest

from podman.cages import podman

from .benches import NAME, Bench, image_id, wait_for_line
from .registry import Registry


def base_of(name: str) -> str:
    labels = json.loads(podman("image", "inspect", name).stdout)[0]["Labels"]
    return f"localhost/cagewrap-base:{labels['cagewrap.base']}"


@pytest.fixture
def registry(bench: Bench) -> Iterator[Callable[..., Registry]]:
    """Makes a registry that has the base which was made of packages."""
    made: list[Registry] = []
    directory = bench.root / "saved"
    podman("save", "--format", "oci-dir", "--output", str(directory), base_of(NAME))

    def make(delay_s: float = 0.0) -> Registry:
        made.append(Registry(directory, delay_s))
        file = bench.config / "registries.conf"
        file.write_text(made[-1].settings())
        bench.env["CONTAINERS_REGISTRIES_CONF"] = str(file)  # podman 4 reads no other but HOME's
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_base_from_a_registry(bench: Bench, registry: Callable[..., Registry]) -> None:
    """podman pulls it, no name of the registry's stays, and it is not asked for again."""
    served = registry()
    # Where a base of packages is, the registry is not asked: here is none with these settings.
    bench.settings('base = "auto"\napt_options = ["Acquire::Languages \\"none\\""]')
    for asked in (True, False):
        served.asked.clear()
        with bench.popen("image", "build") as process:
            wait_for_line(bench, "apt-get")
            process.terminate()
            process.communicate(timeout=20)
        assert ("/v2/library/debian/manifests/trixie-slim" in served.asked) is asked
    assert "docker.io" not in podman("images", "--all", "--format", "{{.Repository}}").stdout


def test_a_registry_that_does_not_answer_is_not_waited_for(
    bench: Bench, registry: Callable[..., Registry]
) -> None:
    served = registry(60.0)
    bench.settings('base = "auto"\napt_options = ["Acquire::Retries \\"1\\""]')
    began = time.monotonic()
    with bench.popen("image", "build") as process:
        wait_for_line(bench, "making a base of Debian")
        assert time.monotonic() - began < 10
        process.terminate()
        process.communicate(timeout=20)
    assert served.asked
    log = (bench.state / "cagewrap/image.log").read_text()
    assert "no registry answers within 3 s" in log


def test_an_image_of_the_machine_as_base(bench: Bench, workbench: str) -> None:
    bench.settings('base = "localhost/nowhere:1"')
    done = bench.run("image", "build")
    assert done.code == 118, done
    assert b"localhost/nowhere:1" in done.err
    assert image_id() == workbench
