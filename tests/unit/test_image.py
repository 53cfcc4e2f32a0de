"""Recipes of the workbench, the commands that build it, and what podman says of images."""

from __future__ import annotations

import itertools
import json

import pytest

from cagewrap.errors import CagewrapError, ImageMissingError
from cagewrap.image import commands, progress
from cagewrap.image.failures import explain_step
from cagewrap.image.recipe import (
    CONTAINERFILE,
    Recipe,
    additions_text,
    apt_files,
    base_hash,
    is_ours,
    local_directories,
    read_recipe,
    recipe_hash,
    tag,
    workbench_hash,
)
from cagewrap.image.settings import Staleness
from cagewrap.image.store import (
    ImageEntry,
    find_superseded,
    parse_images,
    parse_step_containers,
)
from cagewrap.model import ImageSettings

PLAIN = ImageSettings()


def recipe(**settings: object) -> Recipe:
    return read_recipe(PLAIN._replace(**settings))


# --- recipes


def test_hash_is_twelve_hex_digits_and_ours() -> None:
    found = recipe_hash(recipe())
    assert (len(found), int(found, 16) > 0) == (12, True)
    assert is_ours(tag(found))
    assert recipe_hash(recipe()) == found == workbench_hash(recipe())


@pytest.mark.parametrize(
    "change",
    [
        {"base": "packages"},
        {"target": "desktop"},
        {"suite": "bookworm"},
        {"mirrors": ("http://mirror.example/debian",)},
        {"apt_options": ('Acquire::Languages "none"',)},
    ],
)
def test_what_the_workbench_is_made_of_changes_both_hashes(change: dict[str, object]) -> None:
    assert workbench_hash(recipe(**change)) != workbench_hash(recipe())
    assert recipe_hash(recipe(**change)) != recipe_hash(recipe())


@pytest.mark.parametrize(
    "change", [{"packages": ("jq",)}, {"run": ("true",)}, {"run": ("true", "true")}]
)
def test_what_the_owner_adds_changes_the_last_hash_alone(change: dict[str, object]) -> None:
    assert workbench_hash(recipe(**change)) == workbench_hash(recipe())
    assert recipe_hash(recipe(**change)) != recipe_hash(recipe())


def test_a_package_and_a_command_are_not_the_same() -> None:
    hashes = {
        recipe_hash(recipe(packages=("a", "b"))),
        recipe_hash(recipe(packages=("a",), run=("b",))),
        recipe_hash(recipe(run=("a", "b"))),
        recipe_hash(recipe(run=("a b",))),
    }
    assert len(hashes) == 4


def test_the_owners_containerfile_counts_by_its_content(tmp_path) -> None:
    file = tmp_path / "Containerfile"
    file.write_text("ARG BASE\nFROM ${BASE}\n")
    one = recipe_hash(recipe(containerfile=str(file)))
    file.write_text("ARG BASE\nFROM ${BASE}\nRUN true\n")
    assert recipe_hash(recipe(containerfile=str(file))) != one
    with pytest.raises(ImageMissingError, match="cannot be read"):
        recipe(containerfile=str(tmp_path / "none"))


def test_bases_differ_by_where_they_come_from() -> None:
    auto = recipe()
    assert auto.registry_ref == "docker.io/library/debian:trixie-slim"
    assert base_hash(auto, "packages") != base_hash(auto, auto.registry_ref)


def test_mirrors_as_an_address_and_as_a_line() -> None:
    made = recipe(
        mirrors=("http://m.example/debian", "deb [trusted=yes] copy:/srv/debs ./"),
        apt_options=('A::B "c"', 'D "e";'),
    )
    assert apt_files(made) == {
        "sources.list": "deb http://m.example/debian trixie main\n"
        "deb [trusted=yes] copy:/srv/debs ./\n",
        "apt.conf": 'A::B "c";\nD "e";\n',
    }
    assert local_directories(made) == ("/srv/debs",)


def test_additions() -> None:
    assert additions_text(recipe()) == ""
    text = additions_text(recipe(packages=("jq", "tree"), run=("echo 'a' \"b\"\nc",)))
    packages, command = [line for line in text.splitlines() if line.startswith("RUN")]
    assert " -- jq tree;" in packages
    words = json.loads(command.partition("id=env ")[2])
    assert words == ["/bin/sh", "-c", ". /run/secrets/env\necho 'a' \"b\"\nc"]


def test_shipped_containerfile_fetches_nothing_unseen() -> None:
    with open(CONTAINERFILE, encoding="utf-8") as file:
        text = file.read()
    assert "curl " not in text.replace("        curl \\", "")
    assert "wget" not in text
    assert "claude" not in text
    assert "FROM ${BASE} AS workbench" in text
    assert "FROM workbench AS desktop" in text


# --- commands


def test_bootstrap_command() -> None:
    made = recipe(suite="bookworm", mirrors=("deb URL bookworm main",), apt_options=('A::B "c"',))
    argv = commands.bootstrap_args(made, "/s")
    assert argv[:6] == ("setpriv", "--pdeathsig", "TERM", "--", "podman", "unshare")
    assert argv[-5:] == (
        '--aptopt=A::B "c"', "--", "bookworm", "/s/root.tar", "deb URL bookworm main",
    )  # fmt: skip


def test_build_command() -> None:
    argv = commands.build_args(
        "/c", "/f", base="localhost/b:1", target="desktop", name="localhost/n:1",
        labels={"k": "v"}, scratch="/s", mounts=("/w",),
    )  # fmt: skip
    at = argv.index("build")
    assert argv[at - 1 : at + 3] == ("podman", "build", "--layers=false", "--pull=never")
    assert argv[-2:] == ("/f", "/c")
    pairs = set(itertools.pairwise(argv))
    assert {
        ("--volume", "/w:/w:ro"), ("--build-arg", "BASE=localhost/b:1"), ("--target", "desktop"),
        ("--label", "k=v"), ("--tag", "localhost/n:1"), ("--iidfile", "/s/id"),
        ("--secret", "id=env,src=/s/env"),
    } <= pairs  # fmt: skip


def test_environment_of_a_build(tmp_path) -> None:
    text, paths = commands.build_environment(
        {"PIP_INDEX_URL": "https://a:b'c@i/", "PIP_CERT": str(tmp_path), "HOME": "/h", "PIP_X": "1"}
    )
    assert text == f"export PIP_CERT='{tmp_path}'\nexport PIP_INDEX_URL='https://a:b'\\''c@i/'\n"
    assert paths == (str(tmp_path),)


# --- what podman says


def image(id_: str, names: list[str], **labels: str) -> dict[str, object]:
    found = {f"cagewrap.{key}": value for key, value in labels.items()}
    return {"Id": id_, "Names": names, "Size": 5, "Created": 10, "Labels": found}


@pytest.mark.parametrize("listing", [b"", b"[]", b"null"])
def test_no_images(listing: bytes) -> None:
    assert parse_images(listing) == ()


def test_images_are_told_from_those_made_of_them() -> None:
    ours = "localhost/cagewrap:0123456789ab"
    listing = [
        image("1", [ours, "localhost/cagewrap:latest"], recipe="r", below="w", base="b"),
        image("1", ["localhost/cagewrap:latest", ours], recipe="r", below="w", base="b"),
        image("2", ["localhost/mine:1"], recipe="r"),
        image("3", [], recipe="r"),
        image("4", ["localhost/cagewrap-session:cagewrap-x-1"], recipe="r"),
        image("5", ["localhost/cagewrap-base:b"]),
        image("6", ["localhost/packed:1"], recipe="tar-1"),
        {"Id": "7", "Names": None, "Size": 1, "Created": 1, "Labels": None},
    ]
    found = {entry.id: entry for entry in parse_images(json.dumps(listing).encode())}
    assert set(found) == {"1", "5", "6"}
    assert found["1"].name == "localhost/cagewrap:latest"
    assert (found["1"].recipe, found["1"].below, found["1"].base) == ("r", "w", "b")
    assert found["5"].name == "localhost/cagewrap-base:b"


def entry(id_: str, *names: str, below: str = "", base: str = "") -> ImageEntry:
    return ImageEntry(names, id_, 5, 10, "", below, base)


def test_superseded_is_what_nothing_chosen_or_used_stands_on() -> None:
    old, new = "0" * 12, "1" * 12
    images = (
        entry("final", tag("a" * 12), "localhost/cagewrap:latest", below="b" * 12, base="b1"),
        entry("added", tag("b" * 12), below=new, base="b1"),
        entry("new", tag(new), base="b1"),
        entry("b1", "localhost/cagewrap-base:b1"),
        entry("old", tag(old), base="b0"),
        entry("b0", "localhost/cagewrap-base:b0"),
        entry("older", tag("2" * 12), base="b2"),
        entry("b2", "localhost/cagewrap-base:b2"),
    )
    assert {one.id for one in find_superseded(images, {"old"})} == {"older", "b2"}
    assert {one.id for one in find_superseded(images, set())} == {"old", "b0", "older", "b2"}


def test_containers_of_steps_are_told_from_those_of_the_owners_builds() -> None:
    names = (
        "cagewrap-building-working-container", "cagewrap-building-working-container-1",
        "cagewrap-working-container", "alpine-working-container", "cagewrap-building-01234567",
    )  # fmt: skip
    listing = [{"Id": str(at), "Names": [name]} for at, name in enumerate(names)]
    assert parse_step_containers(json.dumps(listing).encode()) == ("0", "1")


# --- what is told


@pytest.mark.parametrize(
    ("recipe", "is_outdated"), [("a", False), ("b", True), ("", False), ("tar-1", False)]
)
def test_staleness(recipe: str, is_outdated: bool) -> None:
    assert Staleness("n", recipe, "a").is_outdated is is_outdated


@pytest.mark.parametrize(
    ("tail", "code", "words"),
    [
        (["cp: write error: No space left on device"], 117, "the disk is full"),
        (["E: You don't have enough free space in /var/cache/apt."], 117, "disk is full"),
        (["E: Unable to locate package nope"], 111, "no package nope"),
        (
            ["E: Failed to fetch http://x  Temporary failure resolving 'x'"],
            118,
            "needs the network",
        ),
        (["STEP 2/3: RUN x", "oh dear", ""], 118, "failed: oh dear"),
        ([], 118, "it said nothing"),
    ],
)
def test_why_a_step_failed(tail: list[str], code: int, words: str) -> None:
    error = explain_step("doing it", tail, "/log")
    assert (error.exit_code, words in error.message, bool(error.hint)) == (code, True, True)


def test_progress_for_all_who_wait(tmp_path) -> None:
    path, told = str(tmp_path / "events"), []
    early = progress.Follower(path, is_running=False)
    made = progress.Progress(path, str(tmp_path / "log"), told.append)
    made.step(1, 2, "first")
    made.line("a")
    made.step(2, 2, "second")
    made.line("b")
    late = progress.Follower(path, is_running=True)
    assert [event["event"] for event in early.read()] == ["step", "output", "step", "output"]
    assert [event.get("what", event.get("line")) for event in late.read()] == ["second", "b"]
    made.fail(CagewrapError("no", "yes"))
    assert [event["event"] for event in late.read()] == ["failed"]
    assert (early.read()[0]["message"], late.read()) == ("no", [])
    made.close()
    assert len(told) == 5
    assert (tmp_path / "log").read_text() == "--- first\na\n--- second\nb\n"
    assert progress.Follower(path, is_running=False).read() == []


def test_a_terminal_shows_each_step_and_the_last_line_in_place() -> None:
    written: list[str] = []
    show = progress.for_person(lambda: 20, written.append)
    show({"event": "step", "step": 1, "steps": 2, "what": "x", "elapsed_s": 0.0})
    show({"event": "output", "line": "long\x1b[31m" * 9, "elapsed_s": 3.2})
    show({"event": "made", "image": "i", "size_bytes": 5e8, "elapsed_s": 9.0})
    assert written[0] == "\r\x1b[Kcagewrap: [1/2] x\n"
    assert written[1] == "\r\x1b[K    3 s  long [31mlong"[: len("\r\x1b[K") + 19]
    assert written[2] == "\r\x1b[Kcagewrap: made the image i (500 MB, 9 s)\n"
