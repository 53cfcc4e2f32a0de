"""Which of the owner's files around Claude a cage gets a copy of, and at which path in its HOME."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from cagewrap import protected
from cagewrap.copies import Finder, Original
from cagewrap.protected import Place, Scope
from cagewrap.transcripts import slug

FILES = (".md", ".sh", "keybindings.json")
"""How the names of files end that are copied from the directory itself."""
DIRECTORIES = (
    "agents", "commands", "hooks", "output-styles", "rules", "skills", "themes", "workflows",
)  # fmt: skip
_MEMORY = re.compile(r"/projects/[^/]+/memory/[^/]+$")
ABOVE = ("CLAUDE.md", "AGENTS.md")
"""Instructions that Claude reads from every directory above the project; those in HOME come."""


def may_copy(
    places: tuple[Place, ...], written: Callable[[], Collection[str]]
) -> Callable[[str], bool]:
    """Whether a real path may be copied into a cage: not a place that cages never see, nor one
    where an agent works, who could put a symlink to anything there.

    written: tells where agents work, by now.
    """
    trees = tuple(place.path for place in places if place.reading and place.scope is Scope.TREE)

    def judge(path: str) -> bool:
        if any(protected.lies_in(path, one) for one in written()):
            return False
        return bool(_MEMORY.search(path)) or not any(protected.lies_in(path, one) for one in trees)

    return judge


def find_originals(finder: Finder, config_dir: str, home: str, project: str) -> dict[str, Original]:
    """Instructions and whatever else extends Claude, by path in HOME."""
    found: dict[str, Original] = {}
    files = (name for name in sorted(os.listdir(config_dir)) if name.endswith(FILES))
    for name in (*files, *DIRECTORIES):
        found |= finder.find(os.path.join(config_dir, name), f".claude/{name}")
    above = os.path.dirname(project)
    while protected.lies_in(above, home):
        for name in ABOVE:
            path = os.path.join(above, name)
            found |= finder.find(path, os.path.relpath(path, home))
        above = os.path.dirname(above)
    return found


def memory_originals(
    finder: Finder,
    config_dir: str,
    cwds: tuple[str, ...],
    host_state: Mapping[str, Any],
    is_ours: Callable[[str], bool],
) -> dict[str, Original]:
    """What Claude noted down on the host about these directories, unless another directory that
    it knows has the same name there.

    is_ours: whether conversations of this project, and no others, lie under a name.
    """
    known = host_state.get("projects")
    names = [name for name in known if isinstance(name, str)] if isinstance(known, dict) else []
    found: dict[str, Original] = {}
    for cwd in cwds:
        wanted = slug(cwd)
        is_shared = any(slug(one) == wanted for one in names if one != cwd)
        if not is_shared and (cwd in names or is_ours(wanted)):
            path = os.path.join(config_dir, "projects", wanted, "memory")
            found |= finder.find(path, f".claude/projects/{wanted}/memory")
    return found
