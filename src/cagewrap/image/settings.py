"""The recipe that this machine's settings ask for, and whether the image was made from it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from cagewrap.config import read_config, resolve
from cagewrap.flags import FlagValues
from cagewrap.image.places import read_notes
from cagewrap.image.recipe import Recipe, read_recipe, recipe_hash
from cagewrap.model import DEFAULT_IMAGE, ImageSettings
from cagewrap.paths import Paths


@dataclass(frozen=True, slots=True)
class Staleness:
    """The image that cagewrap builds: what it was made from, and what it would be made from now.

    recipe: "" when it was never built here. is_outdated: `cagewrap image build` makes another.
    """

    name: str
    recipe: str
    wanted: str

    @property
    def is_outdated(self) -> bool:
        """Whether the recipe has changed; not so for one that was made elsewhere (`--from`)."""
        return self.recipe not in ("", self.wanted) and not self.recipe.startswith("tar-")


def read_image_settings(paths: Paths, env: Mapping[str, str]) -> ImageSettings:
    """The table `[image]`. Raises ConfigInvalidError."""
    config = read_config(paths.config_file)
    return resolve(config, project=paths.home, env=env, flags=FlagValues()).settings.workbench


def read_machine_recipe(paths: Paths, env: Mapping[str, str]) -> Recipe:
    """What `cagewrap image build` makes without options."""
    return read_recipe(read_image_settings(paths, env))


def read_staleness(paths: Paths, env: Mapping[str, str]) -> Staleness:
    """Whether the recipe has changed since the image was built; podman is not asked."""
    note = read_notes(os.path.join(paths.state_dir, "images.json")).get(DEFAULT_IMAGE, {})
    wanted = recipe_hash(read_machine_recipe(paths, env))
    return Staleness(DEFAULT_IMAGE, str(note.get("recipe", "")), wanted)
