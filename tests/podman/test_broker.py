"""The login mode broker: the agent uses a login that is nowhere in its cage."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from brokering import Api, Head, Wire

from .cages import Cage, all_pids, command_line, podman, read_bytes, wait_until

KEY = "sk-ant-api03-PLANTED-KEY"
OAUTH = "sk-ant-oat01-PLANTED-ACCESS"
REFRESH = "sk-ant-ort01-PLANTED-REFRESH"
OTHER = "PLANTED-OTHER-KEY"

ASK = """
import json, os, sys, urllib.error, urllib.request
url, path, *more = sys.argv[1:]
body = more[0].encode() if more else None
request = urllib.request.Request(os.environ[url] + path, body, {"authorization": "Bearer mine"})
try:
    answer = urllib.request.urlopen(request)
except urllib.error.HTTPError as error:
    answer = error
print(json.dumps({"status": answer.status, "body": answer.read().decode()}))
"""


class Seen:
    """An API that keeps what it was asked and repeats the body."""

    def __init__(self) -> None:
        self.heads: list[Head] = []

    def talk(self, wire: Wire) -> None:
        while True:
            try:
                head = wire.head()
            except (EOFError, OSError):
                return
            self.heads.append(head)
            body = wire.body(head)
            wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def api(seen: Seen) -> Iterator[Api]:
    with Api(seen.talk) as server:
        yield server


def configure(cage: Cage, api: Api, more: str = "") -> None:
    text = f"""
        [login]
        mode = "broker"
        [login.claude]
        base_url = "http://127.0.0.1:{api.port}/gate"
        paths = ["POST /v1/messages", "GET /v1/models"]
    """
    path = cage.place.config_home / "cagewrap.toml"
    path.write_text(textwrap.dedent(text) + textwrap.dedent(more))


def login_dir(cage: Cage) -> Path:
    path = cage.place.state_home / "cagewrap/login/claude"
    path.mkdir(parents=True, mode=0o700, exist_ok=True)
    return path


def write_private(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)


def give_token(cage: Cage) -> None:
    write_private(login_dir(cage) / "token", KEY + "\n")


def give_login(cage: Cage) -> None:
    values = {
        "accessToken": OAUTH,
        "refreshToken": REFRESH,
        "expiresAt": int((time.time() + 36000) * 1000),
        "scopes": ["user:inference", "user:profile"],
        "subscriptionType": "max",
    }
    write_private(login_dir(cage) / ".credentials.json", json.dumps({"claudeAiOauth": values}))


def ask(cage: Cage, path: str, *body: str, url: str = "ANTHROPIC_BASE_URL", **more: Any) -> Any:
    return json.loads(cage.text("python3", "-c", ASK, url, path, *body, **more))


LOAD = """
import hashlib, http.client, os, time
from urllib.parse import urlsplit
url = urlsplit(os.environ["ANTHROPIC_BASE_URL"])
connection = http.client.HTTPConnection(url.hostname, url.port)
began = time.monotonic()
for number in range(1000):
    connection.request("POST", "/v1/messages", str(number).encode())
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (200, str(number).encode()), number
print("1000 requests in", time.monotonic() - began)
body = os.urandom(1 << 20) * 100
began = time.monotonic()
for chunked in (False, True):
    sent = (body[at:at + 65536] for at in range(0, len(body), 65536)) if chunked else body
    connection.request("POST", "/v1/messages", sent, encode_chunked=chunked,
                       headers={"Transfer-Encoding": "chunked"} if chunked else {})
    assert hashlib.sha256(connection.getresponse().read()).digest() == hashlib.sha256(body).digest()
print("400 MB in", time.monotonic() - began)
"""


def test_a_thousand_requests_and_large_bodies(cage: Cage, api: Api, seen: Seen) -> None:
    configure(cage, api)
    give_token(cage)
    print(cage.text("python3", "-c", LOAD, timeout_s=60))
    assert len(seen.heads) == 1002
    assert api.connections == 1


STREAM = """
import os, urllib.request
answer = urllib.request.urlopen(os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", b"{}")
while True:
    print(answer.readline().decode().strip(), flush=True)
"""


def test_a_stream_ends_with_its_reader(cage: Cage) -> None:
    """Each event comes by itself, and the API hears at once that nobody reads any more."""
    go_on = threading.Semaphore(0)
    ended: list[float] = []

    def talk(wire: Wire) -> None:
        wire.body(wire.head())
        wire.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for number in range(3):
            wire.send(b"2\r\n%d\n\r\n" % number)
            go_on.acquire(timeout=10)
        with contextlib.suppress(ConnectionResetError):
            while wire.sock.recv(1 << 16):
                pass
        ended.append(time.monotonic())

    with Api(talk) as api:
        configure(cage, api)
        give_token(cage)
        with cage.popen("python3", "-u", "-c", STREAM, stdout=subprocess.PIPE) as reader:
            assert reader.stdout is not None
            for number in range(3):
                assert reader.stdout.readline() == b"%d\n" % number
                go_on.release()
            began = time.monotonic()
            reader.kill()
            assert wait_until(lambda: ended, 5)
            assert ended[0] - began < 2.0  # the agent has a second for its TERM


def brokers() -> list[int]:
    return [pid for pid in all_pids() if command_line(pid).endswith(" broker - ")]


@pytest.mark.parametrize("user", ["root", "owner"])
def test_an_api_is_used_with_a_key_that_is_not_inside(
    make_cage: Callable[..., Cage], api: Api, seen: Seen, user: str
) -> None:
    cage = make_cage("--user", user)
    configure(cage, api)
    give_token(cage)
    assert ask(cage, "/v1/messages?beta=true", "hello") == {"status": 200, "body": "hello"}
    [head] = seen.heads
    assert head.first == "POST /gate/v1/messages?beta=true HTTP/1.1"
    assert head.all("x-api-key") == [KEY]
    assert head.get("authorization") is None
    refused = ask(cage, "/v1/files")
    assert refused["status"] == 403
    assert "POST /v1/messages" in refused["body"]
    assert len(seen.heads) == 1


GREP = r"""
import os, sys
mark = b"PLAN" + b"TED"  # not in our own arguments
found = []
def look(path):
    try:
        if os.path.isfile(path) and not os.path.islink(path) and mark in open(path, "rb").read():
            found.append(path)
    except OSError:
        pass
for top, directories, files in os.walk("/"):
    if top == "/":
        directories[:] = [one for one in directories if one not in ("proc", "sys", "dev", "usr")]
    for name in files:
        look(os.path.join(top, name))
for pid in filter(str.isdigit, os.listdir("/proc")):
    for name in ("environ", "cmdline", "maps"):
        look(f"/proc/{pid}/{name}")
print(found, os.getuid(), "ANTHROPIC_BASE_URL" in os.environ)
"""


def test_nothing_secret_is_inside_or_shown_outside(cage: Cage, api: Api, seen: Seen) -> None:
    configure(cage, api)
    give_login(cage)
    give_token(cage)
    own = {"ANTHROPIC_API_KEY": "PLANTED-BY-THE-SHELL", "CLAUDE_CODE_OAUTH_TOKEN": "PLANTED-TOO"}
    said = cage.text("python3", "-c", GREP, env=own, timeout_s=100)
    assert said.strip() == "[] 0 True"
    assert ask(cage, "/v1/messages", "x", env=own)["status"] == 200
    assert seen.heads[0].all("authorization") == [f"Bearer {OAUTH}"]
    assert seen.heads[0].all("anthropic-beta") == ["oauth-2025-04-20"]
    assert "PLANTED" not in json.dumps(cage.container())
    assert not any("PLANTED" in log for log in cage.logs())
    assert not any("PLANTED" in command_line(pid) for pid in all_pids())
    mounts = read_bytes(f"/proc/{cage.init()}/mountinfo")
    assert b"login/claude" not in mounts
    image = "localhost/cagewrap-test-of-broker"
    assert podman("commit", "--quiet", cage.name(), image).returncode == 0
    try:
        assert "PLANTED" not in podman("image", "inspect", image).stdout
        run = ("run", "--rm", "--network=none", "--entrypoint=python3", image)
        done = podman(*run, "-c", GREP)
        assert done.stdout.strip() == "[] 0 False", done.stderr
    finally:
        podman("rmi", "--force", image)
    # What the search would have found:
    (cage.private_home() / "file").write_text("PLANTED")
    said = cage.text("python3", "-c", GREP, flags=("--env", "X=PLANTED"), timeout_s=100)
    assert "/file" in said
    assert "/environ" in said


def test_a_variable_of_the_owners_is_used_outside(cage: Cage, api: Api, seen: Seen) -> None:
    """Where there is no other login; in this mode none of them reaches the agent."""
    configure(cage, api)
    for name, header in (
        ("ANTHROPIC_API_KEY", "x-api-key"),
        ("ANTHROPIC_AUTH_TOKEN", "authorization"),
    ):
        own = {name: "PLANTED-BY-THE-SHELL", "CLAUDE_CODE_USE_BEDROCK": ""}
        assert ask(cage, "/v1/messages", "x", env=own)["status"] == 200
        value = "PLANTED-BY-THE-SHELL" if header == "x-api-key" else "Bearer PLANTED-BY-THE-SHELL"
        assert seen.heads[-1].all(header) == [value]
        assert cage.text("python3", "-c", GREP, env=own).strip() == "[] 0 True"
    bedrock = {"CLAUDE_CODE_USE_BEDROCK": "1", "ANTHROPIC_API_KEY": ""}
    said = cage.text("sh", "-c", 'echo "[$CLAUDE_CODE_USE_BEDROCK]"', env=bedrock)
    assert said == "[]\n"


def test_claude_is_told_what_kind_of_login_it_uses(cage: Cage, api: Api) -> None:
    """The same subscription, so that it behaves the same; the token is a placeholder."""
    configure(cage, api)
    give_login(cage)
    script = (
        'cat "$CLAUDE_SECURESTORAGE_CONFIG_DIR/.credentials.json"; echo; '
        'touch "$CLAUDE_SECURESTORAGE_CONFIG_DIR/x" 2>&1; echo "[$ANTHROPIC_AUTH_TOKEN]"'
    )
    text, failure, token = cage.text("sh", "-c", script).splitlines()
    found = json.loads(text)["claudeAiOauth"]
    assert found["accessToken"].startswith("sk-cagewrap-")
    assert found["refreshToken"] is None
    assert found["subscriptionType"] == "max"
    assert found["scopes"] == ["user:inference", "user:profile"]
    assert "Read-only" in failure
    assert token == "[]"


def test_a_broker_that_dies_comes_back_and_nothing_passes_meanwhile(cage: Cage, api: Api) -> None:
    configure(cage, api)
    give_token(cage)
    assert ask(cage, "/v1/models")["status"] == 200
    [first] = brokers()
    os.kill(first, signal.SIGKILL)
    assert ask(cage, "/v1/models")["status"] == 200
    [second] = brokers()
    assert second != first
    assert "broker: ended with -9" in cage.log()


def test_a_broker_ends_with_its_cage(cage: Cage, api: Api) -> None:
    configure(cage, api)
    give_token(cage)
    assert ask(cage, "/v1/models")["status"] == 200
    assert len(brokers()) == 1
    assert cage.cagewrap("stop").code == 0
    assert wait_until(lambda: brokers() == [], 2)
    assert ask(cage, "/v1/models")["status"] == 200
    assert len(brokers()) == 1


def test_a_broker_ends_with_a_keeper_that_is_killed(cage: Cage, api: Api) -> None:
    configure(cage, api)
    give_token(cage)
    assert ask(cage, "/v1/models")["status"] == 200
    os.kill(cage.keeper(), signal.SIGKILL)
    assert wait_until(lambda: brokers() == [], 2)
    assert ask(cage, "/v1/models")["status"] == 200
    assert len(brokers()) == 1


def test_requests_are_counted_for_each_session(cage: Cage, api: Api) -> None:
    configure(cage, api)
    give_token(cage)
    for _ in range(3):
        ask(cage, "/v1/messages", "hello")
    ask(cage, "/v1/files")
    ask(cage, "/v1/models", flags=("--session", "other"))
    time.sleep(0.5)
    listed = json.loads(cage.cagewrap("ls", "--json").out)["sessions"]
    found = {one["session"]: one["requests"]["claude"] for one in listed}
    assert found[""]["requests"] == 4
    assert found[""]["answered_2xx"] == 3
    assert found[""]["refused"] == 1
    assert (found[""]["sent_bytes"], found[""]["received_bytes"]) == (15, 15)
    assert found["other"]["requests"] == 1
    assert "REQUESTS" in cage.cagewrap("ls").out.decode()
    assert cage.cagewrap("stop", "--all").code == 0
    listed = json.loads(cage.cagewrap("ls", "--json").out)["sessions"]
    assert {one["session"]: one["requests"]["claude"]["requests"] for one in listed} == {
        "": 4,
        "other": 1,
    }


def test_a_cage_for_one_command_leaves_nothing(cage: Cage, api: Api) -> None:
    configure(cage, api)
    give_token(cage)
    for _ in range(5):
        assert ask(cage, "/v1/messages", "x", flags=("--rm",))["status"] == 200
    assert wait_until(lambda: cage.names() == [], 10), cage.names()
    assert wait_until(lambda: brokers() == [], 2)


def test_another_agent_by_a_table_of_its_own(cage: Cage, api: Api, seen: Seen) -> None:
    """In any mode of Claude's login, at the port its own configuration names."""
    secret = cage.place.root / "key"
    write_private(secret, OTHER)
    (cage.place.config_home / "cagewrap.toml").write_text(
        textwrap.dedent(f"""
            [login.codex]
            base_url = "http://127.0.0.1:{api.port}"
            paths = ["POST /v1/responses", "GET /v1/models"]
            port = 7718
            token_file = "{secret}"
            env = {{ OPENAI_BASE_URL = "{{url}}/v1", OPENAI_API_KEY = "{{placeholder}}" }}
        """)
    )
    answer = ask(cage, "/responses", "hi", url="OPENAI_BASE_URL")
    assert answer == {"status": 200, "body": "hi"}
    assert seen.heads[0].all("authorization") == [f"Bearer {OTHER}"]
    said = cage.text("sh", "-c", 'echo "$OPENAI_BASE_URL $OPENAI_API_KEY [$ANTHROPIC_BASE_URL]"')
    assert said.startswith("http://127.0.0.1:7718/v1 sk-cagewrap-")
    assert said.endswith(" []\n")


def test_a_port_that_is_taken_is_named(cage: Cage, api: Api) -> None:
    configure(cage, api, "port = 7719\n")
    give_token(cage)
    listen = (
        "import socket, time; s = socket.create_server(('127.0.0.1', 7719)); print(1, flush=True)"
    )
    none = ("--login", "none")
    with cage.popen("python3", "-c", listen + "; time.sleep(99)", flags=none, stdout=-1) as held:
        assert held.stdout is not None
        held.stdout.readline()
        done = cage.run("true")
        assert done.code == 120, done.err
        assert b"cannot listen on port 7719" in done.err
        held.kill()
    assert wait_until(lambda: cage.run("true").code == 0, 5)


def test_settings_that_change_hold_for_the_next_command(cage: Cage, api: Api) -> None:
    configure(cage, api)
    give_token(cage)
    assert ask(cage, "/v1/models")["status"] == 200
    path = cage.place.config_home / "cagewrap.toml"
    path.write_text(path.read_text().replace(', "GET /v1/models"', ""))
    assert ask(cage, "/v1/models")["status"] == 403
    assert wait_until(lambda: len(brokers()) == 1, 2)


def test_without_any_login_the_owner_hears_of_it(cage: Cage, api: Api) -> None:
    configure(cage, api)
    done = cage.run("sh", "-c", 'echo "[$ANTHROPIC_BASE_URL]"')
    assert done.out == b"[]\n"
    assert b"not logged in: the mode is broker, and there is no login and no token" in done.err
    assert brokers() == []
