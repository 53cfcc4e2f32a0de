"""Mode `access`: the real claude in cages, logged in with a token that the host renews."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import places
import pytest
from driving import ask, connected, drive
from mock_api import MockApi
from mock_login import ACCESS, REFRESH, MockLogin, credentials

QUESTION = ("-p", "hello")


@pytest.fixture
def login(tmp_path: Path) -> Iterator[MockLogin]:
    with MockLogin(tmp_path / "certificates") as server:
        yield server


@pytest.fixture
def env(env: dict[str, str], login: MockLogin) -> dict[str, str]:
    """A machine with a claude, and no login but cagewrap's own."""
    del env["ANTHROPIC_API_KEY"]
    programs = Path(env["HOME"]) / ".local/bin"
    programs.mkdir(parents=True)
    (programs / "claude").symlink_to(places.CLAUDE)
    return env | login.env


@pytest.fixture
def store(env: dict[str, str]) -> Path:
    path = Path(env["HOME"]) / ".local/state/cagewrap/login/claude"
    path.mkdir(parents=True)
    for one in (path, *path.parents[:2]):
        one.chmod(0o700)
    return path


def put(store: Path, text: str) -> Path:
    file = store / ".credentials.json"
    file.write_text(text)
    file.chmod(0o600)
    return file


def values(file: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(file.read_text())["claudeAiOauth"]
    return found


def keeper_pid(caged: places.Caged) -> int:
    [state] = Path(caged.env["HOME"]).glob(".local/state/cagewrap/cages/*/state.json")
    pid: int = json.loads(state.read_text())["keeper_pid"]
    return pid


def said(done: subprocess.CompletedProcess[bytes]) -> str:
    return done.stderr.decode()


def test_a_login_that_is_good_is_used_as_it_is(
    caged: places.Caged, api: MockApi, login: MockLogin, store: Path
) -> None:
    file = put(store, credentials(3600))
    before = file.read_bytes()
    done = caged.claude(*QUESTION)
    assert (done.returncode, said(done)) == (0, "")
    assert api.messages[-1].authorization == f"Bearer {ACCESS}0"
    assert "oauth" in api.messages[-1].beta
    assert login.seen == []
    assert file.read_bytes() == before
    inside = json.loads(caged.run("cat", "/run/cagewrap/login/.credentials.json").stdout)
    assert inside == {
        "claudeAiOauth": {**values(file), "refreshToken": None},
    }
    assert caged.run("sh", "-c", "echo > /run/cagewrap/login/x").returncode != 0


def test_a_message_waits_for_a_login_that_has_ended(
    caged: places.Caged, api: MockApi, login: MockLogin, store: Path
) -> None:
    file = put(store, credentials(-10))
    done = caged.claude(*QUESTION)
    assert (done.returncode, said(done)) == (0, "")
    assert api.messages[-1].authorization == f"Bearer {ACCESS}1"
    assert login.posts == 1
    assert {request.route for request in api.requests} >= {"/v1/messages"}
    assert values(file)["refreshToken"] == f"{REFRESH}1"
    assert values(file)["subscriptionType"] == "max"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    left = {path.name for path in store.iterdir()}
    assert left == {".credentials.json", "status.json", "lock"}


def test_three_cages_ask_for_one_token(
    caged: places.Caged, api: MockApi, login: MockLogin, store: Path
) -> None:
    login.delay_s = 2.0
    names = ("a", "b", "c")
    put(store, credentials(3600))
    for name in names:  # three keepers
        place = places.Caged((*caged.prefix[:-1], "--session", name, "--"), *rest(caged))
        assert place.run("true").returncode == 0
    put(store, credentials(-10))

    def message(name: str) -> subprocess.CompletedProcess[bytes]:
        place = places.Caged((*caged.prefix[:-1], "--session", name, "--"), *rest(caged))
        return place.claude("-p", f"hello from {name}")

    try:
        with ThreadPoolExecutor(3) as pool:
            done = list(pool.map(message, names))
        assert [(one.returncode, said(one)) for one in done] == [(0, "")] * 3
        assert login.posts == 1
        assert {one.authorization for one in api.messages} == {f"Bearer {ACCESS}1"}
    finally:
        for name in names:
            subprocess.run(
                [places.CAGEWRAP, "rm", "--force", name],
                env=os.environ | caged.env,
                cwd=caged.project,
                check=True,
                capture_output=True,
            )
        caged.run("true")  # for the fixture, which removes it


def rest(caged: places.Caged) -> tuple[Path, Path, dict[str, str]]:
    return caged.shim, caged.project, caged.env


def test_a_running_message_gets_the_renewed_token(
    caged: places.Caged, api: MockApi, login: MockLogin, store: Path
) -> None:
    file = put(store, credentials(3600))

    async def work() -> None:
        async with connected(caged) as client:
            await ask(client, "one")
            assert api.messages[-1].authorization == f"Bearer {ACCESS}0"
            put(store, credentials(300))  # as when most of its time has passed
            deadline = time.monotonic() + 20
            while values(file)["accessToken"] != f"{ACCESS}1":
                assert time.monotonic() < deadline
                time.sleep(0.1)
            time.sleep(1.0)
            turn = await ask(client, "@@history")
            assert turn.texts[-1] >= "HISTORY 3"
            assert api.messages[-1].authorization == f"Bearer {ACCESS}1"

    drive(work())
    assert login.posts == 1


def test_a_login_that_was_ended_is_told_once_and_never_blanked(
    caged: places.Caged, api: MockApi, login: MockLogin, store: Path
) -> None:
    login.tokens.clear()
    file = put(store, credentials(-10))
    before = file.read_bytes()
    done = caged.claude(*QUESTION)
    assert done.returncode == 1
    assert said(done).count("cagewrap:") == 1
    assert "cannot be renewed" in said(done)
    assert "cagewrap login" in said(done)
    assert b"/login" in done.stdout  # Claude's own words for it
    again = caged.claude(*QUESTION)
    assert again.returncode == 1
    assert said(again) == ""
    assert login.posts == 1
    assert file.read_bytes() == before
    put(store, credentials(3600, number=7))  # a new login is taken at once
    done = caged.claude(*QUESTION)
    assert (done.returncode, said(done)) == (0, "")
    assert api.messages[-1].authorization == f"Bearer {ACCESS}7"


def test_a_login_that_will_end_is_told_while_it_lives(
    caged: places.Caged, api: MockApi, login: MockLogin, store: Path
) -> None:
    login.tokens.clear()
    put(store, credentials(300))
    done = caged.claude(*QUESTION)  # the renewal goes on beside it
    assert done.returncode == 0
    state = store / "status.json"
    assert places.wait_until(lambda: state.exists() and '"dead"' in state.read_text(), 20)
    said_again = said(caged.claude(*QUESTION)) + said(caged.claude(*QUESTION))
    assert said_again.count("ends within minutes and cannot be renewed") == 1
    assert api.messages[-1].authorization == f"Bearer {ACCESS}0"
    assert login.posts == 1


def test_a_token_that_still_works_is_used_while_renewing_fails(
    caged: places.Caged, api: MockApi, login: MockLogin, store: Path
) -> None:
    login.status = 500
    file = put(store, credentials(-10))
    before = file.read_bytes()
    done = caged.claude(*QUESTION)
    assert done.returncode == 0
    assert "could not be renewed now" in said(done)
    assert api.messages[-1].authorization == f"Bearer {ACCESS}0"
    assert file.read_bytes() == before
    began = time.monotonic()
    again = caged.claude(*QUESTION)  # and nobody waits again so soon
    assert (again.returncode, said(again)) == (0, "")
    assert time.monotonic() - began < 10


def test_an_answer_that_takes_long_is_waited_for(
    caged: places.Caged, api: MockApi, login: MockLogin, store: Path
) -> None:
    """Claude would leave after 8 s if it were given a short command, and lose the login."""
    login.delay_s = 12.0
    put(store, credentials(-10))
    done = caged.claude(*QUESTION)
    assert (done.returncode, said(done)) == (0, "")
    assert api.messages[-1].authorization == f"Bearer {ACCESS}1"
    assert login.posts == 1


@pytest.mark.parametrize("who", ["keeper", "renewal"])
def test_killed_while_the_login_is_renewed(
    caged: places.Caged, api: MockApi, login: MockLogin, store: Path, who: str
) -> None:
    login.delay_s = 5.0
    put(store, credentials(3600))
    assert caged.run("true").returncode == 0
    file = put(store, credentials(-10))
    with ThreadPoolExecutor(1) as pool:
        message = pool.submit(caged.claude, *QUESTION)
        assert places.wait_until(lambda: login.posts == 1, 20)
        [renewal] = [
            pid for pid in places.all_pids() if places.arguments(pid)[-2:] == ["refresh", ""]
        ][:1]
        os.kill(keeper_pid(caged) if who == "keeper" else renewal, signal.SIGKILL)
        message.result()
    if who == "keeper":
        assert places.wait_until(lambda: values(file)["accessToken"] == f"{ACCESS}1", 30)
    done = caged.claude(*QUESTION)
    assert done.returncode == 0, said(done)
    assert api.messages[-1].authorization == f"Bearer {ACCESS}1"
    assert login.posts == 1


def test_no_claude_to_renew_with(
    caged: places.Caged, api: MockApi, login: MockLogin, store: Path
) -> None:
    (Path(caged.env["HOME"]) / ".local/bin/claude").unlink()
    put(store, credentials(-10))
    done = caged.claude(*QUESTION)
    assert "there is no claude on this machine" in said(done)
    assert "cagewrap login --token" in said(done)
    assert login.posts == 0


def test_no_login_at_all_is_said_once(caged: places.Caged, api: MockApi) -> None:
    done = caged.claude(*QUESTION)
    assert done.returncode == 1
    assert (
        said(done)
        == "cagewrap: not logged in: there is no login and no token; `cagewrap login` makes one\n"
    )
    assert said(caged.claude(*QUESTION)) == ""
