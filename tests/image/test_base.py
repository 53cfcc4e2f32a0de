"""Where the base comes from: a registry that answers quickly, else Debian packages."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

import pytest

from podman.cages import podman

from .benches import NAME, Bench, image_id
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
        (bench.config / "containers/registries.conf").write_text(made[-1].settings())
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.timeout(300)
def test_a_base_from_a_registry(bench: Bench, registry: Callable[..., Registry]) -> None:
    """The same recipe on it: podman pulls it once, and no name of the registry's stays."""
    served = registry()
    # Where a base of packages is, the registry is not asked: here is none with these settings.
    settings = 'base = "auto"\napt_options = ["Acquire::Languages \\"none\\""]'
    bench.settings(settings)
    bench.good("image", "build")
    assert "/v2/library/debian/manifests/trixie-slim" in served.asked
    assert (
        "getting docker.io/library/debian:trixie-slim"
        in (bench.state / "cagewrap/image.log").read_text()
    )
    assert (
        bench.cage("sh", "-c", "node --version | head -c 3; rg --version | head -c 7")
        == "v24ripgrep"
    )
    assert "docker.io" not in podman("images", "--all", "--format", "{{.Repository}}").stdout
    # With what the owner adds: neither is asked for again.
    served.asked.clear()
    bench.settings(settings + '\nrun = ["true"]')
    bench.good("image", "build")
    assert served.asked == []


def test_a_registry_that_does_not_answer_is_not_waited_for(
    bench: Bench, registry: Callable[..., Registry]
) -> None:
    served = registry(60.0)
    bench.settings('base = "auto"\napt_options = ["Acquire::Languages \\"none\\""]')
    began = time.monotonic()
    with bench.popen("image", "build") as process:
        log = bench.state / "cagewrap/image.log"
        while "making a base of Debian" not in (log.read_text() if log.exists() else ""):
            assert time.monotonic() - began < 10
            time.sleep(0.1)
        process.terminate()
        process.communicate(timeout=20)
    assert served.asked
    assert "no registry answers within 3 s" in log.read_text()


def test_an_image_of_the_machine_as_base(bench: Bench, workbench: str) -> None:
    bench.settings('base = "localhost/nowhere:1"')
    done = bench.run("image", "build")
    assert done.code == 118, done
    assert b"localhost/nowhere:1" in done.err
    assert image_id() == workbench
