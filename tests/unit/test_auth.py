"""Which login a command gets, and how its settings travel."""

from __future__ import annotations

import pytest

from cagewrap import auth
from cagewrap.auth import Found, LoginState, Source
from cagewrap.errors import KeeperError
from cagewrap.model import AgentLogin, EnvPolicy, LoginMode, LoginSettings

A, B, T, D, N = (
    LoginMode.ACCESS,
    LoginMode.BROKER,
    LoginMode.TOKEN,
    LoginMode.DIRECTORY,
    LoginMode.NONE,
)
NOTHING = Found()
LOGIN = Found(LoginState.VALID)
EXPIRED = Found(LoginState.EXPIRED)
DEAD = Found(LoginState.DEAD)
FILE = Found(has_token_file=True)
BOTH = Found(LoginState.VALID, has_token_file=True)
DEAD_AND_FILE = Found(LoginState.DEAD, has_token_file=True)


@pytest.mark.parametrize(
    ("mode", "found", "wanted", "source"),
    [
        (LoginMode.AUTO, NOTHING, N, Source.NOTHING),
        (LoginMode.AUTO, LOGIN, A, Source.LOGIN),
        (LoginMode.AUTO, EXPIRED, A, Source.LOGIN),
        (LoginMode.AUTO, DEAD, N, Source.NOTHING),
        (LoginMode.AUTO, FILE, T, Source.TOKEN_FILE),
        (LoginMode.AUTO, BOTH, A, Source.LOGIN),
        (LoginMode.AUTO, DEAD_AND_FILE, T, Source.TOKEN_FILE),
        (A, NOTHING, A, Source.NOTHING),
        (A, FILE, A, Source.NOTHING),
        (A, BOTH, A, Source.LOGIN),
        (A, DEAD, A, Source.NOTHING),
        (B, NOTHING, B, Source.NOTHING),
        (B, BOTH, B, Source.LOGIN),
        (B, DEAD_AND_FILE, B, Source.TOKEN_FILE),
        (T, BOTH, T, Source.TOKEN_FILE),
        (T, LOGIN, T, Source.NOTHING),
        (D, BOTH, D, Source.NOTHING),
        (N, BOTH, N, Source.NOTHING),
    ],
)
def test_plan(mode: LoginMode, found: Found, wanted: LoginMode, source: Source) -> None:
    plan = auth.plan_login(LoginSettings(mode), found)
    assert (plan.mode, plan.source) == (wanted, source)
    assert plan.why
    is_missing = source is Source.NOTHING and mode not in (D, N)
    assert bool(plan.hint) == is_missing


def test_a_token_command_is_preferred_to_the_token_file() -> None:
    settings = LoginSettings(LoginMode.AUTO, token_command=("pass",))
    assert auth.plan_login(settings, FILE).source is Source.TOKEN_COMMAND
    assert auth.plan_login(settings, NOTHING).source is Source.TOKEN_COMMAND
    assert auth.plan_login(settings, LOGIN).source is Source.LOGIN


@pytest.mark.parametrize("mode", list(LoginMode))
def test_what_the_owner_gives_holds_but_for_the_broker(mode: LoginMode) -> None:
    found = Found(LoginState.VALID, has_token_file=True, own="ANTHROPIC_API_KEY")
    plan = auth.plan_login(LoginSettings(mode), found)
    if mode is LoginMode.BROKER:
        assert plan.source is Source.LOGIN
    else:
        assert (plan.mode, plan.source, plan.hint) == (LoginMode.NONE, Source.NOTHING, "")
        assert "ANTHROPIC_API_KEY" in plan.why


@pytest.mark.parametrize(
    ("policy", "caller", "own"),
    [
        (EnvPolicy(("ANTHROPIC_*",)), {b"ANTHROPIC_API_KEY": b"k"}, "ANTHROPIC_API_KEY"),
        (EnvPolicy(("ANTHROPIC_*",)), {b"ANTHROPIC_API_KEY": b""}, ""),
        (EnvPolicy(("ANTHROPIC_*",)), {b"ANTHROPIC_BASE_URL": b"k"}, ""),
        (EnvPolicy(("ANTHROPIC_*", "!ANTHROPIC_API_KEY")), {b"ANTHROPIC_API_KEY": b"k"}, ""),
        (EnvPolicy(), {b"CLAUDE_CODE_OAUTH_TOKEN": b"k"}, ""),
        (
            EnvPolicy(secret_names=("CLAUDE_CODE_OAUTH_TOKEN",)),
            {b"CLAUDE_CODE_OAUTH_TOKEN": b"k"},
            "CLAUDE_CODE_OAUTH_TOKEN",
        ),
        (EnvPolicy(secret_names=("CLAUDE_CODE_OAUTH_TOKEN",)), {}, ""),
        (EnvPolicy(fixed=(("CLAUDE_CODE_USE_BEDROCK", "1"),)), {}, "CLAUDE_CODE_USE_BEDROCK"),
        (EnvPolicy(fixed=(("ANTHROPIC_API_KEY", ""),)), {}, ""),
        (EnvPolicy(secret_files=(("ANTHROPIC_AUTH_TOKEN", "/f"),)), {}, "ANTHROPIC_AUTH_TOKEN"),
    ],
)
def test_a_login_of_the_owners_own(policy: EnvPolicy, caller: dict[bytes, bytes], own: str) -> None:
    assert auth.own_login(policy, caller) == own


def test_tokens_are_told_apart() -> None:
    assert auth.token_variable("sk-ant-oat01-x") == "CLAUDE_CODE_OAUTH_TOKEN"
    assert auth.token_variable("sk-ant-api03-x") == "ANTHROPIC_API_KEY"
    assert auth.token_variable("sk-ant-ort01-x") == ""
    assert auth.token_variable("") == ""


def test_settings_travel_unchanged() -> None:
    agent = AgentLogin(
        name="codex",
        base_url="https://x/v1",
        paths=("GET /m",),
        header="a: {secret}",
        port=4000,
        env=(("A", "{url}"),),
        token_command=("c", "d"),
    )
    for settings in (
        LoginSettings(),
        LoginSettings(LoginMode.BROKER, "/bin/claude", ("a", "b c"), (agent,), "/d"),
    ):
        assert auth.unpack(auth.pack(settings)) == settings


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b"\xff", b'{"mode":"x"}'])
def test_refuses_settings_it_cannot_read(text: bytes) -> None:
    with pytest.raises(KeeperError):
        auth.unpack(text)
