"""What of Claude's settings and state a cage gets."""

from __future__ import annotations

import json

import pytest

from cagewrap.claudesettings import (
    looks_secret,
    merge_settings,
    shared_servers,
    shared_settings,
    updated_state,
    wanted_state,
)

SECRETS = [
    "sk-ant-oat01-" + "x" * 20,
    "ghp_" + "a1B2" * 9,
    "github_pat_11ABC",
    "glpat-xyz",
    "AKIAIOSFODNN7EXAMPLE",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.x",
    "https://me:hunter2@example.org/x",
    "Authorization: Bearer abcdef123456789",
    "https://example.org/mcp?api_key=abcdef1234",
    "-----BEGIN OPENSSH PRIVATE KEY-----",
]


@pytest.mark.parametrize("secret", SECRETS)
def test_a_secret_is_left_out_wherever_it_stands(secret: str) -> None:
    settings = {
        "model": "opus",
        "env": {"HARMLESS": secret, "DEBUG": "1"},
        "hooks": {"Stop": [{"hooks": [{"type": "command", "command": f"curl -H {secret!r}"}]}]},
        "list": ["ok", secret, [secret]],
        "deep": {"er": {"still": secret}},
    }
    shared, left_out = shared_settings(settings)
    assert secret not in json.dumps(shared)
    assert shared["model"] == "opus"
    assert shared["env"] == {"DEBUG": "1"}
    assert shared["list"] == ["ok", []]
    assert set(left_out) == {
        "env.HARMLESS",
        "hooks.Stop[0].hooks[0].command",
        "list[1]",
        "list[2][0]",
        "deep.er.still",
    }


@pytest.mark.parametrize(
    "text",
    [
        *("opus", "Bash(npm run test:*)", "https://example.org/x?page=1", "basket-weaving", "100"),
        *("curl -H 'Authorization: Bearer $TOKEN'", "task-", "/home/me/.claude/hooks/a.sh"),
    ],
)
def test_ordinary_texts_are_no_secrets(text: str) -> None:
    assert not looks_secret(text)


def test_programs_that_print_secrets_and_secret_variables_are_left_out() -> None:
    settings = {
        "apiKeyHelper": "/home/me/bin/key",
        "awsCredentialExport": "aws",
        "awsAuthRefresh": "aws sso login",
        "gcpAuthRefresh": "gcloud",
        "otelHeadersHelper": "x",
        "env": {
            "ANTHROPIC_API_KEY": "x",
            "ANTHROPIC_CUSTOM_HEADERS": "x",
            "MY_PASSWORD": "x",
            "HTTPS_PROXY": "http://proxy:8080",
            "HTTP_PROXY": "http://me:pw@proxy:8080",
            "ANTHROPIC_MODEL": "opus",
            "MAX_THINKING_TOKENS": "1000",
            "HOME": "/x",
            "PATH": "/x",
            "CLAUDE_CONFIG_DIR": "/x",
            "SSH_AUTH_SOCK": "/x",
            "XDG_RUNTIME_DIR": "/x",
        },
    }
    shared, _ = shared_settings(settings)
    assert shared == {
        "env": {
            "HTTPS_PROXY": "http://proxy:8080",
            "ANTHROPIC_MODEL": "opus",
            "MAX_THINKING_TOKENS": "1000",
        }
    }


def test_claudes_own_sandbox_works_in_the_cage() -> None:
    assert shared_settings({"sandbox": {"enabled": True, "x": 1}})[0]["sandbox"] == {
        "enabled": True,
        "x": 1,
        "enableWeakerNestedSandbox": True,
    }
    assert shared_settings({"sandbox": {"enabled": False}})[0]["sandbox"] == {"enabled": False}


@pytest.mark.parametrize(
    ("base", "host", "cage", "merged"),
    [
        ({}, {"a": 1}, {}, {"a": 1}),
        ({"a": 1}, {"a": 2}, {"a": 1}, {"a": 2}),
        ({"a": 1}, {}, {"a": 1, "b": 1}, {"b": 1}),
        ({"a": 1}, {"a": 1}, {"a": 3}, {"a": 3}),
        ({"a": 1}, {"a": 2}, {"a": 3}, {"a": 3}),
        ({"a": 1}, {"a": 2, "c": 1}, {}, {"c": 1}),
        ({"p": {"allow": ["x"]}}, {"p": {"allow": ["x", "y"]}}, {"p": {"allow": ["x", "z"]}},
         {"p": {"allow": ["x", "y", "z"]}}),
        ({"l": ["x", "y"]}, {"l": ["x", "y", "h"]}, {"l": ["y", "c"]}, {"l": ["y", "h", "c"]}),
        ({}, {"p": {"a": 1}}, {"p": "odd"}, {"p": "odd"}),
    ],
)  # fmt: skip
def test_what_either_side_changed_stays(base: dict, host: dict, cage: dict, merged: dict) -> None:
    assert merge_settings(base, host, cage) == merged


def test_mcp_servers_come_without_their_secrets() -> None:
    servers = {
        "plain": {"command": "npx", "args": ["x"], "env": {"DEBUG": "1", "API_KEY": "k"}},
        "named": {"type": "http", "url": "https://x/", "headers": {"Authorization": "Bearer ${T}"}},
        "header": {"type": "http", "url": "https://x/", "headers": {"X-Key": "k", "X-Team": "t"}},
        "secret": {"command": "x", "args": ["--token", SECRETS[0]]},
        "address": {"url": "https://x/?token=abcdefgh1"},
        "helper": {"url": "https://x/", "headersHelper": "/bin/x"},
        "odd": "x",
    }
    shared, left_out = shared_servers(servers)
    assert shared == {
        "plain": {"command": "npx", "args": ["x"], "env": {"DEBUG": "1"}},
        "named": servers["named"],
        "header": {"type": "http", "url": "https://x/", "headers": {"X-Team": "t"}},
    }
    assert set(left_out) == {
        "plain.env.API_KEY", "header.headers.X-Key", "secret", "address", "helper",
    }  # fmt: skip
    assert shared_servers(None) == ({}, ())


def test_only_this_project_of_the_hosts_state_is_taken() -> None:
    host = {
        "theme": "light",
        "oauthAccount": {"emailAddress": "me@example.org"},
        "primaryApiKey": "sk-x",
        "customApiKeyResponses": {"approved": ["x"]},
        "projects": {
            "/p": {
                "mcpServers": {"local": {"command": "x", "env": {"T_TOKEN": "x"}}},
                "enabledMcpjsonServers": ["a"],
                "history": ["secret"],
                "lastCost": 1,
            },
            "/other": {"hasTrustDialogAccepted": True},
        },
    }
    wanted, left_out = wanted_state(host, ("/p", "/p/sub"), "sk-ant-" + "k" * 30)
    assert left_out == ("local.env.T_TOKEN",)
    trusted = {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}
    local = {"command": "x", "env": {}}
    assert wanted == {
        "hasCompletedOnboarding": True,
        "bypassPermissionsModeAccepted": True,
        "theme": "light",
        "mcpServers": {},
        "projects": {
            "/p": {**trusted, "mcpServers": {"local": local}, "enabledMcpjsonServers": ["a"]},
            "/p/sub": {**trusted, "mcpServers": {}},
        },
        "customApiKeyResponses": {"approved": ["k" * 20]},
    }
    assert wanted_state({"projects": [], "mcpServers": 3}, ("/p",), "")[0]["mcpServers"] == {}


def test_only_what_is_missing_is_added_to_a_cages_state() -> None:
    wanted, _ = wanted_state({"mcpServers": {"a": {"command": "a"}}}, ("/p",), "k" * 20)
    theirs = {
        "hasCompletedOnboarding": False,
        "theme": "dark",
        "projects": {"/p": {"hasTrustDialogAccepted": False, "x": 1}, "/q": {}},
        "customApiKeyResponses": {"approved": ["other"], "rejected": []},
        "mcpServers": {"b": {"command": "b"}},
    }
    state = updated_state(theirs, wanted, {})
    assert state["hasCompletedOnboarding"] is False
    assert state["projects"]["/p"] == {
        "hasTrustDialogAccepted": False, "x": 1, "hasCompletedProjectOnboarding": True,
        "mcpServers": {},
    }  # fmt: skip
    assert state["customApiKeyResponses"] == {"approved": ["other", "k" * 20], "rejected": []}
    assert state["mcpServers"] == {"a": {"command": "a"}, "b": {"command": "b"}}
    assert updated_state(state, wanted, wanted) == state
    fewer, _ = wanted_state({}, ("/p",), "k" * 20)
    assert updated_state(state, fewer, wanted)["mcpServers"] == {"b": {"command": "b"}}
