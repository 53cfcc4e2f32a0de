"""Base images: made, replaced and removed; a build that fails or is killed leaves the old image.

mmdebstrap is not on the test hosts, which have no network. A shell script of its name makes a root
file system of one file instead, in the same place; ./check fresh makes a real one.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .cages import CAGEWRAP, IMAGE, Done, all_pids, podman, read_bytes, wait_until

NAME = "localhost/cagewrap-test-made:1"

# The archive's path is the word after the suite.
MMDEBSTRAP = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
id -u >"$TMPDIR/uid"
mkdir "$TMPDIR/tree" && chown 5:5 "$TMPDIR/tree"
%s
tar -C "$TMPDIR" -cf "$3" uid
"""


class Bench:
    """Somebody who makes images: scratch space and a stand-in for mmdebstrap of this test's own."""

    def __init__(self, root: Path) -> None:
        self.scratch = root / "scratch"
        self.scratch.mkdir()
        self.bin = root / "bin"
        self.bin.mkdir()
        self.env = os.environ | {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "TMPDIR": str(self.scratch),
            "XDG_STATE_HOME": str(root / "state"),
        }

    def stand_in(self, step: str = "true") -> None:
        script = self.bin / "mmdebstrap"
        script.write_text(MMDEBSTRAP % step)
        script.chmod(0o755)

    def popen(self, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [CAGEWRAP, "image", *words],
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, *words: str) -> Done:
        with self.popen(*words) as process:
            out, err = process.communicate(timeout=60)
        return Done(process.returncode, out, err)

    def build(self, *words: str) -> None:
        done = self.run("build", "--name", NAME, *words)
        assert done.code == 0, done.err
        assert done.out == b""

    def images(self) -> list[dict[str, Any]]:
        done = self.run("ls", "--json")
        document = json.loads(done.out)
        assert (done.code, done.err, document["ok"]) == (0, b"", True)
        found: list[dict[str, Any]] = document["images"]
        return found

    def left(self) -> list[str]:
        return [path.name for path in self.scratch.iterdir()]


def image_id(name: str = NAME) -> str:
    return podman("image", "inspect", "--format", "{{.Id}}", name).stdout.strip()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    tmp_path.chmod(0o755)
    made = Bench(tmp_path)
    made.stand_in()
    yield made
    podman("rmi", "--force", NAME)
    podman("unshare", "rm", "-rf", str(made.scratch))


def archive(path: Path, content: bytes = b"x") -> Path:
    with tarfile.open(path, "w") as tar:
        member = tarfile.TarInfo("content")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    return path


def test_build_list_remove(bench: Bench) -> None:
    assert bench.images() == []
    bench.build()
    [entry] = bench.images()
    assert entry["name"] == NAME
    assert image_id().startswith(entry["id"])
    assert len(entry["recipe"]) == 12
    config = json.loads(podman("image", "inspect", NAME).stdout)[0]["Config"]
    assert "LANG=C.UTF-8" in config["Env"]
    assert config["Cmd"] == ["bash"]
    assert bench.left() == []
    assert bench.run("rm", NAME) == Done(0, f"removed {NAME}\n".encode(), b"")
    assert image_id() == ""


def test_if_missing_does_nothing_twice(bench: Bench) -> None:
    bench.build("--if-missing")
    first = image_id()
    bench.stand_in("exit 9")
    bench.build("--if-missing")
    assert image_id() == first


def test_a_new_build_takes_the_name_and_the_old_image_goes(bench: Bench) -> None:
    bench.build()
    first = image_id()
    bench.stand_in("echo >>$TMPDIR/uid")
    bench.build()
    assert image_id() not in ("", first)
    assert image_id(first) == ""


def test_a_build_that_fails_leaves_the_old_image(bench: Bench) -> None:
    bench.build()
    first = image_id()
    bench.stand_in('tar -C "$TMPDIR" -cf "$3" uid; exit 9')
    done = bench.run("build", "--name", NAME)
    assert done.code == 118, done
    assert b"mmdebstrap failed" in done.err
    assert image_id() == first
    assert bench.left() == []


def test_a_build_killed_from_outside_leaves_the_old_image(bench: Bench) -> None:
    """podman exits with 0 then, and the archive is there."""
    bench.build()
    first = image_id()
    bench.stand_in('tar -C "$TMPDIR" -cf "$3" uid; touch "$TMPDIR/sleep"; sleep 1000')
    with bench.popen("build", "--name", NAME) as process:
        assert wait_until(lambda: any(bench.scratch.glob("*/sleep")), 10)
        [child] = children(process.pid)
        os.kill(child, signal.SIGTERM)
        process.communicate(timeout=20)
    assert process.returncode == 118
    assert image_id() == first
    assert bench.left() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_interrupted_build_leaves_nothing(bench: Bench, number: int) -> None:
    bench.stand_in('sleep 1000 & echo $! >"$TMPDIR/sleep"; wait')
    with bench.popen("build", "--name", NAME) as process:
        assert wait_until(lambda: any(bench.scratch.glob("*/sleep")), 10)
        began = time.monotonic()
        process.send_signal(number)
        process.communicate(timeout=20)
    assert time.monotonic() - began < 5
    assert process.returncode in (128 + number, -number)
    assert bench.left() == []
    assert not sleepers()
    assert image_id() == ""


def test_killed_build_dies_whole_and_the_next_one_clears_up(bench: Bench) -> None:
    bench.stand_in('sleep 1000 & echo $! >"$TMPDIR/sleep"; wait')
    with bench.popen("build", "--name", NAME) as process:
        assert wait_until(lambda: any(bench.scratch.glob("*/sleep")), 10)
        process.kill()
        process.communicate(timeout=20)
    assert wait_until(lambda: not sleepers(), 5)
    assert len(bench.left()) == 1
    bench.stand_in()
    bench.build()
    assert bench.left() == []


def test_two_builds_take_turns(bench: Bench) -> None:
    """The lock is of the user, whatever the name of the image."""
    mark = bench.scratch / "busy"
    bench.stand_in(f"[ ! -e {mark} ] || exit 9; touch {mark}; sleep 1; rm {mark}")
    with bench.popen("build", "--name", NAME) as one, bench.popen("build", "--name", NAME) as two:
        assert one.communicate(timeout=60)[1]
        assert two.communicate(timeout=60)[1]
    assert (one.returncode, two.returncode) == (0, 0)


def test_build_from_an_archive(bench: Bench, tmp_path: Path) -> None:
    bench.build("--from", str(archive(tmp_path / "root.tar")))
    [entry] = bench.images()
    assert entry["recipe"].startswith("tar-")
    first = image_id()
    (tmp_path / "broken.tar").write_bytes(b"no archive at all" * 100)
    done = bench.run("build", "--name", NAME, "--from", str(tmp_path / "broken.tar"))
    assert done.code == 117, done
    assert image_id() == first


def test_refuses_from_with_a_recipe(bench: Bench, tmp_path: Path) -> None:
    path = archive(tmp_path / "root.tar")
    assert bench.run("build", "--from", str(path), "--include", "vim").code == 110
    assert bench.run("build", "--from", str(tmp_path / "nowhere.tar")).code == 118


def test_refuses_to_build_without_mmdebstrap(bench: Bench) -> None:
    (bench.bin / "mmdebstrap").unlink()
    done = bench.run("build", "--name", NAME)
    assert done.code == 113
    assert b"apt-get install mmdebstrap" in done.err


def test_refuses_to_remove_what_is_used_or_not_there(bench: Bench) -> None:
    done = bench.run("rm", "--json", "localhost/nowhere:1")
    assert done.code == 118
    assert json.loads(done.out)["error"]["id"] == "image"
    bench.build()
    container = podman("create", NAME, "true").stdout.strip()
    try:
        assert bench.run("rm", NAME).code == 120
        first = image_id()
        bench.stand_in("echo >>$TMPDIR/uid")
        bench.build()  # takes the name; the container keeps the old one
        assert image_id() != first
        assert image_id(first) == first
    finally:
        podman("rm", "--force", container)
        podman("rmi", "--force", first)
    assert image_id(IMAGE) != ""


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def sleepers() -> list[int]:
    return [pid for pid in all_pids() if read_bytes(f"/proc/{pid}/cmdline") == b"sleep\0001000\0"]
