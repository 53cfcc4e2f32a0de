"""The images that cagewrap made, as podman has them: listed, removed, and those nobody needs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cagewrap import proc
from cagewrap.errors import CagewrapError, ImageMissingError, SessionError
from cagewrap.image.recipe import (
    BASE_LABEL,
    BELOW_LABEL,
    BUILDING,
    RECIPE_LABEL,
    SESSION_REPOSITORY,
    STAGE_LABEL,
    base_tag,
    is_ours,
    tag,
)
from cagewrap.runtimes.failures import explain_failure

_QUICK_S = 60.0
_REMOVE_S = 300.0
PART, WHOLE = "part", "whole"
"""Values of the stage's label: what a build that was killed may leave, and what is ready."""


@dataclass(frozen=True, slots=True)
class ImageEntry:
    """An image that cagewrap made. created: seconds since 1970. size_bytes: with what it shares
    with others. below, base: hashes of the image it stands on and of the base, "" when it is none
    or unknown."""

    names: tuple[str, ...]
    id: str
    size_bytes: int
    created: int
    recipe: str = ""
    below: str = ""
    base: str = ""

    @property
    def name(self) -> str:
        """The name a cage would be made by: not that of a recipe, unless there is no other."""
        chosen = [name for name in self.names if not is_ours(name)]
        return (chosen or list(self.names) or [""])[0]

    @property
    def is_chosen(self) -> bool:
        """Whether it has a name that was chosen, by default or by the owner."""
        return any(not is_ours(name) for name in self.names)


class Images:
    """The images of one owner."""

    def __init__(self, env: Mapping[str, str]) -> None:
        """env: for podman, with the runtime directory that all of ours are given."""
        self.env = dict(env)

    def exists(self, name: str) -> bool:
        """Whether podman has an image of this name."""
        outcome = self.podman("image", "exists", "--", name)
        if outcome.returncode not in (0, 1):
            raise failure(outcome, name)
        return outcome.returncode == 0

    def id_of(self, name: str) -> str:
        """An image's id, "" when there is none."""
        outcome = self.podman("image", "inspect", "--format", "{{.Id}}", "--", name)
        return outcome.stdout.decode().strip() if outcome.returncode == 0 else ""

    def find_all(self) -> tuple[ImageEntry, ...]:
        """Every image that cagewrap made, newest first."""
        outcome = self.podman("images", "--format", "json")
        if outcome.returncode != 0:
            raise failure(outcome)
        return parse_images(outcome.stdout)

    def find(self, name: str) -> ImageEntry | None:
        """The image of that name, when cagewrap made it."""
        id_ = self.id_of(name)
        return next((one for one in self.find_all() if one.id == id_), None)

    def used(self) -> set[str]:
        """Ids of the images that some container stands on, anybody's."""
        outcome = self.podman("ps", "--all", "--external", "--format", "json")
        if outcome.returncode != 0:
            raise failure(outcome)
        return {str(one.get("ImageID", "")) for one in json.loads(outcome.stdout or b"[]") or ()}

    def remove(self, name: str) -> None:
        """Remove an image that no cage uses, with the names that only cagewrap gives."""
        id_ = self.id_of(name)
        if not id_:
            raise ImageMissingError(f"There is no image {name}.", "cagewrap image ls")
        if id_ in self.used():
            raise SessionError(
                f"The image {name} is in use by a container.", "cagewrap ls; cagewrap rm NAME"
            )
        entry = next((one for one in self.find_all() if one.id == id_), None)
        names = entry.names if entry is not None else ()
        others = [one for one in names if one != name and not is_ours(one)]
        self._remove((name,) if others else (name, *(one for one in names if is_ours(one))))

    def superseded(self) -> tuple[ImageEntry, ...]:
        """What an older recipe or an older build made, and that neither an image in use by name
        nor a container stands on."""
        return find_superseded(self.find_all(), self.used())

    def remove_superseded(self) -> tuple[ImageEntry, ...]:
        """Remove those; the ones that could be."""
        return tuple(entry for entry in self.superseded() if self._try_to_remove(entry.names))

    def remove_parts(self) -> None:
        """What a build that was killed left: containers of its steps, and nameless images."""
        listed = self.podman("ps", "--all", "--external", "--format", "json")
        for one in parse_step_containers(listed.stdout) if listed.returncode == 0 else ():
            self.podman("rm", "--force", "--", one)
        self.podman("untag", BUILDING, BUILDING)
        options = ("--filter", "dangling=true", "--filter", f"label={STAGE_LABEL}={PART}")
        listed = self.podman("images", "--quiet", "--no-trunc", *options)
        for one in listed.stdout.decode().split():
            self.podman("rmi", "--force", "--", one)

    def _remove(self, names: Sequence[str]) -> None:
        outcome = self.podman("rmi", "--", *dict.fromkeys(names), timeout_s=_REMOVE_S)
        if outcome.returncode != 0:
            raise failure(outcome, names[0])

    def _try_to_remove(self, names: Sequence[str]) -> bool:
        return self.podman("rmi", "--", *names, timeout_s=_REMOVE_S).returncode == 0

    def podman(self, *words: str, timeout_s: float = _QUICK_S) -> proc.Outcome:
        """Run podman and keep what it printed."""
        return proc.capture(("podman", *words), timeout_s=timeout_s, env=self.env)


def parse_images(listing: bytes) -> tuple[ImageEntry, ...]:
    """Read what `podman images --format json` prints, less what is not of cagewrap's making.

    An image that somebody built on one of ours has our labels, but none of our names; what was
    installed in a session (see `cagewrap recreate`) belongs to that session.
    """
    found: dict[str, ImageEntry] = {}
    for image in json.loads(listing or b"[]") or ():  # once for each of its names
        known = found[image["Id"]].names if image["Id"] in found else ()
        names = tuple(dict.fromkeys((*known, *(image.get("Names") or ()))))
        labels = image.get("Labels") or {}
        recipe = labels.get(RECIPE_LABEL, "")
        if any(name.startswith(SESSION_REPOSITORY + ":") for name in names):
            continue
        if not any(is_ours(name) for name in names) and not recipe.startswith("tar-"):
            continue
        found[image["Id"]] = ImageEntry(
            names=names,
            id=image["Id"],
            size_bytes=int(image["Size"]),
            created=int(image["Created"]),
            recipe=recipe,
            below=labels.get(BELOW_LABEL, ""),
            base=labels.get(BASE_LABEL, ""),
        )
    return tuple(sorted(found.values(), key=lambda entry: (-entry.created, entry.name)))


def parse_step_containers(listing: bytes) -> tuple[str, ...]:
    """Ids of the containers in `podman ps --external` in which a step of a build of ours ran."""
    start = BUILDING.rpartition("/")[2] + "-working-container"
    return tuple(
        str(one["Id"])
        for one in json.loads(listing or b"[]") or ()
        if any(name.startswith(start) for name in one.get("Names") or ())
    )


def find_superseded(entries: Iterable[ImageEntry], used: set[str]) -> tuple[ImageEntry, ...]:
    """Those that neither have a chosen name nor are stood on, what stands on others first."""
    entries = tuple(entries)
    kept = {entry.id for entry in entries if entry.is_chosen or entry.id in used}
    for _ in entries:  # until all that those stand on is among them
        on = {
            name
            for entry in entries
            if entry.id in kept
            for name in (tag(entry.below), base_tag(entry.base))
        }
        kept |= {entry.id for entry in entries if on & set(entry.names)}
    left = [entry for entry in entries if entry.id not in kept]
    return tuple(sorted(left, key=lambda entry: -entry.created))


def failure(outcome: proc.Outcome, name: str = "") -> CagewrapError:
    """What it means that podman failed."""
    return explain_failure(outcome.argv, outcome.returncode, outcome.stderr, image=name)
