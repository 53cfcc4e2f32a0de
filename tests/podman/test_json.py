"""What every verb prints with --json is what docs/reference/json.md says, field by field."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from brokering import Api, Wire

from .cages import CAGEWRAP, IMAGE, Cage, podman

PAGE = (Path(__file__).resolve().parents[2] / "docs/reference/json.md").read_text()
TYPES: dict[str, tuple[type, ...]] = {
    "text": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "list": (list,),
    "object": (dict,),
}
Fields = dict[str, str]


def documented() -> dict[str, Fields]:
    """By verb: its fields and the first word of their types."""
    found: dict[str, Fields] = {}
    for section in PAGE.split("\n## ")[1:]:
        heading, _, text = section.partition("\n")
        fields = dict(re.findall(r"^\| `([^`]+)` \| (\w+)", text, re.MULTILINE))
        for base in re.findall(r"^As `([^`]+)`, and:", text, re.MULTILINE):
            fields = found[base] | fields
        for verb in re.findall(r"`([^`]+)`", heading) or [heading]:
            found[verb] = fields
    return found


FIELDS = documented()
EVERY = FIELDS.pop("Every object")


def leaves(value: Any, fields: Fields, path: str = "") -> Iterator[tuple[str, Any]]:
    """Each field of a document by the name it has on the page, as deep as the page goes."""
    if fields.get(path) not in ("any", "object"):
        if isinstance(value, dict):
            for key, one in value.items():
                below = f"{path}.{key}" if path else key
                if not any(name.startswith(below) for name in fields):
                    below = f"{path}.NAME"
                yield from leaves(one, fields, below)
            return
        if isinstance(value, list) and path not in fields:
            for one in value:
                yield from leaves(one, fields, path + "[]")
            return
    yield path, value


def check(document: dict[str, Any], verb: str) -> set[str]:
    """Every printed field is documented with its type. Returns which were printed."""
    fields = EVERY | FIELDS[verb]
    printed = set()
    for path, value in leaves(document, fields):
        assert path in fields, f"{verb}: {path} is not on the page"
        kind = fields[path]
        if kind != "any":
            is_right = isinstance(value, TYPES[kind])
            is_right &= isinstance(value, bool) == (kind == "boolean")
            assert is_right, f"{verb}: {path} is {value!r}, not {kind}"
        printed.add(path)
    return printed


class Verbs:
    """Runs verbs in a place, and remembers which fields each has printed."""

    def __init__(self, cage: Cage) -> None:
        self.cage = cage
        self.printed: dict[str, set[str]] = {}

    def run(self, words: str, documented_as: str = "", code: int = 0) -> dict[str, Any]:
        done = subprocess.run(
            [CAGEWRAP, *words.split(), "--json"],
            cwd=self.cage.project, env=self.cage.env, input=b"sk-ant-api03-PLANTED",
            capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == code, (words, done.stdout, done.stderr)
        document: dict[str, Any] = json.loads(done.stdout)
        verb = documented_as or words
        self.printed.setdefault(verb, set()).update(check(document, verb))
        return document


@pytest.fixture
def api() -> Iterator[Api]:
    def talk(wire: Wire) -> None:
        wire.body(wire.head())
        wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")

    with Api(talk) as server:
        yield server


def give_broker(cage: Cage, api: Api) -> None:
    (cage.place.root / "key").write_text("planted")
    (cage.place.root / "key").chmod(0o600)
    (cage.place.config_home / "cagewrap.toml").write_text(
        f'[login.mine]\nbase_url = "http://127.0.0.1:{api.port}"\npaths = ["GET /x"]\n'
        f'env = {{ MINE = "{{url}}" }}\ntoken_file = "{cage.place.root}/key"\n'
    )


ASK = 'import os, urllib.request as u; print(u.urlopen(os.environ["MINE"] + "/x").status)'


def test_every_verb_prints_what_is_documented(cage: Cage, api: Api) -> None:
    verbs = Verbs(cage)
    verbs.run("config")
    verbs.run("config --path")
    verbs.run("shim claude", "shim")
    verbs.run("doctor --no-probe", "doctor")
    verbs.run("logs", code=120)

    give_broker(cage, api)
    assert cage.text("python3", "-c", ASK) == "200\n"
    cage.text("sh", "-c", "echo {} >.mcp.json; echo {} >.envrc; touch /opt/installed; sleep 1")
    verbs.run("port . 18400:80", "port")
    verbs.run("ls")
    verbs.run("ls --size")
    verbs.run("review")
    verbs.run("review --accept .mcp.json", "review --accept")
    verbs.run("review --drop .envrc", "review --drop")
    verbs.run("logs")

    # `podman load` of 4.3 wants a runroot in a storage.conf that XDG_CONFIG_HOME leads to.
    del cage.env["XDG_CONFIG_HOME"]
    verbs.run("image from-session . localhost/json-session:1", "image from-session")
    podman("rmi", "localhost/json-session:1")
    verbs.run("recreate")
    verbs.run("stop")
    verbs.run("take-back")
    verbs.run("login")
    verbs.run("login status")
    verbs.run("logout")
    verbs.run("rm")

    cage.text("true")
    verbs.run("stop")
    shutil.rmtree(cage.project)
    cage.project = cage.place.root
    verbs.run("gc")
    assert_all_printed(verbs, without={"image build", "image show", "image ls", "image rm"})


def test_every_verb_of_images_prints_what_is_documented(
    make_cage: Callable[..., Cage], tmp_path: Path
) -> None:
    verbs = Verbs(make_cage())
    tar = tmp_path / "root.tar"
    podman("create", "--name", "json-root", IMAGE, "true")
    assert podman("export", "--output", str(tar), "json-root").returncode == 0
    podman("rm", "json-root")
    verbs.run(f"image build --name localhost/json:1 --from {tar}", "image build")
    verbs.run("image show localhost/json:1", "image show")
    verbs.run("image ls")
    verbs.run("image rm localhost/json:1", "image rm")
    only = ("image build", "image show", "image ls", "image rm")
    assert_all_printed(verbs, without=set(FIELDS) - set(only))


def assert_all_printed(verbs: Verbs, without: set[str]) -> None:
    """Nothing is on the page that no verb prints."""
    # The same code as another verb, and one that needs the package archives.
    without = without | {"image refresh"}
    for verb, fields in FIELDS.items():
        if verb not in without:
            missing = {name for name in fields if name not in verbs.printed[verb]}
            assert not missing, f"{verb} does not print {missing}"
