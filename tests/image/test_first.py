"""A machine without an image, a registry and a network: the first message builds the workbench."""

from __future__ import annotations

import json
import time

import pytest

from podman.cages import podman

from .benches import FIGURES, NAME, Bench, image_id
from .conftest import First


def test_each_message_gets_its_agents_output_and_nothing_else(first: First, workbench: str) -> None:
    assert [one.out for one in first.done] == [b"0\n", b"1\n", b"2\n"]


def test_a_harness_is_told_in_json_and_one_build_served_all(first: First, workbench: str) -> None:
    for one in first.done:
        events = [json.loads(line) for line in one.err.splitlines()]
        assert {event["cagewrap"] for event in events} == {"image"}
        assert [event["step"] for event in events if event["event"] == "step"][-1] == 2
        made = events[-1]
        assert (made["event"], made["image"]) == ("made", NAME)
        assert workbench.startswith(made["id"])
    assert first.killed_code == -9
    FIGURES.add("image build, from nothing to its name", f"{made['elapsed_s']} s")
    FIGURES.add("size of the image", f"{made['size_bytes'] / 1e6:.0f} MB")


def test_nothing_is_left_of_the_build(first: First, workbench: str) -> None:
    assert first.bench.left() == []
    names = set(podman("images", "--all", "--format", "{{.Repository}}").stdout.split())
    assert {name.rpartition("/")[2] for name in names} == {
        "cagewrap", "cagewrap-base", "cagewrap-test",
    }  # fmt: skip


TOOLS = """
apt-get bash bwrap cc curl fd file g++ gcc git jq less make node npm npx patch pip pkg-config ps
python python3 rg socat ssh tar unzip uv uvx xz zstd
"""


def test_the_workbench_has_what_agents_need(bench: Bench) -> None:
    script = "for tool in $*; do command -v $tool >/dev/null || echo no $tool; done"
    found = bench.cage("bash", "-c", script, "bash", *TOOLS.split()).split("\n")
    assert found in ([""], ["no pkg-config", ""])
    assert bench.cage(
        "sh", "-c", "locale charmap; node -p process.version[1]+process.version[2]"
    ) == ("UTF-8\n24\n")
    assert bench.cage("sh", "-c", "command -v claude || echo none") == "none\n"
    # A virtual environment, a C program, a page of npm's own: no network needed.
    bench.cage("sh", "-ec", "python3 -m venv /tmp/v; /tmp/v/bin/pip --version; npm --version")
    bench.cage(
        "sh", "-ec", "echo 'int main(){return 0;}' >/tmp/a.c; gcc -o /tmp/a /tmp/a.c; /tmp/a"
    )
    # An agent's own sandbox.
    bench.cage("bwrap", "--ro-bind", "/", "/", "--unshare-user", "--dev", "/dev", "true")


def test_first_message_after_a_build(bench: Bench) -> None:
    times = []
    for number in range(3):
        project = bench.root / f"cold-{number}"
        project.mkdir()
        began = time.monotonic()
        bench.cage("true", cwd=project)
        times.append(time.monotonic() - began)
    FIGURES.add("first message after `image build`", f"{sorted(times)[1]:.2f} s (median of 3)")
    began = time.monotonic()
    bench.cage("true", cwd=project)
    FIGURES.timed("the next message", began)


def test_build_again_uses_what_is_there(bench: Bench, workbench: str) -> None:
    began = time.monotonic()
    document = bench.json("image", "build")
    took = FIGURES.timed("image build when nothing has changed (warm)", began)
    assert took < 10
    assert workbench.startswith(document["image"]["id"])
    assert image_id() == workbench


@pytest.mark.parametrize("verb", ["ls", "show"])
def test_image_is_listed_and_shown(bench: Bench, workbench: str, verb: str) -> None:
    document = bench.json("image", verb)
    shown = document["image"] if verb == "show" else document["images"][0]
    assert shown["name"] == NAME
    assert f"localhost/cagewrap:{shown['recipe']}" in shown["names"]
    assert (shown["is_outdated"], len(shown["recipe"])) == (False, 12)
    assert workbench.startswith(shown["id"])
    assert NAME in bench.good("image", verb)
