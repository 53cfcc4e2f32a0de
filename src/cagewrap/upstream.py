"""What a broker is for: an API on the internet, and the login that is added on the way to it.

Values alone, and how they travel to the broker's process.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

PLACEHOLDER = "sk-cagewrap-the-login-is-on-the-host"
"""What an agent is given where it expects a key or a token."""
ANTHROPIC_URL = "https://api.anthropic.com"
ANTHROPIC_PATHS = (
    "POST /v1/messages",
    "POST /v1/messages/count_tokens",
    "GET /v1/models",
    "GET /v1/models/*",
    "HEAD /",
    "HEAD /api/hello",
)
OAUTH_PREFIX = "sk-ant-oat"
"""How a token of a subscription begins, unlike an API key."""
OAUTH_BETA = "oauth-2025-04-20"
"""What the API wants to see in `anthropic-beta` beside such a token."""


class Secret(NamedTuple):
    """Where the login is found; one of the four.

    file: its content. credentials: a `.credentials.json` as Claude Code writes it, of which the
    access token is taken. command: what it prints. value: itself.
    """

    file: str = ""
    credentials: str = ""
    command: tuple[str, ...] = ()
    value: str = ""

    def __repr__(self) -> str:
        """Without what is secret."""
        return f"Secret(file={self.file!r}, command={self.command!r})"


class Upstream(NamedTuple):
    """One API that cages reach with the owner's login, and never see it.

    name: of the login in the configuration. base_url: https (or http), a host, perhaps a port and
    the beginning of every path. kind: "anthropic" sends an API key as `x-api-key` and a token as
    `authorization: Bearer` with what belongs to it; "plain" sends `header`, in which {secret}
    stands for the login. paths: "METHOD /PATH", below base_url; a `*` at the end stands for the
    rest. port: on the cage's loopback, 0 for any. env: variables of the agent, in whose values
    {url} is where the broker is and {placeholder} what stands for the login.
    """

    name: str
    base_url: str
    secret: Secret
    kind: str = "anthropic"
    header: str = ""
    paths: tuple[str, ...] = ANTHROPIC_PATHS
    port: int = 0
    env: tuple[tuple[str, str], ...] = ()


def render_upstreams(upstreams: Sequence[Upstream]) -> str:
    """As one text."""
    return json.dumps([one._asdict() | {"secret": one.secret._asdict()} for one in upstreams])


def parse_upstreams(text: str) -> tuple[Upstream, ...]:
    """What `render_upstreams` made. Raises ValueError, KeyError or TypeError for anything else."""
    return tuple(_parse_upstream(found) for found in json.loads(text))


def _parse_upstream(found: dict[str, object]) -> Upstream:
    values = {**found}
    secret = values.pop("secret")
    assert isinstance(secret, dict)  # noqa: S101
    secret["command"] = tuple(secret["command"])
    values["secret"] = Secret(**secret)
    values["paths"] = tuple(found["paths"])  # type: ignore[arg-type]
    values["env"] = tuple((name, value) for name, value in found["env"])  # type: ignore[attr-defined]
    return Upstream(**values)  # type: ignore[arg-type]


def fill(template: str, url: str) -> str:
    """A template of `Upstream.env` with what it stands for."""
    return template.replace("{url}", url).replace("{placeholder}", PLACEHOLDER)
