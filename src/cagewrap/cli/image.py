"""`cagewrap image build | refresh | ls | show | rm`."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TypedDict, Unpack

import click

from cagewrap.cli.fromsession import from_session
from cagewrap.errors import CagewrapError, ImageMissingError, UsageError
from cagewrap.image.build import Builder
from cagewrap.image.first import shown
from cagewrap.image.places import Places
from cagewrap.image.recipe import Recipe, base_tag, read_recipe, tag
from cagewrap.image.settings import Staleness, read_image_settings, read_staleness
from cagewrap.image.store import ImageEntry, Images, find_superseded
from cagewrap.model import DEFAULT_IMAGE
from cagewrap.paths import Paths, paths_from_env
from cagewrap.report import envelope
from cagewrap.values import SUITES, TARGETS, BadValueError, parse_base, parse_package

_JSON = click.option("--json", "as_json", is_flag=True, help="As one JSON object on stdout.")


class _Options(TypedDict, total=False):
    """What of a recipe the command line may say."""

    base: str | None
    target: str | None
    suite: str | None
    include: tuple[str, ...]
    mirror: tuple[str, ...]
    aptopt: tuple[str, ...]


@click.group()
def image() -> None:
    """Make the image that cages are made from, list such images and remove them."""


@image.command()
@click.option("--name", default=DEFAULT_IMAGE, show_default=True, help="Name of the image.")
@click.option("--base", metavar="BASE", help="auto, packages, or an image to stand on.")
@click.option("--target", type=click.Choice(TARGETS), help="workbench, or desktop: a browser too.")
@click.option("--suite", type=click.Choice(SUITES), help="Debian release.")
@click.option("--include", multiple=True, metavar="PKG", help="One more Debian package.")
@click.option("--mirror", multiple=True, metavar="LINE", help="Where Debian packages come from.")
@click.option("--aptopt", multiple=True, metavar="OPTION", help="A setting of apt.")
@click.option("--from", "tar_file", metavar="TAR", help="Use this packed root file system instead.")
@click.option("--if-missing", is_flag=True, help="Do nothing when the image is there.")
@_JSON
def build(
    *, name: str, tar_file: str | None, if_missing: bool, as_json: bool, **options: Unpack[_Options]
) -> None:
    """Make an image: the workbench, and what the table [image] of the settings adds.

    What is there already of the same recipe is used; `refresh` makes all anew.
    """
    given = [word for word, value in options.items() if value]
    if tar_file and given:
        raise UsageError(
            "--from takes a root file system as it is, so nothing can be added to it.",
            f"leave out --{given[0]}",
        )
    builder = _builder(as_json=as_json)
    if if_missing and builder.images.exists(name):
        _say(as_json=as_json, text=f"the image {name} is already there")
    elif tar_file:
        builder.build_from(name, tar_file)
    else:
        builder.build(_recipe(builder.paths, **options), name, if_missing=if_missing)
    _answer(builder.images, name, as_json=as_json)


@image.command()
@click.option("--mirror", multiple=True, metavar="LINE", help="Where Debian packages come from.")
@click.option("--aptopt", multiple=True, metavar="OPTION", help="A setting of apt.")
@_JSON
def refresh(*, as_json: bool, **options: Unpack[_Options]) -> None:
    """Make the image anew with the newest packages, using nothing of what is there."""
    builder = _builder(as_json=as_json)
    builder.build(_recipe(builder.paths, **options), DEFAULT_IMAGE, fresh=True)
    _answer(builder.images, DEFAULT_IMAGE, as_json=as_json)
    _say(as_json=as_json, text="cages keep the image they have until `recreate --fresh`")


@image.command("ls")
@_JSON
def list_images(*, as_json: bool) -> None:
    """List the images that cagewrap made."""
    images = _images()
    entries = images.find_all()
    used = images.used()
    superseded = {entry.id for entry in find_superseded(entries, used)}
    stale = _staleness()
    if as_json:
        shown_entries = [
            {
                **_document(entry),
                "is_used": entry.id in used,
                "is_superseded": entry.id in superseded,
                "is_outdated": _is_outdated(entry, stale),
            }
            for entry in entries
        ]
        click.echo(envelope(None, images=shown_entries))
        return
    for entry in entries:
        remarks = [
            *(["superseded"] if entry.id in superseded else []),
            *(["its recipe has changed"] if _is_outdated(entry, stale) else []),
            *(["in use"] if entry.id in used else []),
        ]
        row = (
            entry.name, entry.id[:12], f"{entry.size_bytes / 1e6:.0f} MB", _day(entry.created),
            ", ".join(remarks),
        )  # fmt: skip
        click.echo("\t".join(row).rstrip())
    if superseded:
        click.echo("superseded images go by: cagewrap gc", err=True)


@image.command()
@click.argument("name", default=DEFAULT_IMAGE)
@_JSON
def show(*, name: str, as_json: bool) -> None:
    """Say what an image is made of, and what it would be made of now."""
    images = _images()
    entry = images.find(name)
    if entry is None:
        raise ImageMissingError(
            f"There is no image {name} that cagewrap made.", "cagewrap image ls"
        )
    stale = _staleness()
    paths = paths_from_env(os.environ, os.getuid())
    settings = read_image_settings(paths, os.environ)
    document = {
        **_document(entry),
        "stands_on": [one for one in (tag(entry.below), base_tag(entry.base)) if one[-1] != ":"],
        "wanted_recipe": stale.wanted if stale else "",
        "is_outdated": _is_outdated(entry, stale),
        "settings": settings._asdict(),
        "log": Places(paths).log,
    }
    if as_json:
        click.echo(envelope(None, image=document))
        return
    for key, value in document.items():
        text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
        click.echo(f"{key}: {text}")


@image.command("rm")
@click.argument("names", nargs=-1, required=True)
@_JSON
def remove(*, names: tuple[str, ...], as_json: bool) -> None:
    """Remove images that no cage uses."""
    images = _images()
    places = Places(paths_from_env(os.environ, os.getuid()))
    done: list[dict[str, str]] = []
    failure: CagewrapError | None = None
    try:
        for name in names:
            images.remove(name)
            places.forget(name)
            done.append({"what": "removed", "name": name, "detail": ""})
    except CagewrapError as error:
        failure = error
    for one in () if as_json else done:
        click.echo(f"removed {one['name']}")
    if as_json:
        click.echo(envelope(failure, done=done))
    if failure is not None:
        raise failure


image.add_command(from_session)


def _recipe(paths: Paths, **options: Unpack[_Options]) -> Recipe:
    """The recipe of the settings, changed by the options."""
    settings = read_image_settings(paths, os.environ)
    included = options.get("include", ())
    words = tuple(word for value in included for word in value.replace(",", " ").split())
    try:
        settings = settings._replace(
            base=parse_base(options.get("base") or settings.base),
            target=options.get("target") or settings.target,
            suite=options.get("suite") or settings.suite,
            packages=(*settings.packages, *(parse_package(word) for word in words)),
            mirrors=options.get("mirror") or settings.mirrors,
            apt_options=options.get("aptopt") or settings.apt_options,
        )
    except BadValueError as error:
        hint = "cagewrap image build --help"
        raise UsageError(f"An option of image build {error}.", hint) from None
    return read_recipe(settings)


def _answer(images: Images, name: str, *, as_json: bool) -> None:
    if not as_json:
        return
    entry = images.find(name)
    click.echo(envelope(None, image=_document(entry) if entry is not None else {"name": name}))


def _document(entry: ImageEntry) -> dict[str, object]:
    return {
        "name": entry.name,
        "names": list(entry.names),
        "id": entry.id[:12],
        "size_bytes": entry.size_bytes,
        "created": entry.created,
        "recipe": entry.recipe,
    }


def _is_outdated(entry: ImageEntry, stale: Staleness | None) -> bool:
    return (
        stale is not None
        and stale.name in entry.names
        and replace(stale, recipe=entry.recipe).is_outdated
    )


def _staleness() -> Staleness | None:
    """None when the settings cannot be read, which `cagewrap doctor` says."""
    try:
        return read_staleness(paths_from_env(os.environ, os.getuid()), os.environ)
    except CagewrapError:
        return None


def _day(seconds: int) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(seconds))


def _say(*, as_json: bool, text: str) -> None:
    if not as_json:
        click.echo(f"cagewrap: {text}", err=True)


def _images() -> Images:
    paths = paths_from_env(os.environ, os.getuid())
    return Images({**os.environ, "XDG_RUNTIME_DIR": paths.podman_runtime_dir})


def _builder(*, as_json: bool) -> Builder:
    paths = paths_from_env(os.environ, os.getuid())
    return Builder(paths, os.environ, shown(as_json=as_json))
