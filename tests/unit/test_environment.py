"""What reaches the agent's environment."""

from __future__ import annotations

import os

import pytest

from cagewrap.environment import (
    DEFAULT_PASSED,
    agent_environment,
    build_pass_rules,
    find_secret_names,
    is_secret_name,
    read_secret_file,
    zone_name,
)
from cagewrap.errors import ConfigInvalidError, UnsupportedError
from cagewrap.model import EnvPolicy, Identity

IMAGE = {b"PATH": b"/usr/bin:/bin", b"container": b"podman", b"HOME": b"/root"}


def agent(caller=None, image=None, *, policy=None, identity=Identity.ROOT, **more):
    return agent_environment(
        policy or EnvPolicy(passed=DEFAULT_PASSED),
        caller or {},
        IMAGE if image is None else image,
        home=b"/home/me",
        user=b"root",
        shell=b"/bin/bash",
        identity=identity,
        **more,
    )


def test_nothing_of_the_caller_is_needed():
    assert agent() == {
        b"PATH": b"/usr/bin:/bin",
        b"container": b"podman",
        b"HOME": b"/home/me",
        b"USER": b"root",
        b"LOGNAME": b"root",
        b"SHELL": b"/bin/bash",
        b"LANG": b"C.UTF-8",
        b"IS_SANDBOX": b"1",
    }


@pytest.mark.parametrize(
    "name",
    [
        "TERM", "COLORTERM", "TERM_PROGRAM_VERSION", "NO_COLOR", "COLUMNS", "TZ", "LANGUAGE",
        "CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT", "CLAUDE_AGENT_SDK_VERSION", "CLAUDE_PROJECT_DIR",
        "CLAUDE_CODE_SDK_READS_SESSION_STATE", "CLAUDE_CODE_EXECUTABLE", "ANTHROPIC_API_KEY",
        "ANTHROPIC_BASE_URL", "CLAUDE_CODE_OAUTH_TOKEN", "CODEX_API_KEY", "OPENAI_API_KEY",
        "GEMINI_API_KEY", "OPENCODE_CONFIG_CONTENT", "PI_OFFLINE", "MCP_TIMEOUT", "TRACEPARENT",
        "MAX_THINKING_TOKENS", "BASH_MAX_TIMEOUT_MS", "LC_TERMINAL",
    ],
)  # fmt: skip
def test_passes_by_default(name):
    assert agent({name.encode(): b"v"})[name.encode()] == b"v"


@pytest.mark.parametrize(
    "name",
    [
        "PATH", "HOME", "SSH_AUTH_SOCK", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "DISPLAY",
        "GITHUB_TOKEN", "GH_TOKEN", "AWS_SECRET_ACCESS_KEY", "NPM_TOKEN", "HTTPS_PROXY", "EDITOR",
        "IS_SANDBOX", "CAGEWRAP_IMAGE", "LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "TMUX",
        "CLAUDE_CONFIG_DIR", "CLAUDE_SECURESTORAGE_CONFIG_DIR", "ANTHROPIC_UNIX_SOCKET",
        "CLAUDE_CODE_HOST_CREDS_FILE", "CLAUDE_CODE_OAUTH_REFRESH_TOKEN", "CODEX_HOME",
        "CLAUDE_CODE_SSE_PORT", "CLAUDE_CODE_BUBBLEWRAP", "PI_CODING_AGENT_DIR", "XANTHROPIC_X",
        "MCP_X_SOCK", "OTEL_EXPORTER_OTLP_HEADERS", "TERMINFO", "PWD", "OLDPWD", "_MEIPASS2",
    ],
)  # fmt: skip
def test_does_not_pass_by_default(name):
    assert agent({name.encode(): b"planted"}).get(name.encode()) != b"planted"


def test_empty_stays_empty_and_bytes_stay_bytes():
    found = agent({b"ANTHROPIC_API_KEY": b"", b"CLAUDE_X": b"\xff\n=\x80"})
    assert found[b"ANTHROPIC_API_KEY"] == b""
    assert found[b"CLAUDE_X"] == b"\xff\n=\x80"


def test_owner_is_in_no_sandbox_and_pwd_is_given():
    found = agent({b"IS_SANDBOX": b"1"}, identity=Identity.OWNER, cwd=b"/p\xff")
    assert b"IS_SANDBOX" not in found
    assert found[b"PWD"] == b"/p\xff"


def test_an_image_without_path_gets_one():
    assert agent(image={})[b"PATH"].endswith(b"/bin")


def test_the_last_rule_that_matches_decides():
    rules = build_pass_rules(("A_*", "!A_B*", "A_BC", "!X", "X"))
    names = (b"A_", b"A_Q", b"A_B", b"A_BD", b"A_BC", b"X", b"Y")
    assert [rules.passes(name) for name in names] == [True, True, False, False, True, True, False]
    again = build_pass_rules(("A_BC", "!A_*", "P*S"))
    assert not again.passes(b"A_BC")
    assert again.passes(b"PS")
    assert not again.passes(b"P")


def test_fixed_and_secrets_win(tmp_path):
    secret = tmp_path / "key"
    secret.write_bytes(b"s3cret\n\n")
    policy = EnvPolicy(
        passed=DEFAULT_PASSED,
        fixed=(("LANG", "de_DE.UTF-8"), ("IS_SANDBOX", "0"), ("RAW", "\udcff"), ("TERM", "dumb")),
        secret_names=("GH_TOKEN", "ABSENT"),
        secret_files=(("KEY", str(secret)),),
    )
    found = agent({b"GH_TOKEN": b"t", b"TERM": b"xterm"}, policy=policy)
    assert found[b"LANG"] == b"de_DE.UTF-8"
    assert found[b"IS_SANDBOX"] == b"0"
    assert found[b"RAW"] == b"\xff"
    assert found[b"TERM"] == b"dumb"
    assert found[b"GH_TOKEN"] == b"t"
    assert found[b"KEY"] == b"s3cret\n"
    assert b"ABSENT" not in found


@pytest.mark.parametrize("content", [None, b"", b"\n", b"a\0b", b"x" * 65537])
def test_refuses_a_secret_file(tmp_path, content):
    path = tmp_path / "key"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigInvalidError) as caught:
        read_secret_file(str(path))
    assert str(path) in caught.value.message
    assert "xxx" not in caught.value.message


def test_refuses_a_fifo_as_secret_file(tmp_path):
    path = tmp_path / "fifo"
    os.mkfifo(path)
    with pytest.raises(ConfigInvalidError):
        read_secret_file(str(path))


def test_refuses_a_variable_that_names_a_descriptor():
    name = b"CLAUDE_CODE_OAUTH_TOKEN_FILE_DESCRIPTOR"
    with pytest.raises(UnsupportedError, match=name.decode()):
        agent({name: b"3"})
    assert agent({name: b""})[name] == b""
    dropped = EnvPolicy(passed=(*DEFAULT_PASSED, "!" + name.decode()))
    assert name not in agent({name: b"3"}, policy=dropped)
    with pytest.raises(UnsupportedError):
        agent(policy=EnvPolicy(fixed=(("X_FILE_DESCRIPTOR", "3"),)))


@pytest.mark.parametrize(
    ("caller", "image", "wanted"),
    [
        ({}, {}, {"LANG": "C.UTF-8"}),
        ({"LANG": "en_US.UTF-8"}, {}, {"LANG": "C.UTF-8"}),
        ({"LANG": "C"}, {}, {"LANG": "C.UTF-8"}),
        ({"LANG": "C.utf8"}, {}, {"LANG": "C.utf8"}),
        ({"LANG": "de_DE.UTF-8", "LC_TIME": "de_DE.UTF-8"}, {}, {"LANG": "C.UTF-8"}),
        ({"LC_ALL": "POSIX"}, {}, {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}),
        ({"LC_ALL": ""}, {}, {"LANG": "C.UTF-8", "LC_ALL": ""}),
        ({"LC_CTYPE": "C"}, {}, {"LANG": "C.UTF-8", "LC_CTYPE": "C.UTF-8"}),
        ({"LC_COLLATE": "C"}, {}, {"LANG": "C.UTF-8", "LC_COLLATE": "C"}),
        ({"LC_ALL": "de_DE.ISO-8859-1"}, {}, {"LANG": "C.UTF-8"}),
        ({}, {"LANG": "de_DE.UTF-8"}, {"LANG": "de_DE.UTF-8"}),
        ({"LC_TIME": "de_DE.UTF-8"}, {"LANG": "de_DE.UTF-8"},
         {"LANG": "de_DE.UTF-8", "LC_TIME": "de_DE.UTF-8"}),
        ({"LANG": "fr_FR.UTF-8"}, {"LANG": "de_DE.UTF-8"}, {"LANG": "de_DE.UTF-8"}),
        ({}, {"LANG": "en_US", "LC_ALL": "en_US@euro"}, {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}),
    ],
)  # fmt: skip
def test_the_locale_is_utf8_and_there(caller, image, wanted):
    def raw(some):
        return {name.encode(): value.encode() for name, value in some.items()}

    found = agent(raw(caller), raw(image))
    assert {n: v for n, v in found.items() if n.startswith((b"LANG", b"LC_"))} == raw(wanted)


@pytest.mark.parametrize(
    ("caller", "image", "link", "wanted"),
    [
        (None, None, b"", None),
        (None, None, b"/usr/share/zoneinfo/Europe/Berlin", b"Europe/Berlin"),
        (None, None, b"../usr/share/zoneinfo/Etc/UTC", b"Etc/UTC"),
        (None, b"Asia/Tokyo", b"/usr/share/zoneinfo/Europe/Berlin", b"Asia/Tokyo"),
        (b"CET-1CEST", b"Asia/Tokyo", b"", b"CET-1CEST"),
        (b"", None, b"/usr/share/zoneinfo/Europe/Berlin", b""),
        (b":/etc/localtime", b"Asia/Tokyo", b"/x/zoneinfo/Europe/Berlin", b"Europe/Berlin"),
        (b":/usr/share/zoneinfo/posix/Europe/Rome", None, b"", b"Europe/Rome"),
        (b"/no/where", None, b"", None),
    ],
)
def test_time_zone(caller, image, link, wanted):
    found = agent(
        {} if caller is None else {b"TZ": caller},
        {} if image is None else {b"TZ": image},
        localtime=link,
    )
    assert found.get(b"TZ") == wanted


def test_time_zone_can_be_kept_out():
    policy = EnvPolicy(passed=(*DEFAULT_PASSED, "!TZ"))
    found = agent({b"TZ": b"Asia/Tokyo"}, policy=policy, localtime=b"/zoneinfo/Europe/Rome")
    assert b"TZ" not in found


def test_zone_name_of_another_path_is_empty():
    assert zone_name(b"/etc/whatever") == b""


@pytest.mark.parametrize(
    "name",
    [
        "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN", "GH_TOKEN",
        "CLAUDE_CODE_SESSION_ACCESS_TOKEN", "ANTHROPIC_CUSTOM_HEADERS", "MCP_CLIENT_SECRET",
        "OPENCODE_CONFIG_CONTENT", "OPENCODE_SERVER_PASSWORD", "npm_authtoken", "API_TOKENS",
        "ANTHROPIC_FOUNDRY_API_KEY", "SENTRY_DSN", "https_proxy", b"PGPASS", "MAX_TOKEN",
    ],
)  # fmt: skip
def test_secret_names(name):
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    ["MAX_THINKING_TOKENS", "CLAUDE_CODE_MAX_OUTPUT_TOKENS", "ANTHROPIC_BASE_URL", "TERM",
     "ANTHROPIC_MODEL", "CLAUDE_CODE_ENTRYPOINT", "LANG", "PATH", "TRACEPARENT"],
)  # fmt: skip
def test_names_of_no_secret(name):
    assert not is_secret_name(name)


def test_declared_secrets_count_as_secret():
    policy = EnvPolicy(secret_names=("PLAIN",), secret_files=(("OTHER", "/f"),))
    names = [b"PLAIN", b"OTHER", b"X_KEY", b"TERM"]
    assert find_secret_names(policy, names) == {b"PLAIN", b"OTHER", b"X_KEY"}
