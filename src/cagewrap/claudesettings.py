"""What of Claude's settings and state on the host an agent in a cage gets: never a secret.

Pure functions on JSON values. A secret is told by its name or by its look, rather too often than
too seldom; the owner hands one over on purpose with `secret` in the configuration.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from cagewrap.environment import DEFAULT_PASSED, build_pass_rules, is_secret_name

Json: TypeAlias = Any  # JSON's own shape

HELPERS = (
    "apiKeyHelper", "awsAuthRefresh", "awsCredentialExport", "gcpAuthRefresh", "headersHelper",
    "otelHeadersHelper", "proxyAuthHelper",
)  # fmt: skip
"""Programs of the host that print secrets."""

_HOSTS_OWN = ("!HOME", "!PATH", "!TMPDIR", "!SSH_AUTH_SOCK", "!DBUS_*", "!XDG_*", "!DOCKER_HOST")
_VARIABLES = build_pass_rules(
    ("*", *(rule for rule in DEFAULT_PASSED if rule.startswith("!")), *_HOSTS_OWN)
)
_SECRET_LOOK = re.compile(
    r"sk-[A-Za-z0-9_-]{16}|gh[opusr]_[A-Za-z0-9]{16}|github_pat_|glpat-|xox[abeoprs]-|AKIA[0-9A-Z]{12}"
    r"|AIza[0-9A-Za-z_-]{20}|npm_[A-Za-z0-9]{20}|hf_[A-Za-z0-9]{20}|eyJ[A-Za-z0-9_-]{10,}\."
    r"|-----BEGIN [A-Z ]*PRIVATE KEY|://[^/\s:@]+:[^/\s@]+@|[Bb]earer\s+[A-Za-z0-9._~+/-]{12}"
    r"|[?&](?:api_?key|access_?token|token|key|secret|password)=[^&\s$]{8}",
)
_SERVER_KEYS = ("type", "command", "args", "url", "env", "headers", "timeout", "alwaysLoad")


def looks_secret(text: str) -> bool:
    """Whether a text holds what looks like a token, a key or a password."""
    return bool(_SECRET_LOOK.search(text))


def _is_secret(name: str, value: str) -> bool:
    """A proxy's address is one only with a password in it."""
    return looks_secret(value) or (is_secret_name(name) and not name.upper().endswith("PROXY"))


def shared_settings(settings: Mapping[str, Json]) -> tuple[dict[str, Json], tuple[str, ...]]:
    """The owner's settings as a cage gets them, and what was left out of them, by name."""
    left_out: list[str] = []
    shared = _without_secrets(settings, "", left_out)
    env = shared.get("env")
    if isinstance(env, dict):
        shared["env"] = {
            name: value for name, value in env.items() if _VARIABLES.passes(os.fsencode(name))
        }
    sandbox = shared.get("sandbox")
    if isinstance(sandbox, dict) and sandbox.get("enabled"):
        # Its own sandbox works inside another one only so; see the documentation of Claude Code.
        shared["sandbox"] = {**sandbox, "enableWeakerNestedSandbox": True}
    return shared, tuple(left_out)


def shared_servers(servers: Json) -> tuple[dict[str, Json], tuple[str, ...]]:
    """MCP servers as a cage gets them, and what was left out of them, by name.

    One whose command line or address has a secret in it is left out whole.
    """
    shared: dict[str, Json] = {}
    left_out: list[str] = []
    for name, server in servers.items() if isinstance(servers, dict) else ():
        if not isinstance(server, dict):
            continue
        line = [server.get("command"), server.get("url"), *_list(server.get("args"))]
        if "headersHelper" in server or any(isinstance(w, str) and looks_secret(w) for w in line):
            left_out.append(name)
            continue
        kept = {key: server[key] for key in _SERVER_KEYS if key in server}
        for key in ("env", "headers"):
            if key in kept:
                kept[key] = _plain_pairs(kept[key], f"{name}.{key}", left_out)
        shared[name] = kept
    return shared, tuple(left_out)


def _without_secrets(value: Mapping[str, Json], path: str, left_out: list[str]) -> dict[str, Json]:
    kept: dict[str, Json] = {}
    for name, item in value.items():
        where = f"{path}.{name}" if path else name
        if isinstance(item, dict):
            kept[name] = _without_secrets(item, where, left_out)
        elif isinstance(item, list):
            kept[name] = list(_plain_items(item, where, left_out))
        elif name in HELPERS or (isinstance(item, str) and _is_secret(name, item)):
            left_out.append(where)
        else:
            kept[name] = item
    return kept


def _plain_items(items: list[Json], path: str, left_out: list[str]) -> Iterator[Json]:
    for at, item in enumerate(items):
        if isinstance(item, dict):
            yield _without_secrets(item, f"{path}[{at}]", left_out)
        elif isinstance(item, list):
            yield list(_plain_items(item, f"{path}[{at}]", left_out))
        elif isinstance(item, str) and looks_secret(item):
            left_out.append(f"{path}[{at}]")
        else:
            yield item


def _plain_pairs(pairs: Json, path: str, left_out: list[str]) -> dict[str, Json]:
    """Variables or headers. A reference to a variable (`${NAME}`) is no secret."""
    kept: dict[str, Json] = {}
    for name, value in pairs.items() if isinstance(pairs, dict) else ():
        is_reference = isinstance(value, str) and "${" in value and not looks_secret(value)
        if not is_reference and (not isinstance(value, str) or _is_secret(name, value)):
            left_out.append(f"{path}.{name}")
        else:
            kept[name] = value
    return kept


def merge_settings(base: Json, host: Json, cage: Json) -> Json:
    """The cage's settings with what the host changed since `base`; where both did, the cage's."""
    if cage in (base, host):
        return host
    if host == base:
        return cage
    if isinstance(host, dict) and isinstance(cage, dict):
        base = base if isinstance(base, dict) else {}
        merged = {
            name: merge_settings(base.get(name), host.get(name), cage.get(name))
            for name in (*host, *(name for name in cage if name not in host))
        }
        return {name: value for name, value in merged.items() if value is not None}
    if isinstance(host, list) and isinstance(cage, list):
        base = base if isinstance(base, list) else []
        removed = [item for item in base if item not in cage]
        added = [item for item in cage if item not in base and item not in host]
        return [item for item in host if item not in removed] + added
    return cage


def wanted_state(
    host: Mapping[str, Json], cwds: tuple[str, ...], api_key: str
) -> tuple[dict[str, Json], tuple[str, ...]]:
    """What `.claude.json` in a cage has to have, and what was left out of it, by name.

    host: the owner's `.claude.json`. cwds: directories that a message works in. With it a first
    start on a terminal asks nothing; what it would ask was answered by starting it in a cage.
    """
    servers, left_out = shared_servers(host.get("mcpServers"))
    projects: dict[str, Json] = {}
    for cwd in cwds:
        known = host.get("projects")
        entry = known.get(cwd) if isinstance(known, dict) else None
        entry = entry if isinstance(entry, dict) else {}
        local, also_left_out = shared_servers(entry.get("mcpServers"))
        left_out += also_left_out
        projects[cwd] = {
            "hasTrustDialogAccepted": True,
            "hasCompletedProjectOnboarding": True,
            "mcpServers": local,
            **{
                key: entry[key]
                for key in ("enabledMcpjsonServers", "disabledMcpjsonServers")
                if isinstance(entry.get(key), list)
            },
        }
    wanted: dict[str, Json] = {
        "hasCompletedOnboarding": True,
        "bypassPermissionsModeAccepted": True,
        "mcpServers": servers,
        "projects": projects,
    }
    if isinstance(host.get("theme"), str):
        wanted["theme"] = host["theme"]
    if api_key:
        wanted["customApiKeyResponses"] = {"approved": [api_key[-20:]]}
    return wanted, left_out


def updated_state(
    state: Mapping[str, Json], wanted: Mapping[str, Json], base: Mapping[str, Json]
) -> dict[str, Json]:
    """A cage's state with what is missing of `wanted`; nothing that is there is changed.

    base: what was wanted before; MCP servers follow what the owner has changed since.
    """
    updated = dict(state)
    for name, value in wanted.items():
        there, before = updated.get(name), base.get(name)
        if name == "mcpServers":
            merged = merge_settings(before or {}, value, there or {})
            updated[name] = merged if isinstance(merged, dict) else there
        elif name not in updated:
            updated[name] = value
        elif isinstance(there, dict) and isinstance(value, dict):
            updated[name] = updated_state(there, value, before if isinstance(before, dict) else {})
        elif isinstance(there, list) and isinstance(value, list):
            updated[name] = [*there, *(item for item in value if item not in there)]
    return updated


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []
