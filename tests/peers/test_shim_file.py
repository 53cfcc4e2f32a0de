"""One program in the place of the agent's: what harnesses ask of it is answered as Claude would.

The other tests here give harnesses a file of `cagewrap shim` as well, for a program by its path.
Here the agent has its name, and is this machine's.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from driving import Callbacks, ask, connected, drive
from endings import assert_made_by_owner
from mock_api import MockApi
from places import CAGEWRAP, CLAUDE, IMAGE, PEERS, TIMEOUT_S, Caged, make_shim

SOON_S = 3.0
"""What a harness gives a program to say its version. Claude itself takes up to a second."""


@pytest.fixture
def programs() -> tuple[Path, ...]:
    return ()


@pytest.fixture
def bin_dir(env: dict[str, str], tmp_path: Path) -> Path:
    """First on PATH; the agents themselves come after it."""
    installed = Path(env["HOME"]) / ".local/bin"
    installed.mkdir(parents=True)
    (installed / "claude").symlink_to(CLAUDE)
    path = tmp_path / "my bin"
    path.mkdir()
    env["PATH"] = f"{path}:{installed}:{PEERS}/.bin:/usr/bin:/bin"
    return path


@pytest.fixture(params=["file", "symlink"])
def shim(
    request: pytest.FixtureRequest,
    bin_dir: Path,
    env: dict[str, str],
    tmp_path: Path,
    api: MockApi,
    project: Path,
) -> Iterator[Caged]:
    """`claude`, first on PATH, which is cagewrap."""
    path = bin_dir / "claude"
    if request.param == "file":
        flags = ("--image", IMAGE, "--network", "none", "--host-port", str(api.port))
        make_shim(path, "claude", *flags, env=env)
    else:
        path.symlink_to(CAGEWRAP)
        config = tmp_path / "config"
        config.mkdir()
        (config / "containers").symlink_to(Path(env["XDG_CONFIG_HOME"]) / "containers")
        (config / "cagewrap.toml").write_text(
            f'image = "{IMAGE}"\nnetwork = "none"\nhost_port = [{api.port}]\n'
        )
        env["XDG_CONFIG_HOME"] = str(config)
    place = Caged((str(CAGEWRAP), "--"), path, project, env)
    yield place
    place.cagewrap("gc")
    if sessions(place):
        place.cagewrap("rm")


def sessions(place: Caged) -> list[str]:
    done = subprocess.run(
        [CAGEWRAP, "ls", "--json"], env=os.environ | place.env, capture_output=True, check=True
    )
    return [one["name"] for one in json.loads(done.stdout)["sessions"]]


def call(program: str | Path, place: Caged, *args: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [program, *args],
        cwd=place.project,
        env=os.environ | place.env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@pytest.mark.parametrize("word", ["--version", "-v"])
def test_version(shim: Caged, word: str) -> None:
    direct = call(CLAUDE, shim, word)
    assert direct.stdout.endswith(b"(Claude Code)\n")
    began = time.monotonic()
    done = call("claude", shim, word)
    assert time.monotonic() - began < SOON_S
    assert (done.returncode, done.stdout, done.stderr) == (0, direct.stdout, direct.stderr)
    assert sessions(shim) == []


@pytest.mark.parametrize("args", [("auth", "status", "--json"), ("mcp", "list"), ("--help",)])
def test_what_the_cage_answers(shim: Caged, args: tuple[str, ...]) -> None:
    """In the agent's own words: there is no server here and none there, and one login."""
    done = call("claude", shim, *args)
    direct = call(CLAUDE, shim, *args)
    assert (done.returncode, done.stdout, done.stderr) == (0, direct.stdout, direct.stderr)
    assert len(sessions(shim)) == 1


def test_what_is_true_in_the_cage_alone(shim: Caged) -> None:
    added = call("claude", shim, "mcp", "add", "heron", "--", "/bin/true")
    assert added.returncode == 0, added
    assert b"heron" in call("claude", shim, "mcp", "list").stdout
    assert b"heron" not in call(CLAUDE, shim, "mcp", "list").stdout


def test_the_sdk(shim: Caged, callbacks: Callbacks) -> None:
    async def work() -> None:
        async with connected(shim, **callbacks.options()) as client:
            turn = await ask(client, "@@bash echo made inside | tee made.txt")
            assert turn.texts[-1].startswith("RESULT[ok]: made inside")

    drive(work())
    assert_made_by_owner(shim.project / "made.txt")
    assert callbacks.permissions == ["Bash"]
    assert len(sessions(shim)) == 1


@pytest.mark.parametrize(
    ("agent", "word"),
    [("codex", "--version"), ("codex", "-V"), ("opencode", "--version"), ("opencode", "-v"),
     ("pi", "--version"), ("pi", "-v")],
)  # fmt: skip
def test_versions_of_other_agents(
    bin_dir: Path, env: dict[str, str], project: Path, tmp_path: Path, agent: str, word: str
) -> None:
    if agent == "opencode":
        installed = Path(env["HOME"]) / ".local/bin/opencode"
        installed.symlink_to(PEERS / "opencode-linux-x64-baseline/bin/opencode")
    place = Caged((str(CAGEWRAP), "--"), bin_dir / agent, project, env | {"TMPDIR": "/var/tmp"})
    direct = call(agent, place, word)
    make_shim(place.shim, agent, "--image", "localhost/no-such-image", env=env)
    done = call(agent, place, word)
    assert (done.returncode, done.stdout, done.stderr) == (0, direct.stdout, direct.stderr)
    assert direct.stdout + direct.stderr != b""
    assert sessions(place) == []
