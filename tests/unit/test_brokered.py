"""Which APIs a message reaches through a broker, and with which secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from cagewrap.auth import Found, Plan, Source, plan_login
from cagewrap.errors import ConfigInvalidError
from cagewrap.keeper.brokerplan import Owners, plan_upstreams
from cagewrap.loginstore import LoginStore
from cagewrap.model import AgentLogin, LoginMode, LoginSettings
from cagewrap.paths import Paths
from cagewrap.upstream import ANTHROPIC_PATHS, ANTHROPIC_URL, Secret, Upstream

CODEX = AgentLogin(
    "codex",
    base_url="https://api.openai.com",
    paths=("POST /v1/responses",),
    port=7718,
    env=(("CODEX_API_KEY", "{placeholder}"),),
    token_file="/keys/openai",
)


@pytest.fixture
def store(tmp_path: Path) -> LoginStore:
    at = str(tmp_path)
    return LoginStore(Paths(at, f"{at}/config.toml", at, at, at))


def plan(
    store: LoginStore, settings: LoginSettings, source: Source, owners: Owners | None = None
) -> tuple[Upstream, ...]:
    return plan_upstreams(settings, Plan(settings.mode, source, ""), store, owners or Owners())


def test_claude_with_each_source_of_a_login(store: LoginStore) -> None:
    settings = LoginSettings(LoginMode.BROKER, token_command=("pass", "claude"))
    wanted = {
        Source.LOGIN: Secret(credentials=store.credentials_file),
        Source.TOKEN_FILE: Secret(file=store.token_file),
        Source.TOKEN_COMMAND: Secret(command=("pass", "claude")),
    }
    for source, secret in wanted.items():
        [found] = plan(store, settings, source)
        assert found.secret == secret
        assert (found.base_url, found.paths) == (ANTHROPIC_URL, ANTHROPIC_PATHS)
        assert found.kind == "anthropic"
        env = dict(found.env)
        assert env.pop("ANTHROPIC_BASE_URL") == "{url}"
        if source is Source.LOGIN:
            assert env == {"CLAUDE_SECURESTORAGE_CONFIG_DIR": "/run/cagewrap/login/broker"}
        else:
            assert env == {"ANTHROPIC_AUTH_TOKEN": "{placeholder}"}
    assert plan(store, settings, Source.NOTHING) == ()


def test_claudes_table_changes_single_things(store: LoginStore) -> None:
    table = AgentLogin(
        "claude",
        base_url="https://gateway.example/anthropic",
        header="api-token: {secret}",
        env=(("ANTHROPIC_AUTH_TOKEN", "other"), ("X", "y")),
        token_command=("gateway-token",),
    )
    settings = LoginSettings(LoginMode.BROKER, agents=(table,))
    for source in (Source.LOGIN, Source.NOTHING):
        [found] = plan(store, settings, source)
        assert found.base_url == "https://gateway.example/anthropic"
        assert found.paths == ANTHROPIC_PATHS
        assert found.secret == Secret(command=("gateway-token",))
        assert (found.kind, found.header) == ("plain", "api-token: {secret}")
        assert dict(found.env) == {
            "ANTHROPIC_BASE_URL": "{url}",
            "ANTHROPIC_AUTH_TOKEN": "other",
            "X": "y",
        }


@pytest.mark.parametrize("mode", [mode for mode in LoginMode if mode is not LoginMode.BROKER])
def test_claude_has_no_broker_in_another_mode(store: LoginStore, mode: LoginMode) -> None:
    settings = LoginSettings(mode, agents=(CODEX,))
    found = plan(store, settings, Source.LOGIN)
    assert [one.name for one in found] == ([] if mode is LoginMode.NONE else ["codex"])


def test_another_agent_gets_its_own_secret_and_no_other(store: LoginStore) -> None:
    settings = LoginSettings(LoginMode.AUTO, agents=(CODEX,))
    [found] = plan(store, settings, Source.LOGIN)
    assert found == Upstream(
        "codex",
        "https://api.openai.com",
        Secret(file="/keys/openai"),
        "plain",
        "authorization: Bearer {secret}",
        ("POST /v1/responses",),
        7718,
        (("CODEX_API_KEY", "{placeholder}"),),
    )
    bare = LoginSettings(LoginMode.BROKER, agents=(AgentLogin("codex", base_url="https://x"),))
    assert [one.name for one in plan(store, bare, Source.LOGIN)] == ["claude"]


@pytest.mark.parametrize(
    ("name", "kind", "header"),
    [
        ("ANTHROPIC_API_KEY", "anthropic", ""),
        ("CLAUDE_CODE_OAUTH_TOKEN", "anthropic", ""),
        ("ANTHROPIC_AUTH_TOKEN", "plain", "authorization: Bearer {secret}"),
    ],
)
def test_the_owners_own_variable_where_there_is_nothing_else(
    store: LoginStore, name: str, kind: str, header: str
) -> None:
    settings = LoginSettings(LoginMode.BROKER)
    owners = Owners("http://gateway:4000/x", name, Secret(value="sk-own"))
    [found] = plan(store, settings, Source.OWN, owners)
    assert (found.kind, found.header) == (kind, header)
    assert found.secret == Secret(value="sk-own")
    assert found.base_url == "http://gateway:4000/x"
    assert dict(found.env)["ANTHROPIC_AUTH_TOKEN"] == "{placeholder}"
    assert "sk-own" not in repr(found)
    [other] = plan(store, settings, Source.TOKEN_FILE, owners)
    assert other.secret == Secret(file=store.token_file)
    assert (other.kind, other.base_url) == ("anthropic", "http://gateway:4000/x")
    table = AgentLogin("claude", base_url="https://table.example")
    [told] = plan(store, LoginSettings(LoginMode.BROKER, agents=(table,)), Source.OWN, owners)
    assert told.base_url == "https://table.example"


def test_refuses_a_base_url_that_is_none(store: LoginStore) -> None:
    owners = Owners("gateway:4000", "", Secret())
    with pytest.raises(ConfigInvalidError, match="ANTHROPIC_BASE_URL cannot be used"):
        plan(store, LoginSettings(LoginMode.BROKER), Source.LOGIN, owners)
    assert plan(store, LoginSettings(LoginMode.ACCESS), Source.LOGIN, owners) == ()


def test_an_own_variable_comes_last_and_only_for_the_broker() -> None:
    own = Found(own="ANTHROPIC_API_KEY")
    assert plan_login(LoginSettings(LoginMode.BROKER), own).source is Source.OWN
    with_token = Found(has_token_file=True, own="ANTHROPIC_API_KEY")
    assert plan_login(LoginSettings(LoginMode.BROKER), with_token).source is Source.TOKEN_FILE
    bedrock = Found(own="CLAUDE_CODE_USE_BEDROCK")
    assert plan_login(LoginSettings(LoginMode.BROKER), bedrock).source is Source.NOTHING
    for mode in (LoginMode.AUTO, LoginMode.ACCESS, LoginMode.TOKEN):
        assert plan_login(LoginSettings(mode), own).source is Source.NOTHING
