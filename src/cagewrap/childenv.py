"""What of an environment children of ours get."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from cagewrap.waypoints import leads_through

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


def child_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The environment for a child of ours: the owner's, less what belongs to a frozen bundle and
    less the entries of PATH that mean another directory wherever one stands."""
    kept = {name: value for name, value in env.items() if not name.startswith("_PYI_")}
    original = kept.pop("LD_LIBRARY_PATH_ORIG", None)
    if original is not None:
        kept["LD_LIBRARY_PATH"] = original
    elif "_PYI_APPLICATION_HOME_DIR" in env:
        kept.pop("LD_LIBRARY_PATH", None)
    return kept | {"PATH": search_path(env)}


def search_path(env: Mapping[str, str], projects: Collection[str] = ()) -> str:
    """The owner's PATH without what an agent can write to.

    An empty or relative entry (`.`, `bin`) would find what an agent has put into the project; so
    would one that lies in a project (`node_modules/.bin`, `.venv/bin`), or that leads through a
    symlink in one, whatever it leads to now. projects: real paths.
    """
    entries = (entry for entry in env.get("PATH", "").split(":") if entry.startswith("/"))
    kept = [entry for entry in entries if not leads_through(entry, projects)]
    return ":".join(kept) or DEFAULT_PATH
