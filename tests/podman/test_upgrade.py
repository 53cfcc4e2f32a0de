"""Another version of cagewrap is installed while cages run: upgrades and downgrades."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from brokering import Api, Wire

from .cages import (
    GONE_S,
    IDENTITIES,
    Cage,
    command_line,
    is_alive,
    link,
    read_json,
    seconds_until,
    wait_until,
)
from .installs import NEW, OLD, SPEAKS_5, SPEAKS_5_ALONE, Install
from .terminals import Terminal
from .test_broker import ASK, brokers, configure, give_token
from .test_login import ACCESS, FILE, log_in
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


START_SERVER = (
    "sh",
    "-c",
    'setsid python3 -c "$0" 127.0.0.1 3000 >/dev/null 2>&1 & exec sleep 0.3',
)


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


def busy(cage: Cage) -> subprocess.Popen[bytes]:
    """An agent at work; it ends with its stdin."""
    process = cage.popen(
        "sh", "-c", "echo begun; cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    with process:
        process.communicate(b"", timeout=10)
    assert process.returncode == 0


BACKGROUND = """
import os, urllib.request
url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
with open("out", "w", buffering=1) as out:
    for _ in range(2):
        answer = urllib.request.urlopen(url, b"{}")
        out.write(answer.readline().decode())
        out.write(answer.readline().decode())
"""


def test_an_answer_under_way_and_the_next_come_through_the_broker(
    cage: Cage, upgrade: Change
) -> None:
    go_on = threading.Event()

    def talk(wire: Wire) -> None:
        while True:
            try:
                wire.body(wire.head())
            except (EOFError, OSError):
                return
            wire.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n1\n\r\n")
            go_on.wait(10)
            wire.send(b"2\r\n2\n\r\n0\r\n\r\n")

    with Api(talk) as api:
        configure(cage, api)
        give_token(cage)
        out = cage.project / "out"
        script = 'setsid python3 -c "$0" >/dev/null 2>&1 & until [ -s out ]; do sleep 0.1; done'
        cage.text("sh", "-c", script, BACKGROUND)
        assert out.read_text() == "1\n"
        [broker] = brokers()
        upgrade.do()
        assert cage.text("echo", "new") == "new\n"
        assert keeper_version(cage) == NEW
        assert out.read_text() == "1\n"
        go_on.set()
        assert wait_until(lambda: out.read_text() == "1\n2\n1\n2\n", 5), (
            cage.log(),
            out.read_text(),
        )
        assert wait_until(lambda: len(brokers()) == 1 and broker not in brokers(), 5)


def test_a_keeper_whose_files_are_gone_starts_a_broker_of_who_asks(
    cage: Cage, upgrade: Change, tmp_path: Path
) -> None:
    def talk(wire: Wire) -> None:
        wire.body(wire.head())
        wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    ask = ("python3", "-c", ASK, "ANTHROPIC_BASE_URL", "/v1/messages", "x")
    with Api(talk) as api:
        configure(cage, api)
        give_token(cage)
        process = busy(cage)
        upgrade.do()
        shutil.rmtree(tmp_path / "one")
        assert json.loads(cage.text(*ask)) == {"status": 200, "body": "ok"}
        [broker] = brokers()
        os.kill(broker, signal.SIGKILL)
        assert json.loads(cage.text(*ask)) == {"status": 200, "body": "ok"}
        assert str(tmp_path / "other") in command_line(brokers()[0])
        assert keeper_version(cage) == OLD
        end(process)


WRITES = """
n=0
while sleep 0.01; do
    n=$((n+1)); echo $n > count
    if [ -e go ] && [ ! -e done ]; then
        for file in .mcp.json .vscode/tasks.json .git/hooks/pre-commit; do echo run >$file; done
        cat $0 >login
        touch done
    fi
done
"""
SLOW = {"keeper/main.py": ("    left = read_inh", "    time.sleep(1.5)\n    left = read_inh")}


@pytest.mark.parametrize("user", IDENTITIES)
def test_nothing_in_the_background_is_unguarded_for_a_moment(
    make_cage: Callable[..., Cage], tmp_path: Path, user: str
) -> None:
    cage = make_cage("--user", user)
    Install(tmp_path / "one").put(OLD).use(cage)
    log_in(cage)
    subprocess.run(["git", "init", "-q", cage.project], check=True)
    words = ("sh", "-c", 'setsid sh -c "$@" >/dev/null 2>&1 & sleep 0.2', "sh", WRITES, FILE)
    cage.text(*words, timeout_s=110)
    count = cage.project / "count"
    Install(tmp_path / "other").put(NEW, SLOW).use(cage)
    with cage.popen("echo", "new", stdout=subprocess.PIPE) as process:
        keeper = cage.keeper()
        assert wait_until(lambda: str(tmp_path / "other") in command_line(keeper), 5)
        held_at = count.read_bytes()
        time.sleep(0.3)
        assert count.read_bytes() == held_at, "it is held up while no keeper looks"
        assert process.communicate(timeout=10)[0] == b"new\n"
    assert keeper_version(cage) == NEW
    assert wait_until(lambda: count.read_bytes() not in (b"", held_at), 2), "and goes on after"
    (cage.project / "go").touch()
    assert wait_until((cage.project / "done").exists, 5)
    assert wait_until(lambda: not (cage.project / ".mcp.json").exists(), 1), cage.log()
    assert not (cage.project / ".vscode/tasks.json").exists()
    assert not (cage.project / ".git/hooks/pre-commit").exists()
    assert ACCESS in (cage.project / "login").read_text(), "the login is still there"
    assert "held back: '.mcp.json'" in cage.log()


def open_files(pid: int) -> list[str]:
    """What a process has open, modules left out that it is just importing."""
    found = [link(pid, f"fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    return sorted(path for path in found if not path.endswith((".py", ".pyc")))


def test_back_and_forth_costs_nothing_that_lasts(cage: Cage, tmp_path: Path) -> None:
    installs = [Install(tmp_path / version).put(version) for version in (OLD, NEW)]
    cage.text("sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & sleep 0.1")
    pids, kept = cage.inside_pids(), []
    for at in range(4):
        installs[at % 2].use(cage)
        cage.text("true")
        assert keeper_version(cage) == (OLD, NEW)[at % 2]
        if at % 2:
            time.sleep(0.6)  # until the process that watches the project has been started again
            kept.append(open_files(cage.keeper()))
    assert cage.inside_pids() == pids
    assert len(kept[1]) <= len(kept[0]), "\n".join(["", *kept[0], "", *kept[1]])


def test_a_keeper_that_is_killed_while_it_goes_on_loses_nothing(
    cage: Cage, upgrade: Change, tmp_path: Path
) -> None:
    cage.text(
        "sh", "-c", "touch /kept; echo home > ~/kept; setsid sleep 1000 >/dev/null 2>&1 & sleep 0.2"
    )
    [sleeper] = cage.inside_pids()
    container = cage.state()["container_id"]
    Install(tmp_path / "other").put(NEW, SLOW).use(cage)
    with cage.popen("sh", "-c", "ls /kept; cat ~/kept", stdout=subprocess.PIPE) as process:
        keeper = cage.keeper()
        assert wait_until(lambda: str(tmp_path / "other") in command_line(keeper), 5)
        assert is_alive(sleeper)
        os.kill(keeper, signal.SIGKILL)
        out, _ = process.communicate(timeout=10)
    assert (process.returncode, out) == (0, b"/kept\nhome\n")
    assert cage.state()["container_id"] == container
    assert cage.keeper() not in (0, keeper)
    assert not is_alive(sleeper), "nothing runs that no keeper has looked after"


def test_a_keeper_that_is_told_to_stop_while_it_goes_on_stops(
    cage: Cage, upgrade: Change, tmp_path: Path
) -> None:
    cage.text("true")
    Install(tmp_path / "other").put(NEW, SLOW).use(cage)
    init = cage.init()
    with cage.popen("sleep", "1000") as process:
        keeper = cage.keeper()
        assert wait_until(lambda: str(tmp_path / "other") in command_line(keeper), 5)
        os.kill(keeper, signal.SIGTERM)
        assert process.wait(10) != 0
    assert wait_until(lambda: not is_alive(keeper), 5)
    assert not is_alive(init)
    assert cage.log().endswith("leaves\n")
    assert cage.text("echo", "next") == "next\n"


def test_a_version_that_is_not_spoken_is_heard_once_the_keeper_is_idle(
    cage: Cage, tmp_path: Path
) -> None:
    Install(tmp_path / "one").put(OLD).use(cage)
    process = busy(cage)
    Install(tmp_path / "other").put(NEW, SPEAKS_5_ALONE).use(cage)
    done = cage.run("true")
    assert done.code == 121
    assert b"it speaks 4 to 4, this one 5 to 5" in done.err
    assert f"cagewrap stop {cage.name()}".encode() in done.err
    init = cage.init()
    end(process)
    assert cage.text("echo", "new") == "new\n"
    assert cage.init() == init


NEWER_KEEPERS = {"keeper/inheritance.py": ("FORMATS = (1,)", "FORMATS = (2,)")}


def test_a_keeper_that_cannot_go_on_serves_who_it_understands(cage: Cage, tmp_path: Path) -> None:
    Install(tmp_path / "one").put(OLD).use(cage)
    cage.text("true")
    init = cage.init()
    Install(tmp_path / "other").put(NEW, {**SPEAKS_5, **NEWER_KEEPERS}).use(cage)
    for _ in range(2):
        done = cage.run("echo", "new")
        assert (done.code, done.out, done.err) == (0, b"new\n", b"")
    assert (keeper_version(cage), cage.init()) == (OLD, init)
    assert "it can go on from [2]" in cage.log()


def test_a_keeper_that_cannot_go_on_lets_the_cage_start_anew(cage: Cage, tmp_path: Path) -> None:
    Install(tmp_path / "one").put(OLD).use(cage)
    cage.text("sh", "-c", "touch /kept; echo home > ~/kept")
    container = cage.state()["container_id"]
    Install(tmp_path / "other").put(NEW, {**SPEAKS_5_ALONE, **NEWER_KEEPERS}).use(cage)
    done = cage.run("sh", "-c", "ls /kept; cat ~/kept")
    assert (done.code, done.out) == (0, b"/kept\nhome\n"), done
    assert b"started anew" in done.err
    assert (cage.state()["container_id"], keeper_version(cage)) == (container, NEW)


def test_a_half_installed_keeper_is_not_gone_on_as(cage: Cage, tmp_path: Path) -> None:
    Install(tmp_path / "one").put(OLD).use(cage)
    cage.text("true")
    keeper = cage.keeper()
    broken = {"keeper/loop.py": ("class Loop:", "class Loop")}
    Install(tmp_path / "one").put(NEW, broken)
    assert cage.text("echo", "new") == "new\n"
    assert (cage.keeper(), keeper_version(cage)) == (keeper, OLD)
    assert "SyntaxError" in cage.log()


@pytest.mark.parametrize("of_terminal", [True, False], ids=["terminal", "stderr-on-a-terminal"])
def test_a_terminal_is_spoken_of_in_an_older_version(
    cage: Cage, upgrade: Change, *, of_terminal: bool
) -> None:
    process = busy(cage)
    upgrade.do()
    words = ["sh", "-c", "echo new; read line; echo got $line"]
    if not of_terminal:
        words = ["sh", "-c", '"$@" | cat', "sh", *map(str, cage.command()), *words]
    else:
        words = [*map(str, cage.command()), *words]
    terminal = Terminal(words, env=cage.env, cwd=cage.project)
    try:
        terminal.until(b"new")
        terminal.type(b"line\n")
        terminal.until(b"got line")
        assert terminal.code() == 0
    finally:
        terminal.close()
    assert keeper_version(cage) == OLD
    end(process)


def test_sessions_are_shared_by_versions(cage: Cage, change: Change, tmp_path: Path) -> None:
    cage.text("sh", "-c", "touch /kept; echo home > ~/kept")
    name = cage.name()
    record = cage.cages_dir / name / "record.json"
    record.write_text(json.dumps({**cage.record(), "of_a_later_version": {"a": [1]}}))
    cage.stop()
    change.do()
    [found] = json.loads(cage.cagewrap("ls", "--json").out)["sessions"]
    assert (found["name"], found["status"]) == (name, "stopped")
    seen = cage.text("sh", "-c", "ls /kept; cat ~/kept", flags=("--idle-stop", "1h"))
    assert seen == "/kept\nhome\n"
    assert read_json(record)["idle_stop_s"] == 3600, "it was written anew"
    assert read_json(record)["of_a_later_version"] == {"a": [1]}
    assert cage.cagewrap("rm", name).code == 0
    assert cage.names() == []


def test_a_session_that_is_not_understood_is_left_alone(cage: Cage) -> None:
    cage.text("sh", "-c", "echo home > ~/kept")
    cage.stop()
    record = cage.cages_dir / cage.name() / "record.json"
    text = json.dumps({**cage.record(), "format": 2})
    record.write_text(text)
    done = cage.run("true")
    assert done.code == 120
    assert b"another version of cagewrap" in done.err
    assert b"another version of cagewrap" in cage.cagewrap("ls").err
    cage.cagewrap("gc")
    assert record.read_text() == text
    assert (cage.private_home() / "kept").read_text() == "home\n"


def test_ls_and_doctor_name_a_keeper_of_another_build(cage: Cage, upgrade: Change) -> None:
    process = busy(cage)
    upgrade.do()
    [found] = json.loads(cage.cagewrap("ls", "--json").out)["sessions"]
    assert (found["keeper"], found["is_keeper_other"], found["messages"]) == (OLD, True, 1)
    assert f"another build (cagewrap {OLD}), 1 agent at work" in cage.cagewrap("ls").err.decode()
    checks = json.loads(cage.cagewrap("doctor", "--json", "--no-probe").out)["checks"]
    [check] = [one for one in checks if one["id"] == "keepers"]
    assert check["status"] == "warn"
    assert f"{cage.name()} (cagewrap {OLD}, 1 at work)" in check["found"]
    end(process)
    cage.text("true")
    assert b"another build" not in cage.cagewrap("ls").err
