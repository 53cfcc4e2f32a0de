"""Builds that add, fail, are killed or find no room: the image in use stays, nothing is left."""

from __future__ import annotations

import json
import signal
import stat
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from podman.cages import RUNTIME_DIR, podman, wait_until

from .benches import NAME, PACKAGES, Bench, building, image_id, wait_for_line


def test_packages_and_commands_of_the_owner(bench: Bench, workbench: str) -> None:
    bench.settings('packages = ["tree"]\nrun = ["echo made >/made", "test -n \\"$PIP_NO_INDEX\\""]')
    document = bench.json("image", "build")
    assert image_id() != workbench
    assert podman("image", "exists", document["image"]["names"][0]).returncode == 0
    assert bench.cage("sh", "-c", "cat /made; tree --version | head -c 4") == "made\ntree"
    # How indexes are reached may have a password in it.
    told = podman("history", "--no-trunc", NAME).stdout + podman("inspect", NAME).stdout
    assert str(PACKAGES / "wheels") not in told


def test_containerfile_of_the_owner(bench: Bench) -> None:
    context = bench.root / "own"
    context.mkdir()
    (context / "word").write_text("mine\n")
    (context / "Containerfile").write_text(
        "ARG BASE\nFROM ${BASE}\nCOPY word /word\nENV COLOUR=green\nUSER 1000\n"
    )
    bench.settings(f'run = ["echo first >/first"]\ncontainerfile = "{context}/Containerfile"')
    bench.good("image", "build")
    assert (
        bench.cage("sh", "-c", "cat /first /word; echo $COLOUR; id -u") == "first\nmine\ngreen\n0\n"
    )


def test_a_containerfile_that_an_agent_could_write_is_refused(bench: Bench, workbench: str) -> None:
    bench.cage("sh", "-c", "echo 'FROM scratch' >Containerfile")
    bench.settings(f'containerfile = "{bench.root}/project/Containerfile"')
    done = bench.run("image", "build")
    assert done.code == 111, done
    assert b"an agent can write" in done.err
    assert image_id() == workbench


def test_another_image_for_a_session(bench: Bench) -> None:
    flags = ("--image", "localhost/cagewrap-test:latest", "--session", "other")
    assert bench.cage("sh", "-c", "command -v node || echo none", flags=flags) == "none\n"


def test_a_missing_image_of_another_name_is_not_built(bench: Bench) -> None:
    done = bench.run("--image", "localhost/nowhere:1", "--rm", "--", "true")
    assert done.code == 118
    assert b"localhost/nowhere:1 is not on this machine" in done.err


def test_a_changed_recipe_is_told_and_breaks_nothing(bench: Bench, workbench: str) -> None:
    assert bench.cage("echo", "one") == "one\n"
    assert bench.json("ls")["image"]["is_outdated"] is False
    bench.settings('run = ["true"]')
    done = bench.run("ls")
    assert done.code == 0
    assert f"the recipe of {NAME} has changed: `cagewrap image build`" in done.err.decode()
    document = bench.json("ls")["image"]
    assert (document["is_outdated"], document["name"]) == (True, NAME)
    [check] = [
        one for one in bench.json("doctor", "--no-probe")["checks"] if one["id"] == "image-recipe"
    ]
    assert (check["status"], check["fix"]) == ("warn", "cagewrap image build")
    assert bench.run("--network", "none", "--", "echo", "two").out == b"two\n"
    assert image_id() == workbench
    bench.good("image", "build")
    assert bench.run("ls").err == b""
    # The session goes on in its container until it is made anew.
    assert bench.cage("echo", "three") == "three\n"
    used = podman("ps", "--all", "--no-trunc", "--format", "{{.ImageID}}").stdout.split()
    assert workbench in used


def test_a_step_that_fails_leaves_the_old_image(bench: Bench, workbench: str) -> None:
    bench.settings('run = ["echo oh dear >&2; exit 9"]')
    done = bench.run("image", "build")
    assert done.code == 118
    assert b"oh dear" in done.err
    assert image_id() == workbench
    assert bench.cage("echo", "works") == "works\n"


def test_a_package_that_does_not_exist(bench: Bench, workbench: str) -> None:
    bench.settings('packages = ["no-such-package"]')
    done = bench.run("image", "build")
    assert (done.code, b"there is no package no-such-package" in done.err) == (111, True)
    assert image_id() == workbench


STEPS = {
    "base": ("refresh", "", "installing remaining packages"),
    "workbench": ("build", 'target = "desktop"', "Unpacking git"),
    "additions": ("build", 'run = ["echo slow; sleep 1234"]', "slow"),
}


@pytest.mark.parametrize("step", ["base", "workbench", "additions"])
def test_a_killed_build(bench: Bench, workbench: str, step: str) -> None:
    """All of it dies at once; the old image stays in use; the next build or gc clears up."""
    verb, settings, line = STEPS[step]
    bench.settings(settings)
    with bench.popen("image", verb) as process:
        wait_for_line(bench, line)
        assert building()
        process.kill()
        process.communicate(timeout=20)
    assert wait_until(lambda: not building(), 5), building()
    [secrets] = bench.scratch.glob("*/env")
    assert stat.S_IMODE(secrets.stat().st_mode) == 0o600
    assert image_id() == workbench
    assert bench.cage("echo", "works") == "works\n"
    bench.good("gc")
    assert bench.left() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_an_interrupted_build_leaves_nothing(bench: Bench, workbench: str, number: int) -> None:
    bench.settings('run = ["echo slow; sleep 1234"]')
    with bench.popen("image", "build") as process:
        wait_for_line(bench, "slow")
        began = time.monotonic()
        process.send_signal(number)
        process.communicate(timeout=20)
    assert time.monotonic() - began < 8
    assert process.returncode in (128 + number, -number)
    assert bench.left() == []
    assert not building()
    assert image_id() == workbench


def test_two_builds_take_turns(bench: Bench) -> None:
    mark = "/tmp/mark"
    bench.settings(f'run = ["test ! -e {mark}; sleep 1"]')
    with bench.popen("image", "build") as one, bench.popen("image", "build") as two:
        told = [process.communicate(timeout=60)[1] for process in (one, two)]
    assert (one.returncode, two.returncode) == (0, 0)
    assert [b"another build runs" in text for text in told].count(True) == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Path:
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(
        ["sudo", "mount", "-t", "tmpfs", "-o", "size=200m,mode=1777", "small", str(place)],
        check=True,
    )
    return place


def test_no_room_for_what_a_build_makes_on_the_way(
    bench: Bench, workbench: str, small_disk: Path
) -> None:
    filler = small_disk / "filler"
    filler.write_bytes(bytes(150 << 20))
    done = bench.run("image", "refresh", TMPDIR=str(small_disk))
    assert done.code == 117, done
    assert b"the disk is full" in done.err
    assert list(small_disk.iterdir()) == [filler]
    assert image_id() == workbench


def test_no_room_where_podman_keeps_images(bench: Bench, small_disk: Path) -> None:
    """A storage of its own, with room for the base but not for the workbench."""
    run = Path(tempfile.mkdtemp(dir="/tmp"))  # a short path, for sockets
    bench.storage(small_disk / "data", run / "containers")
    done = bench.run("image", "build", XDG_RUNTIME_DIR=str(run))
    assert done.code == 117, done
    assert b"the disk is full" in done.err
    assert b"gc" in done.err
    assert bench.left() == []
    env = bench.env | {"XDG_RUNTIME_DIR": str(run)}
    listed = ["podman", "images", "--all", "--format", "{{.Repository}}"]
    names = subprocess.run(listed, env=env, capture_output=True, text=True, check=True).stdout
    assert set(names.split()) <= {"localhost/cagewrap-base"}
    containers = ["podman", "ps", "--all", "--external", "--quiet"]
    assert subprocess.run(containers, env=env, capture_output=True, check=True).stdout == b""
    bench.storage(Path.home() / ".local/share/containers/storage", RUNTIME_DIR / "containers")
    podman("unshare", "rm", "-rf", str(small_disk / "data"))


def test_superseded_images_go_unless_a_cage_uses_them(bench: Bench) -> None:
    bench.settings('run = ["echo 1 >/number"]')
    bench.good("image", "build")
    old = image_id()
    bench.cage("true")
    bench.settings('run = ["echo 2 >/number"]')
    bench.good("image", "build")
    assert image_id(old) == old  # the cage stands on it
    assert bench.json("gc", "--dry-run")["done"] == []
    bench.good("rm", "--all")
    [would] = bench.json("gc", "--dry-run")["done"]
    assert image_id(old) == old
    assert bench.json("gc")["done"] == [would]
    assert image_id(old) == ""


def test_an_image_of_the_owners_made_from_ours_is_left_alone(bench: Bench) -> None:
    podman("tag", NAME, "localhost/mine:1")
    container = podman("create", NAME, "true").stdout.strip()
    podman("commit", container, "localhost/mine:2")
    podman("rm", container)
    try:
        names = {name for one in bench.json("image", "ls")["images"] for name in one["names"]}
        assert "localhost/mine:2" not in names
        bench.good("gc")
        assert podman("image", "exists", "localhost/mine:2").returncode == 0
    finally:
        podman("rmi", "localhost/mine:2", "localhost/mine:1")


def test_disk_of_sessions(bench: Bench) -> None:
    bench.cage("sh", "-c", "head -c 20000000 /dev/urandom >/opt/layer; "
               "head -c 10000000 /dev/urandom >~/home; mkdir -m 0 ~/closed")  # fmt: skip
    document = bench.json("ls", "--size")
    [session] = document["sessions"]
    sizes = session["size_bytes"]
    assert 20_000_000 <= sizes["layer"] < 21_000_000
    assert 10_000_000 <= sizes["home"] < 11_000_000
    assert 700_000_000 < document["disk"]["images_bytes"] < 900_000_000
    shown = bench.run("ls", "--size")
    assert b"SIZE" in shown.out
    assert b"30 MB" in shown.out
    [check] = [one for one in bench.json("doctor", "--no-probe")["checks"] if one["id"] == "disk"]
    assert "1 sessions 30 MB" in check["found"]


def test_twenty_sessions_leave_nothing(bench: Bench) -> None:
    def everything() -> dict[str, object]:
        files = sorted(str(path.relative_to(bench.root)) for path in bench.root.rglob("*"))
        runtime = Path(bench.env["XDG_RUNTIME_DIR"]) / "cagewrap"
        return {
            "podman": podman("system", "df", "--format", "{{.Type}} {{.Total}} {{.Size}}").stdout,
            "volumes": podman("volume", "ls", "--quiet").stdout,
            "images": podman("images", "--all", "--quiet").stdout,
            "files": [path for path in files if not path.startswith("state/cagewrap/projects")],
            "sockets": sorted(path.name for path in runtime.glob("cagewrap-*")),
        }

    bench.cage("true")
    bench.good("rm", "--all")
    before = everything()
    for number in range(20):
        script = "head -c 1000000 /dev/urandom >/opt/x; mkdir -p ~/.cache; echo >~/.cache/y"
        bench.cage("sh", "-c", script, flags=("--session", f"s{number}"))
        if number % 5 == 0:
            bench.good("recreate", f"s{number}")
            bench.cage("test", "-s", "/opt/x", flags=("--session", f"s{number}"))
    assert len(bench.json("ls")["sessions"]) == 20
    bench.good("rm", "--all", "--force")
    assert everything() == before


def test_caches_are_shared_by_cages_that_ask_for_them(bench: Bench) -> None:
    home = Path.home()
    flags = ("--cache", "pip", "--cache", "apt", "--cache", "npm")
    script = "echo 1 >~/.cache/pip/x; echo 2 >/var/cache/apt/archives/y; echo 3 >~/.npm/z"
    bench.cage("sh", "-c", script, flags=(*flags, "--session", "one"))
    read = ("sh", "-c", "cat ~/.cache/pip/x /var/cache/apt/archives/y ~/.npm/z 2>&1")
    assert bench.cage(*read, flags=(*flags, "--session", "two")) == "1\n2\n3\n"
    assert "No such file" in bench.run("--network", "none", "--", *read).out.decode()
    assert not (home / ".npm/z").exists()
    owner = ("--user", "owner", "--session", "three")
    script = "cat ~/.npm/z; echo more >>~/.npm/z"
    assert bench.cage("sh", "-c", script, flags=(*flags, *owner)) == "3\n"
    assert bench.json("ls", "--size")["disk"]["caches_bytes"] > 0


def test_nix_store_is_shared_read_only(bench: Bench) -> None:
    done = bench.run("--share", "nix", "--network", "none", "--rm", "--", "true")
    assert (done.code, b"/nix/store" in done.err) == (112, True)
    subprocess.run(
        ["sudo", "mkdir", "-p", "/nix/store/abc", "/nix/var/nix/daemon-socket"], check=True
    )
    script = "ls /nix /nix/store; touch /nix/store/x 2>/dev/null || echo read-only"
    found = bench.cage("sh", "-c", script, flags=("--share", "nix", "--session", "nix"))
    assert found == "/nix:\nstore\n\n/nix/store:\nabc\nread-only\n"


def test_json_of_a_build_on_stderr(bench: Bench) -> None:
    bench.settings('run = ["true", "true"]')
    done = bench.run("image", "build", "--json")
    assert json.loads(done.out)["ok"] is True
    assert [json.loads(line)["event"] for line in done.err.splitlines()] == ["step", "made"]
