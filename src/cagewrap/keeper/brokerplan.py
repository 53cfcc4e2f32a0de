"""Which APIs a message reaches through a broker, with which secret, and what its agent is told."""

from __future__ import annotations

from typing import NamedTuple

from cagewrap import auth, upstream
from cagewrap.auth import Plan, Source
from cagewrap.errors import ConfigInvalidError
from cagewrap.loginspec import CLAUDE
from cagewrap.loginstore import LoginStore
from cagewrap.model import AgentLogin, LoginMode, LoginSettings
from cagewrap.upstream import Secret, Upstream

DIRECTORY = "broker"
"""Below the cage's login directory: a login whose token is a placeholder."""
BASE_URL = "ANTHROPIC_BASE_URL"
_BEARER = "ANTHROPIC_AUTH_TOKEN"
_HEADER = "authorization: Bearer {secret}"


class Owners(NamedTuple):
    """What the owner gives an agent himself: where Claude's API is, and a variable that holds a
    login, with its secret. Empty without."""

    base_url: str = ""
    name: str = ""
    secret: Secret = Secret()


def plan_upstreams(
    settings: LoginSettings, plan: Plan, store: LoginStore, owners: Owners
) -> tuple[Upstream, ...]:
    """What a message reaches through a broker: Claude's API in the mode `broker`, and those of
    `[login.NAME]` in every mode but `none`. Not what there is no secret for.

    Raises ConfigInvalidError when the owner's variable is no URL.
    """
    agents = {agent.name: agent for agent in settings.agents}
    claude = agents.pop(CLAUDE, AgentLogin(CLAUDE))
    found: list[Upstream] = []
    if settings.mode is LoginMode.BROKER:
        secret = _own_secret(claude) or _shared_secret(settings, plan, store, owners)
        if secret is not None:
            found.append(_for_claude(_filled(claude, secret, owners), secret))
    if settings.mode is not LoginMode.NONE:
        for agent in agents.values():
            secret = _own_secret(agent)  # and never Claude's: it is for another API
            if secret is not None:
                found.append(_for_agent(agent, secret))
    return tuple(found)


def _own_secret(agent: AgentLogin) -> Secret | None:
    if agent.token_file:
        return Secret(file=agent.token_file)
    return Secret(command=agent.token_command) if agent.token_command else None


def _shared_secret(
    settings: LoginSettings, plan: Plan, store: LoginStore, owners: Owners
) -> Secret | None:
    match plan.source:
        case Source.LOGIN:
            return Secret(credentials=store.credentials_file)
        case Source.TOKEN_FILE:
            return Secret(file=store.token_file)
        case Source.TOKEN_COMMAND:
            return Secret(command=settings.token_command)
        case Source.OWN:
            return owners.secret
        case Source.NOTHING:
            return None


def _filled(claude: AgentLogin, secret: Secret, owners: Owners) -> AgentLogin:
    """The table with what the owner's variables say in its place."""
    header, base_url = claude.header, claude.base_url
    if not header and secret is owners.secret and owners.name == _BEARER:
        header = _HEADER
    if not base_url and owners.base_url:
        from cagewrap.egress.gate import parse_base

        try:
            parse_base(owners.base_url)
        except ValueError as error:
            raise ConfigInvalidError(
                f"The variable {BASE_URL} cannot be used by a broker: it {error}.",
                f"unset {BASE_URL}, or name it in [login.claude] base_url",
            ) from None
        base_url = owners.base_url
    return claude._replace(header=header, base_url=base_url)


def _for_claude(agent: AgentLogin, secret: Secret) -> Upstream:
    env = {BASE_URL: "{url}"}
    if secret.credentials:
        env[auth.DIRECTORY_VARIABLE] = f"{auth.LOGIN_TARGET}/{DIRECTORY}"
    else:
        env[_BEARER] = "{placeholder}"
    return Upstream(
        name=agent.name,
        base_url=agent.base_url or upstream.ANTHROPIC_URL,
        secret=secret,
        kind="plain" if agent.header else "anthropic",
        header=agent.header,
        paths=agent.paths or upstream.ANTHROPIC_PATHS,
        port=agent.port,
        env=tuple((env | dict(agent.env)).items()),
    )


def _for_agent(agent: AgentLogin, secret: Secret) -> Upstream:
    return _for_claude(agent, secret)._replace(
        kind="plain", header=agent.header or _HEADER, env=agent.env
    )
