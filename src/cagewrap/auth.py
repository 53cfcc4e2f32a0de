"""Which login a session gets, why, and how it is handed over. Pure; nothing here sees a secret.

The settings of a command travel with its request (`pack`, `unpack`), so that they hold for that
command alone. What there is on the machine to log in with is told as `Found` by whoever looks
(`loginstore`). The keeper's part is `keeper.login`, for the mode `broker` also `keeper.brokered`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from cagewrap.environment import build_pass_rules
from cagewrap.errors import KeeperError
from cagewrap.model import AgentLogin, EnvPolicy, LoginMode, LoginSettings

LOGIN_TARGET = "/run/cagewrap/login"
"""Where a cage sees its own login directory, read-only."""
SHARED_TARGET = "/run/cagewrap/login-shared"
"""Where cages of mode `directory` see the one they share, writable."""
DIRECTORY_VARIABLE = "CLAUDE_SECURESTORAGE_CONFIG_DIR"
"""Tells Claude Code where its .credentials.json is; moves nothing else."""

OAUTH_VARIABLE = "CLAUDE_CODE_OAUTH_TOKEN"
KEY_VARIABLE = "ANTHROPIC_API_KEY"
_TOKEN_VARIABLES = {"sk-ant-oat": OAUTH_VARIABLE, "sk-ant-api": KEY_VARIABLE}
OWN_VARIABLES = (
    KEY_VARIABLE, "ANTHROPIC_AUTH_TOKEN", OAUTH_VARIABLE, "CLAUDE_CODE_USE_BEDROCK",
    "CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_USE_FOUNDRY",
)  # fmt: skip
"""A login that you give yourself. Claude prefers each of them to what cagewrap could add."""
_TOKENS = 3
"""So many of them, the first ones, hold a token or a key."""
_OWN = frozenset(name.encode() for name in OWN_VARIABLES)


class Source(Enum):
    """Where a secret comes from."""

    NOTHING = "nothing"
    LOGIN = "login"
    TOKEN_FILE = "token_file"  # noqa: S105 - a word
    TOKEN_COMMAND = "token_command"  # noqa: S105
    OWN = "own"
    """A variable of the owner's; only for the broker, and only when there is nothing else."""


class LoginState(Enum):
    """What has become of cagewrap's own login. EXPIRED: it can be renewed; DEAD: it cannot."""

    ABSENT = "absent"
    VALID = "valid"
    EXPIRED = "expired"
    DEAD = "dead"


class Found(NamedTuple):
    """What there is to log in with. own: the variable of the owner's that reaches the agent."""

    login: LoginState = LoginState.ABSENT
    has_token_file: bool = False
    own: str = ""


class Plan(NamedTuple):
    """What a command gets. mode is never AUTO; with source NOTHING it gets nothing.

    why: a sentence. hint: how to get a login, "" when there is one or none is wanted.
    """

    mode: LoginMode
    source: Source
    why: str
    hint: str = ""


def plan_login(settings: LoginSettings, found: Found) -> Plan:
    """Which login a command gets."""
    mode = settings.mode
    if found.own and mode is not LoginMode.BROKER:
        why = f"{found.own} of your environment or settings is used, as Claude itself does"
        return Plan(LoginMode.NONE, Source.NOTHING, why)
    if mode is LoginMode.AUTO:
        return _plan_auto(settings, found)
    if mode is LoginMode.NONE:
        return Plan(mode, Source.NOTHING, "the mode is none: what is logged in inside stays inside")
    if mode is LoginMode.DIRECTORY:
        why = "the mode is directory: all such cages share one login, made inside by /login"
        return Plan(mode, Source.NOTHING, why)
    return _plan_told(settings, found)


def _plan_told(settings: LoginSettings, found: Found) -> Plan:
    """For a mode that needs a login or a token."""
    mode = settings.mode
    if mode is LoginMode.TOKEN:
        source = _token_source(settings, found)
    else:
        source = _any_source(settings, found, tokens=mode is LoginMode.BROKER)
    if source is not Source.NOTHING:
        return Plan(mode, source, f"the mode is {mode.value}")
    if mode is LoginMode.BROKER and found.own in OWN_VARIABLES[:_TOKENS]:
        why = f"the mode is broker, and {found.own} of yours is used outside of the cage"
        return Plan(mode, Source.OWN, why)
    why = f"the mode is {mode.value}, and {_missing(mode, found)}"
    return Plan(mode, source, why, _LOGIN_HINT if mode is not LoginMode.TOKEN else _TOKEN_HINT)


_LOGIN_HINT = "cagewrap login"
_TOKEN_HINT = "cagewrap login --token"  # noqa: S105


def _plan_auto(settings: LoginSettings, found: Found) -> Plan:
    source = _any_source(settings, found, tokens=True)
    if source is Source.LOGIN:
        return Plan(LoginMode.ACCESS, source, "cagewrap has a login of its own")
    if source is not Source.NOTHING:
        lead = "" if found.login is LoginState.ABSENT else "cagewrap's login has ended, and "
        return Plan(LoginMode.TOKEN, source, f"{lead}there is a token")
    return Plan(LoginMode.NONE, source, _missing(LoginMode.AUTO, found), _LOGIN_HINT)


def _any_source(settings: LoginSettings, found: Found, *, tokens: bool) -> Source:
    if found.login in (LoginState.VALID, LoginState.EXPIRED):
        return Source.LOGIN
    return _token_source(settings, found) if tokens else Source.NOTHING


def _token_source(settings: LoginSettings, found: Found) -> Source:
    if settings.token_command:
        return Source.TOKEN_COMMAND
    return Source.TOKEN_FILE if found.has_token_file else Source.NOTHING


def _missing(mode: LoginMode, found: Found) -> str:
    if mode is LoginMode.TOKEN:
        return "there is no token"
    if found.login is LoginState.DEAD:
        return "cagewrap's login has ended and cannot be renewed"
    return "there is no login" + ("" if mode is LoginMode.ACCESS else " and no token")


def token_variable(token: str) -> str:
    """The variable that a token belongs into; "" for a text that is no token of Anthropic's."""
    for start, name in _TOKEN_VARIABLES.items():
        if token.startswith(start):
            return name
    return ""


def own_login(policy: EnvPolicy, caller: Mapping[bytes, bytes]) -> str:
    """The variable with a login that the owner gives an agent by its environment, or ""."""
    given = {name: "a secret" for name, _ in policy.secret_files} | dict(policy.fixed)
    own = {name.encode(): value.encode(errors="replace") for name, value in given.items()}
    there = {name: value for name, value in caller.items() if name in _OWN and value}
    if there:
        rules = build_pass_rules((*policy.passed, *policy.secret_names))
        own |= {name: value for name, value in there.items() if rules.passes(name)}
    return find_own(own)


def find_own(env: Mapping[bytes, bytes]) -> str:
    """The variable with a login that an agent's environment holds already, or ""."""
    return next((name for name in OWN_VARIABLES if env.get(name.encode())), "")


def pack(settings: LoginSettings) -> bytes:
    """The settings as one text of a request."""
    agents = [agent._asdict() for agent in settings.agents]
    value = settings._asdict() | {"mode": settings.mode.value, "agents": agents}
    return json.dumps(value, separators=(",", ":")).encode()


def unpack(text: bytes) -> LoginSettings:
    """What `pack` made. Raises KeeperError when it is not that, or says what is not known here: it
    may be what a younger cagewrap restricts a login with."""
    try:
        value = json.loads(text)
        agents = tuple(
            AgentLogin(
                **one
                | {
                    "paths": tuple(one["paths"]),
                    "env": tuple((name, text) for name, text in one["env"]),
                    "token_command": tuple(one["token_command"]),
                }
            )
            for one in value["agents"]
        )
        return LoginSettings(
            **value
            | {
                "mode": LoginMode(value["mode"]),
                "claude": str(value["claude"]),
                "token_command": tuple(value["token_command"]),
                "agents": agents,
                "directory": str(value["directory"]),
            }
        )
    except (ValueError, KeyError, TypeError) as error:
        raise KeeperError("The keeper was sent a login it cannot read.", "") from error
