"""Another version of cagewrap is installed while cages run: upgrades and downgrades."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .cages import GONE_S, Cage, command_line, is_alive, seconds_until, wait_until
from .installs import NEW, OLD, SPEAKS_5, SPEAKS_5_ALONE, Install
from .test_ports import SERVER, free_port, get

WAYS = [(where, way) for where in ("beside", "in-place") for way in ("up", "down")]
LONG = ("sh", "-c", "echo begun; read line; echo got $line; head -c 200000 /dev/zero; exit 7")


class Change:
    """From one install to another, or to another version in the same place."""

    def __init__(self, cage: Cage, root: Path, where: str, way: str) -> None:
        versions = ((OLD, {}), (NEW, SPEAKS_5))
        self.before, self.after = versions if way == "up" else versions[::-1]
        self._cage, self._root, self._where = cage, root, where
        Install(root / "one").put(*self.before).use(cage)

    def do(self) -> None:
        name = "one" if self._where == "in-place" else "other"
        Install(self._root / name).put(*self.after).use(self._cage)

    @property
    def versions(self) -> tuple[str, str]:
        return self.before[0], self.after[0]


@pytest.fixture(params=WAYS, ids="-".join)
def change(request: pytest.FixtureRequest, cage: Cage, tmp_path: Path) -> Change:
    return Change(cage, tmp_path, *request.param)


@pytest.fixture
def upgrade(cage: Cage, tmp_path: Path) -> Change:
    return Change(cage, tmp_path, "beside", "up")


def keeper_version(cage: Cage) -> str:
    [found] = json.loads(cage.cagewrap("ls", "--json").out)["sessions"]
    return str(found["keeper"])


def test_a_running_message_ends_well_and_new_ones_work_at_once(cage: Cage, change: Change) -> None:
    before, after = change.versions
    with cage.popen(*LONG, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        keeper, init = cage.keeper(), cage.init()
        change.do()
        began = time.monotonic()
        assert cage.text("echo", "new") == "new\n"
        assert time.monotonic() - began < 2
        assert keeper_version(cage) == before, "it stays while a message runs"
        out, _ = process.communicate(b"bytes\n", timeout=10)
    assert out == b"got bytes\n" + bytes(200000)
    assert process.returncode == 7
    assert wait_until(lambda: keeper_version(cage) == after, 5), cage.log()
    assert (cage.keeper(), cage.init()) == (keeper, init)
    assert cage.text("echo", "newer") == "newer\n"


def test_what_runs_on_dies_with_its_shim(cage: Cage, upgrade: Change) -> None:
    with cage.popen(*LONG, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        upgrade.do()
        assert cage.text("echo", "new") == "new\n"
        process.kill()
        assert seconds_until(lambda: not cage.inside_pids(), GONE_S) < GONE_S
    assert wait_until(lambda: keeper_version(cage) == NEW, 5), cage.log()


START_SERVER = ("sh", "-c", "setsid python3 -c \"$0\" 127.0.0.1 3000 >/dev/null 2>&1 & exec sleep 0.3")


def test_the_background_and_ports_go_on(cage: Cage, change: Change) -> None:
    outside = free_port()
    assert cage.run(*START_SERVER, SERVER, flags=("--publish", f"{outside}:3000")).code == 0
    assert get(outside) == b"from the cage /x"
    keeper, init, pids = cage.keeper(), cage.init(), cage.inside_pids()
    change.do()
    began = time.monotonic()
    assert cage.text("echo", "new", flags=("--publish", f"{outside}:3000")) == "new\n"
    assert time.monotonic() - began < 3
    assert keeper_version(cage) == change.versions[1]
    assert (cage.keeper(), cage.init(), cage.inside_pids()) == (keeper, init, pids)
    assert get(outside) == b"from the cage /x"
    assert {stat for pid in pids if (stat := Path(f"/proc/{pid}/cgroup").read_text())}
    change.do()


def test_twenty_at_once(cage: Cage, change: Change) -> None:
    cage.text("true")
    keeper, init = cage.keeper(), cage.init()
    change.do()
    began = time.monotonic()
    shims = [cage.popen("echo", str(at), stdout=subprocess.PIPE) for at in range(20)]
    outs = []
    for shim in shims:
        with shim:
            outs.append(shim.communicate(timeout=20)[0].decode())
    assert [int(out) for out in outs] == list(range(20))
    assert time.monotonic() - began < 9
    assert (cage.keeper(), cage.init()) == (keeper, init)
    assert keeper_version(cage) == change.versions[1]
