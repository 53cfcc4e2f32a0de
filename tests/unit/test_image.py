"""The recipe of the base image and what podman says of images."""

from dataclasses import replace

import pytest

from cagewrap.image import (
    RECIPE_LABEL,
    ImageEntry,
    Recipe,
    bootstrap_args,
    import_args,
    parse_images,
    read_base_packages,
    recipe_hash,
)

RECIPE = Recipe("trixie", ("bash", "git"))


def test_bootstrap_command() -> None:
    recipe = Recipe("bookworm", ("bash", "git"), ("deb URL bookworm main",), ('A::B "c"',))
    argv = bootstrap_args(recipe, "/s")
    assert argv[:6] == ("setpriv", "--pdeathsig", "TERM", "--", "podman", "unshare")
    assert argv[-6:] == (
        "--include=bash,git",
        '--aptopt=A::B "c"',
        "--",
        "bookworm",
        "/s/root.tar",
        "deb URL bookworm main",
    )


def test_import_command() -> None:
    argv = import_args("localhost/a:1", "/s/root.tar", "0123")
    assert argv[:3] == ("podman", "import", "--quiet")
    assert argv[-3:] == ("--", "/s/root.tar", "localhost/a:1")
    assert f"LABEL {RECIPE_LABEL}=0123" in argv
    assert "ENV LANG=C.UTF-8" in argv


def test_recipe_hash_is_of_the_content_alone() -> None:
    assert recipe_hash(RECIPE) == recipe_hash(Recipe("trixie", ("bash", "git")))
    assert len(recipe_hash(RECIPE)) == 12


@pytest.mark.parametrize(
    "other",
    [
        replace(RECIPE, suite="bookworm"),
        replace(RECIPE, include=("bash",)),
        replace(RECIPE, mirrors=("deb URL trixie main",)),
        replace(RECIPE, aptopts=('A "b"',)),
    ],
)
def test_recipe_hash_differs(other: Recipe) -> None:
    assert recipe_hash(other) != recipe_hash(RECIPE)


def test_base_packages_are_names() -> None:
    packages = read_base_packages()
    assert {"bash", "git", "ca-certificates"} <= set(packages)
    assert all(name.strip("abcdefghijklmnopqrstuvwxyz0123456789+-.") == "" for name in packages)
    assert list(packages) == sorted(set(packages))


@pytest.mark.parametrize("listing", [b"", b"[]", b"null"])
def test_no_images(listing: bytes) -> None:
    assert parse_images(listing) == ()


def test_images_newest_first_and_nameless_ones_too() -> None:
    listing = b"""[
      {"Id": "1111111111112222", "Names": null, "Size": 5, "Created": 10,
       "Labels": {"cagewrap.recipe": "a"}},
      {"Id": "3333333333334444", "Names": ["localhost/x:1", "localhost/y:1"], "Size": 6,
       "Created": 20, "Labels": {"cagewrap.recipe": "b", "other": "c"}}
    ]"""
    assert parse_images(listing) == (
        ImageEntry("localhost/x:1", "333333333333", 6, 20, "b"),
        ImageEntry("", "111111111111", 5, 10, "a"),
    )
