"""`cagewrap image`: make, list and remove base images."""

from __future__ import annotations

import os
from dataclasses import asdict

import click

from cagewrap.cli.fromsession import from_session
from cagewrap.errors import CagewrapError, UsageError
from cagewrap.image import DEFAULT_NAME, DEFAULT_SUITE, SUITES, Images, Recipe, read_base_packages
from cagewrap.paths import paths_from_env
from cagewrap.report import envelope


@click.group()
def image() -> None:
    """Make, list and remove base images."""


@image.command()
@click.option("--name", default=DEFAULT_NAME, show_default=True, help="Name of the image.")
@click.option("--from", "tar_file", metavar="TAR", help="Use this packed root file system instead.")
@click.option("--suite", type=click.Choice(SUITES), help=f"Debian release [{DEFAULT_SUITE}].")
@click.option("--include", multiple=True, metavar="PKG", help="One more Debian package.")
@click.option("--mirror", multiple=True, metavar="LINE", help="Passed on to mmdebstrap.")
@click.option("--aptopt", multiple=True, metavar="OPTION", help="Passed on to mmdebstrap.")
@click.option("--if-missing", is_flag=True, help="Do nothing when the image is there.")
def build(
    *,
    name: str,
    tar_file: str | None,
    suite: str | None,
    include: tuple[str, ...],
    mirror: tuple[str, ...],
    aptopt: tuple[str, ...],
    if_missing: bool,
) -> None:
    """Make the base image from Debian packages, with no container registry."""
    if tar_file and (suite or include or mirror or aptopt):
        raise UsageError(
            "--from takes a root file system as it is, so nothing can be added to it.",
            "leave out --suite, --include, --mirror and --aptopt",
        )
    packages = (word for value in include for word in value.replace(",", " ").split())
    recipe = Recipe(
        suite=suite or DEFAULT_SUITE,
        include=(*read_base_packages(), *packages),
        mirrors=mirror,
        aptopts=aptopt,
    )
    images = _images()
    if if_missing and images.exists(name):
        click.echo(f"cagewrap: the image {name} is already there", err=True)
        return
    if tar_file:
        images.build_from(name, tar_file)
    else:
        click.echo(f"cagewrap: making {name} from Debian {recipe.suite} packages", err=True)
        images.build(name, recipe)
    click.echo(f"cagewrap: made the image {name}", err=True)


@image.command("ls")
@click.option("--json", "as_json", is_flag=True, help="As one JSON object on stdout.")
def list_images(*, as_json: bool) -> None:
    """List the images that cagewrap made."""
    entries = _images().find_all()
    for entry in () if as_json else entries:
        click.echo(f"{entry.name}\t{entry.id}\t{entry.size_bytes / 1e6:.0f} MB\t{entry.recipe}")
    if as_json:
        click.echo(envelope(None, images=[asdict(entry) for entry in entries]))


@image.command("rm")
@click.argument("names", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="As one JSON object on stdout.")
def remove(*, names: tuple[str, ...], as_json: bool) -> None:
    """Remove images that no cage uses."""
    images = _images()
    done: list[dict[str, str]] = []
    failure: CagewrapError | None = None
    try:
        for name in names:
            images.remove(name)
            done.append({"what": "removed", "name": name})
    except CagewrapError as error:
        failure = error
    for one in () if as_json else done:
        click.echo(f"removed {one['name']}")
    if as_json:
        click.echo(envelope(failure, done=done))
    if failure is not None:
        raise failure


image.add_command(from_session)


def _images() -> Images:
    return Images(paths_from_env(os.environ, os.getuid()), os.environ)
