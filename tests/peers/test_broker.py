"""Mode `broker`: real agents in cages without a network, with a login that is nowhere inside."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import places
import pytest
from driving import Callbacks, ask, connected, drive, eventually, rest_of_turn
from mock_api import MockApi
from mock_login import ACCESS, MockLogin, credentials
from test_codex import CODEX, FREELY
from test_first_start import Screen, answers, screens, start

__all__ = ("screens",)  # a fixture

KEY = "sk-ant-api03-PLANTED"
OAUTH = "sk-ant-oat01-PLANTED"
CODEX_KEY = "sk-PLANTED-codex"
PORT = 7718
SUBSCRIPTION = {
    "accessToken": OAUTH,
    "refreshToken": "sk-ant-ort01-PLANTED",
    "expiresAt": 4_000_000_000_000,
    "scopes": ["user:inference", "user:profile", "user:sessions:claude_code"],
    "subscriptionType": "max",
    "rateLimitTier": "default_claude_max_20x",
}
LOOK = (
    "@@bash cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline ~/.claude.json /run/cagewrap/login/* "
    "/run/cagewrap/login/*/.credentials.json ~/.claude/.credentials.json 2>/dev/null | "
    "tr '\\0' '\\n' | grep -a -e '[P]LANTED' -e '[M]ARKED' -e ANTHROPIC_ -e cagewrap- | "
    "sort -u; id -u"
)


@pytest.fixture
def env(env: dict[str, str], api: MockApi, tmp_path: Path) -> dict[str, str]:
    """The owner has configured a broker, and his shell has no login for agents."""
    del env["ANTHROPIC_API_KEY"], env["ANTHROPIC_BASE_URL"]
    key = tmp_path / "codex-key"
    key.write_text(CODEX_KEY)
    key.chmod(0o600)
    text = f"""
[login]
mode = "broker"
[login.claude]
base_url = "{api.url}"
[login.codex]
base_url = "{api.url}"
paths = ["POST /v1/responses", "GET /v1/models"]
port = {PORT}
token_file = "{key}"
env = {{ CODEX_API_KEY = "{{placeholder}}" }}
"""
    return places.configured(env, tmp_path / "config", text)


@pytest.fixture
def caged(tmp_path: Path, project: Path, env: dict[str, str]) -> Iterator[places.Caged]:
    """It reaches nothing at all but its brokers."""
    prefix = [str(places.CAGEWRAP), "--image", places.IMAGE, "--network", "none"]
    prefix += ["--mount", str(places.CLAUDE.parent)]
    prefix += ["--mount", str(CODEX), "--"] if CODEX.is_dir() else ["--"]
    shim = places.write_shim(tmp_path / "claude-brokered", [*prefix, places.CLAUDE])
    place = places.Caged(tuple(prefix), shim, project, env)
    yield place
    place.cagewrap("rm")


def put(env: dict[str, str], name: str, text: str) -> None:
    path = Path(env["HOME"]) / ".local/state/cagewrap/login/claude" / name
    path.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
    for one in (path.parent, *path.parent.parents[:2]):
        one.chmod(0o700)
    path.touch(mode=0o600)
    path.write_text(text)


@pytest.fixture
def key(env: dict[str, str]) -> None:
    put(env, "token", KEY + "\n")


@pytest.fixture
def subscription(env: dict[str, str]) -> None:
    put(env, ".credentials.json", json.dumps({"claudeAiOauth": SUBSCRIPTION}))


def counts(caged: places.Caged, login: str = "claude") -> dict[str, Any]:
    """What `cagewrap ls` says of the session's requests."""
    time.sleep(0.5)
    done = subprocess.run(
        [places.CAGEWRAP, "ls", "--json"],
        env=os.environ | caged.env,
        capture_output=True,
        check=True,
    )
    [session] = json.loads(done.stdout)["sessions"]
    found: dict[str, Any] = session["requests"].get(login, {})
    return found


@pytest.mark.usefixtures("key")
def test_a_conversation_with_a_key(caged: places.Caged, api: MockApi, callbacks: Callbacks) -> None:
    async def work() -> None:
        async with connected(caged, **callbacks.options()) as client:
            turn = await ask(client, "@@bash echo made inside | tee made.txt")
            assert turn.result.subtype == "success", callbacks.stderr
            assert turn.texts[-1].startswith("RESULT[ok]: made inside")
            seen = (await ask(client, LOOK)).texts[-1]
            assert "PLANTED" not in seen
            assert "ANTHROPIC_AUTH_TOKEN=sk-cagewrap-" in seen
            assert "ANTHROPIC_BASE_URL=http://127.0.0.1:" in seen
            assert seen.endswith("\n0")
            assert (await ask(client, "@@big 300000")).texts[-1] == "x" * 300_000

    drive(work())
    assert (caged.project / "made.txt").read_text() == "made inside\n"
    for request in api.messages:
        assert request.api_key == KEY
        assert request.authorization == ""
        assert "oauth" not in request.beta
    found = counts(caged)
    assert found["requests"] == len(api.requests)
    assert found["answered_2xx"] == found["requests"]


@pytest.mark.usefixtures("subscription")
def test_a_conversation_with_a_subscription(
    caged: places.Caged, api: MockApi, callbacks: Callbacks
) -> None:
    async def work() -> None:
        async with connected(caged, **callbacks.options()) as client:
            assert (await ask(client, "hello")).texts == ["echo: hello"]
            seen = (await ask(client, LOOK)).texts[-1]
            assert "PLANTED" not in seen
            assert "sk-cagewrap-" in seen

    drive(work())
    for request in api.messages:
        assert request.authorization == f"Bearer {OAUTH}"
        assert request.api_key == ""
        assert request.beta.split(",").count("oauth-2025-04-20") == 1
        # As with the login itself: without its kind of subscription Claude takes another.
        assert "opus" in request.body["model"]


@pytest.fixture
def renewals(caged: places.Caged, env: dict[str, str], tmp_path: Path) -> Iterator[MockLogin]:
    """A machine that can renew its login."""
    programs = Path(env["HOME"]) / ".local/bin"
    programs.mkdir(parents=True)
    (programs / "claude").symlink_to(places.CLAUDE)
    with MockLogin(tmp_path / "certificates") as login:
        caged.env.update(login.env)
        yield login


def test_a_login_is_renewed_before_a_message_that_needs_it(
    caged: places.Caged, api: MockApi, renewals: MockLogin, env: dict[str, str]
) -> None:
    put(env, ".credentials.json", credentials(-10))
    done = caged.claude("-p", "hello")
    assert (done.returncode, done.stderr) == (0, b"")
    assert api.messages[-1].authorization == f"Bearer {ACCESS}1"
    assert renewals.posts == 1


def test_a_login_is_renewed_while_a_message_runs(
    caged: places.Caged, api: MockApi, renewals: MockLogin, env: dict[str, str]
) -> None:
    put(env, ".credentials.json", credentials(3600))

    async def work() -> None:
        async with connected(caged) as client:
            await ask(client, "one")
            assert api.messages[-1].authorization == f"Bearer {ACCESS}0"
            put(env, ".credentials.json", credentials(300))
            assert await eventually(lambda: renewals.posts == 1, 20)
            await asyncio.sleep(1)
            assert "MARKED" not in (await ask(client, LOOK)).texts[-1]
            assert api.messages[-1].authorization == f"Bearer {ACCESS}1"

    drive(work())
    assert renewals.posts == 1


@pytest.mark.usefixtures("subscription")
def test_auth_status_knows_the_login(caged: places.Caged) -> None:
    """Harnesses ask for it before they start."""
    done = caged.claude("auth", "status", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["loggedIn"], found["authMethod"]) == (0, True, "claude.ai")


@pytest.mark.parametrize("login", ["key", "subscription"])
def test_a_first_start_on_a_terminal_shows_the_prompt(
    request: pytest.FixtureRequest,
    caged: places.Caged,
    api: MockApi,
    screens: list[Screen],
    login: str,
) -> None:
    """There is no network: what Claude asks of api.anthropic.com beside cannot be in the way."""
    request.getfixturevalue(login)
    answers(start(screens, caged), api)
    asked = api.messages[-1]
    assert (asked.api_key or asked.authorization) in (KEY, f"Bearer {OAUTH}")


@pytest.mark.usefixtures("key")
def test_an_interrupt_ends_the_request(caged: places.Caged, api: MockApi) -> None:
    """Tokens that nobody reads are not paid for."""

    async def work() -> None:
        async with connected(caged) as client:
            await client.query("@@slow 20")
            await asyncio.sleep(3)
            began = time.monotonic()
            await client.interrupt()
            turn = await rest_of_turn(client)
            assert turn.result.subtype == "error_during_execution"
            assert time.monotonic() - began < 3
            assert (await ask(client, "still there")).texts[-1] == "echo: still there"

    drive(work())
    found = counts(caged)
    assert found["received_bytes"] < 200 * 150, "the whole of the slow answer was fetched"
    assert found["failed"] == 0


def test_without_a_login_claude_says_at_once_what_to_do(
    caged: places.Caged, env: dict[str, str]
) -> None:
    put(env, "token", "no token at all")
    began = time.monotonic()
    done = caged.claude("-p", "hello")
    assert done.returncode == 1
    assert b"is not one line with one word" in done.stdout
    assert time.monotonic() - began < 20
    assert counts(caged)["refused"] >= 1


@pytest.mark.usefixtures("key")
def test_an_api_that_is_away_is_tried_again(caged: places.Caged, api: MockApi) -> None:
    """As without a broker; CLAUDE_CODE_MAX_RETRIES is 1 here."""
    done = caged.claude("-p", "@@status 529")
    assert done.returncode == 1
    assert [request.route for request in api.messages] == ["/v1/messages"] * 2
    assert counts(caged)["answered_5xx"] == 2


@pytest.mark.skipif(not CODEX.is_dir(), reason="no codex here: ./check peers brings it")
@pytest.mark.parametrize("setting", ["openai_base_url", "provider"])
def test_codex(caged: places.Caged, api: MockApi, setting: str) -> None:
    """With its own provider it tries WebSockets first, and goes on without them at once."""
    url = f"http://127.0.0.1:{PORT}/v1"
    provider = (
        'model_provider = "mock"\n[model_providers.mock]\nname = "mock"\n'
        f'base_url = "{url}"\nwire_api = "responses"\nenv_key = "CODEX_API_KEY"\n'
    )
    text = 'model = "mock"\n'
    text += provider if setting == "provider" else f'openai_base_url = "{url}"\n'
    caged.put_in_home(".codex/config.toml", text)
    began = time.monotonic()
    done = caged.run(CODEX / "bin/codex", "exec", *FREELY, "@@bash echo made | tee made.txt; env")
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert time.monotonic() - began < 15
    assert (caged.project / "made.txt").read_text() == "made\n"
    assert b"PLANTED" not in done.stdout
    assert {request.authorization for request in api.turns} == {f"Bearer {CODEX_KEY}"}
    assert len(api.turns) == 2
    found = counts(caged, "codex")
    assert found["answered_2xx"] >= 2
    assert (found["failed"], found["refused"]) == (0, setting != "provider"), found
