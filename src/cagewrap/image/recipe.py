"""What goes into a workbench image, and the names that its parts get. Pure but for reading files.

Three images stand on each other: a base (Debian), the workbench of the Containerfile beside this
module, and what the owner adds. Each is named for a hash of all that it is made of, so a changed
recipe is another image, and one that is there already is not built again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass

from cagewrap.errors import ImageMissingError
from cagewrap.model import ImageSettings

REPOSITORY = "localhost/cagewrap"
BASE_REPOSITORY = "localhost/cagewrap-base"
BUILDING = "localhost/cagewrap-building"
"""What an image is called while a build starts from it: podman names the containers of a build's
steps for that, and they can be told from those of the owner's builds."""
SESSION_REPOSITORY = "localhost/cagewrap-session"
REGISTRY_BASE = "docker.io/library/debian:{suite}-slim"
"""What `auto` takes of a registry: Debian's own images on the hub that podman knows without a
configuration."""
AUTO, PACKAGES = "auto", "packages"

CONTAINERFILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "Containerfile")
RECIPE_LABEL = "cagewrap.recipe"
BELOW_LABEL = "cagewrap.below"
BASE_LABEL = "cagewrap.base"
STAGE_LABEL = "cagewrap.stage"

_HASH_LETTERS = 12


@dataclass(frozen=True, slots=True)
class Recipe:
    """What goes into an image. texts: by path, the Containerfiles' content when it was read."""

    settings: ImageSettings
    texts: Mapping[str, str]

    @property
    def registry_ref(self) -> str:
        """The image that the base is, or that `auto` looks for in a registry."""
        asked = self.settings
        return REGISTRY_BASE.format(suite=asked.suite) if asked.base == AUTO else asked.base


def read_recipe(settings: ImageSettings) -> Recipe:
    """The recipe of these settings. Raises ImageMissingError when the owner's Containerfile cannot
    be read."""
    texts = {CONTAINERFILE: _read(CONTAINERFILE)}
    if settings.containerfile:
        texts[settings.containerfile] = _read(settings.containerfile)
    return Recipe(settings, texts)


def workbench_hash(recipe: Recipe) -> str:
    """Of all that the workbench is made of."""
    asked = recipe.settings
    shipped = recipe.texts[CONTAINERFILE]
    return _digest(asked.base, asked.target, asked.suite, shipped, *apt_files(recipe).values())


def additions_hash(recipe: Recipe) -> str:
    """With the owner's packages and commands."""
    asked, workbench = recipe.settings, workbench_hash(recipe)
    if not asked.packages and not asked.run:
        return workbench
    return _digest(workbench, " ".join(asked.packages), *asked.run)


def recipe_hash(recipe: Recipe) -> str:
    """Twelve hex digits that change when the same recipe would make another image."""
    file = recipe.settings.containerfile
    below = additions_hash(recipe)
    return _digest(below, "FROM", recipe.texts[file]) if file else below


def base_hash(recipe: Recipe, kind: str) -> str:
    """Of what the base is made of; `kind` is `packages` or an image's name."""
    return _digest(kind, recipe.settings.suite, *apt_files(recipe).values())


def tag(hash_: str) -> str:
    """The name of the image that this recipe makes."""
    return f"{REPOSITORY}:{hash_}"


def base_tag(hash_: str) -> str:
    """The name of a base."""
    return f"{BASE_REPOSITORY}:{hash_}"


def is_ours(name: str) -> bool:
    """Whether only cagewrap gives such a name: the tags of recipes and of bases."""
    repository, _, version = name.rpartition(":")
    return repository in (BASE_REPOSITORY, BUILDING) or (
        repository == REPOSITORY
        and len(version) == _HASH_LETTERS
        and not version.strip("0123456789abcdef")
    )


def apt_files(recipe: Recipe) -> dict[str, str]:
    """Files for the build's directory: where packages come from. Empty: as the base has it."""
    sources = "".join(
        _source_line(mirror, recipe.settings.suite) for mirror in recipe.settings.mirrors
    )
    options = "".join(option.rstrip(";") + ";\n" for option in recipe.settings.apt_options)
    return {"sources.list": sources, "apt.conf": options}


def local_directories(recipe: Recipe) -> tuple[str, ...]:
    """Directories of this machine that the packages come from (`file:/DIR`, `copy:/DIR`)."""
    words = (word for mirror in recipe.settings.mirrors for word in mirror.split())
    found = (word.partition(":")[2] for word in words if word.startswith(("file:/", "copy:/")))
    return tuple(dict.fromkeys("/" + path.strip("/") for path in found))


def additions_text(recipe: Recipe) -> str:
    """The Containerfile of the owner's packages and commands, "" without any."""
    steps = []
    if recipe.settings.packages:
        steps.append(
            "RUN set -eu; apt-get --quiet update; "
            "apt-get --quiet install --yes --no-install-recommends -o Acquire::Retries=3 -- "
            + " ".join(recipe.settings.packages)
            + "; apt-get clean; rm -rf /var/lib/apt/lists/* /var/log/apt /var/log/dpkg.log"
        )
    for command in recipe.settings.run:
        words = ["/bin/sh", "-c", ". /run/secrets/env\n" + command]
        steps.append("RUN --mount=type=secret,id=env " + _json_words(words))
    return "\n".join(("ARG BASE", "FROM ${BASE}", *steps, "")) if steps else ""


def _json_words(words: list[str]) -> str:
    import json

    return json.dumps(words)


def _source_line(mirror: str, suite: str) -> str:
    is_line = mirror.startswith(("deb ", "deb-src "))
    return (mirror if is_line else f"deb {mirror} {suite} main") + "\n"


def _digest(*parts: str) -> str:
    data = "".join(f"{len(part)}:{part}" for part in parts).encode(errors="surrogateescape")
    return hashlib.sha256(data).hexdigest()[:_HASH_LETTERS]


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError as error:
        raise ImageMissingError(
            f"The Containerfile {path} cannot be read: {error.strerror}.",
            f"ls -l {path}, or correct containerfile in the table [image]",
        ) from error
