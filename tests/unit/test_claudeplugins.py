"""Which parts of an owner's directory a plugin needs, and no more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cagewrap.claudeplugins import local_marketplaces, wanted_parts, with_copies


def write(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


@pytest.mark.parametrize(
    ("source", "root", "part"),
    [
        ("./one", None, "one"),
        ("one", "./plugins", "plugins/one"),
        ("./", None, ""),
        ("../../etc", None, None),
        ("..", None, None),
        ("/etc", None, None),
        ("x", "/etc", None),
        ("./a/../../b", None, None),
        ({"source": "github", "repo": "x/y"}, None, None),
        (["."], None, None),
    ],
)
def test_only_installed_plugins_in_the_directory(
    tmp_path: Path, source: object, root: str | None, part: str | None
) -> None:
    plugins, market = tmp_path / "plugins", tmp_path / "market"
    write(plugins / "installed_plugins.json", {"plugins": {"one@birds": []}})
    listed = [{"name": "one", "source": source}, {"name": "two", "source": "./two"}, "x"]
    manifest = {"plugins": listed, "metadata": {"pluginRoot": root}}
    write(market / ".claude-plugin/marketplace.json", manifest)
    found = wanted_parts(str(plugins), "birds", str(market))
    extra = [] if part is None else [part]
    assert found == ([""] if part == "" else [".claude-plugin", *extra])


def test_the_list_names_the_copies(tmp_path: Path) -> None:
    here = str(tmp_path / "market")
    Path(here).mkdir()
    directory = {"source": {"source": "directory", "path": here}, "installLocation": here}
    known = {
        "birds": directory,
        "../up": directory,
        "gone": {**directory, "installLocation": "/nowhere"},
        "github": {"source": {"source": "github"}, "installLocation": here},
        "odd": 1,
    }
    write(tmp_path / "known_marketplaces.json", known)
    assert local_marketplaces(str(tmp_path), lambda _path: False) == {}
    found = local_marketplaces(str(tmp_path), lambda _path: True)
    assert found == {"birds": here}
    changed = json.loads(with_copies(json.dumps(known).encode(), found, "/inside"))
    assert changed == known | {"birds": {**directory, "installLocation": "/inside/birds"}}
    assert with_copies(b"{ corrupt", found, "/inside") == b"{ corrupt"
