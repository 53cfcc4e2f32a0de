"""The images that cagewrap made: whether their recipe has changed, and the disk that they take."""

from __future__ import annotations

from cagewrap.disk import Usage, human
from cagewrap.doctor.result import CheckResult, passed, warned
from cagewrap.image.settings import Staleness


def check_recipe(stale: Staleness) -> CheckResult:
    """The image was made of what is shipped and set now. Cages go on with the one they have."""
    wanted = "an image made of the recipe and the settings of now"
    if stale.is_outdated:
        found = f"{stale.name} was made of another recipe ({stale.recipe}, now {stale.wanted})"
        return warned("image-recipe", found, wanted, "cagewrap image build")
    return passed("image-recipe", stale.recipe or "none made yet", wanted)


def check_disk(usage: Usage) -> CheckResult:
    """What sessions and images take, and that nothing is kept which nobody needs."""
    wanted = "no image that a newer one has taken the place of"
    sessions = sum(size.total for size in usage.sessions.values())
    largest = max(usage.sessions, key=lambda name: usage.sessions[name].total, default="")
    found = f"{len(usage.sessions)} sessions {human(sessions)}"
    if largest:
        found += f" (most: {largest} {human(usage.sessions[largest].total)})"
    found += f", images {human(usage.images)}"
    if usage.caches:
        found += f", caches {human(usage.caches)}"
    if usage.superseded:
        return warned("disk", f"{found}, some of them superseded", wanted, "cagewrap gc")
    return passed("disk", found, wanted)
