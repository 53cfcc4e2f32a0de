"""How a table `[login.NAME]` is written. Its parser works on the table as JSON, since a setting's
value is a text everywhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from cagewrap.model import AgentLogin
from cagewrap.values import BadValueError, nearest, parse_name, parse_path, parse_word

_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
_METHOD = re.compile(r"[A-Z]+")
_HEADER = re.compile(r"[A-Za-z0-9-]+: [\x21-\x7e ]+")
_KEYS = ("base_url", "paths", "header", "port", "env", "token_file", "token_command")
CLAUDE = "claude"
"""The agent whose API, paths and header are known; its table changes single ones of them."""


def agent_text(name: str, found: object) -> str:
    """One table as the text that `parse_agent` takes."""
    import json  # rarely used

    try:
        return json.dumps([name, found])
    except (TypeError, ValueError):
        raise BadValueError(f"has a date or the like in {name!r}") from None


def parse_agent(text: str) -> AgentLogin:
    """The table `[login.NAME]`. Messages repeat no value: it may be a secret in a wrong place."""
    import json

    name, table = json.loads(text)
    if not _NAME.fullmatch(name):
        raise BadValueError(f"{name!r} must be an agent's name: letters, digits and -")
    if not isinstance(table, dict):
        raise BadValueError(f"{name} must be a table: [login.{name}]")
    for key in table:
        if key not in _KEYS:
            raise BadValueError(f"{name} has the key {key!r}{nearest(key, _KEYS)}")
    agent = AgentLogin(
        name=name,
        base_url=_url(_text(table, name, "base_url")),
        paths=tuple(_path(one, name) for one in _words(table, name, "paths")),
        header=_header(_text(table, name, "header")),
        port=_port(table, name),
        env=tuple(_variables(table, name)),
        token_file=_maybe(parse_path, _text(table, name, "token_file")),
        token_command=_words(table, name, "token_command"),
    )
    if agent.token_file and agent.token_command:
        raise BadValueError(f"{name} has token_file and token_command: leave one out")
    if name != CLAUDE:
        _require(agent)
    return agent


def shown(agent: AgentLogin) -> dict[str, object]:
    """A table as anyone may see it."""
    values: dict[str, object] = {
        "base_url": agent.base_url,
        "paths": list(agent.paths),
        "header": agent.header,
        "port": agent.port,
        "env": dict(agent.env),
        "token_file": agent.token_file,
        "token_command": list(agent.token_command),
    }
    return {key: value for key, value in values.items() if value}


def _require(agent: AgentLogin) -> None:
    for key in ("base_url", "paths", "env"):
        if not getattr(agent, key):
            raise BadValueError(f"{agent.name} needs {key}")
    if not (agent.token_file or agent.token_command):
        raise BadValueError(f"{agent.name} needs token_file or token_command")


def _text(table: Mapping[str, object], name: str, key: str) -> str:
    value = table.get(key, "")
    if not isinstance(value, str):
        raise BadValueError(f"{name}: {key} must be a text in quotes")
    return value


def _words(table: Mapping[str, object], name: str, key: str) -> tuple[str, ...]:
    value = table.get(key, [])
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise BadValueError(f"{name}: {key} must be a list of texts")
    return tuple(parse_word(one) for one in value)


def _variables(table: Mapping[str, object], name: str) -> list[tuple[str, str]]:
    value = table.get("env", {})
    if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
        raise BadValueError(f"{name}: env must be a table of texts")
    return [(parse_name(key), text) for key, text in value.items()]


def _port(table: Mapping[str, object], name: str) -> int:
    value = table.get("port", 0)
    if type(value) is not int or not 0 <= value < 65536:
        raise BadValueError(f"{name}: port must be a number from 1 to 65535")
    return value


def _maybe(parse: Callable[[str], str], text: str) -> str:
    return parse(text) if text else ""


def _url(text: str) -> str:
    if not text:
        return ""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(text)
        port_is_good = parts.port != 0
    except ValueError:
        raise BadValueError("base_url must be a URL: https://HOST/PATH") from None
    good = parts.scheme in ("https", "http") and parts.hostname and port_is_good
    if not good or parts.query or parts.fragment or parts.username is not None:
        raise BadValueError("base_url must be a URL: https://HOST/PATH, without user or query")
    return text.rstrip("/")


def _path(text: str, name: str) -> str:
    method, _, path = text.rpartition(" ")
    good = path.startswith("/") and _METHOD.fullmatch(method)
    if not good or "*" in path[:-1] or any(part in (".", "..") for part in path.split("/")):
        raise BadValueError(f"{name}: a path must be METHOD /PATH, with * only at its end")
    return text


def _header(text: str) -> str:
    if text and (not _HEADER.fullmatch(text) or text.count("{secret}") != 1):
        raise BadValueError("header must be such as: authorization: Bearer {secret}")
    return text
