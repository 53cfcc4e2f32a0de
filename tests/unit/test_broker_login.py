"""Where a broker finds the login, the way to the API, and its process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from base64 import b64encode
from pathlib import Path

import pytest

from brokering import (
    API_KEY,
    OAUTH_TOKEN,
    Api,
    Wire,
    brokered,
    eventually,
    get,
    make_certificate,
    post,
)
from cagewrap.egress.counts import Count, read_counts, write_counts
from cagewrap.egress.dial import find_proxy
from cagewrap.egress.gate import parse_base
from cagewrap.upstream import Secret, Upstream, render_upstreams

SOURCE = Path(__file__).parents[2] / "src"


def show_login(wire: Wire) -> None:
    """Answers with the login it was sent."""
    while True:
        try:
            head = wire.head()
        except (EOFError, OSError):
            return
        wire.body(head)
        text = (head.get("x-api-key") or head.get("authorization") or "nothing").encode()
        wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))


def credentials(path: Path, token: str, lasts_s: float) -> Secret:
    """A login as Claude Code writes it, by rename as it does."""
    values = {
        "accessToken": token,
        "refreshToken": "sk-ant-ort01-MARKED",
        "expiresAt": int((time.time() + lasts_s) * 1000),
        "scopes": ["user:inference"],
    }
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"claudeAiOauth": values}))
    new.replace(path)
    return Secret(credentials=str(path))


def test_a_login_that_was_renewed_is_used_at_once(tmp_path: Path) -> None:
    path = tmp_path / "login.json"
    secret = credentials(path, OAUTH_TOKEN, 3600)
    with (
        Api(show_login) as api,
        brokered(tmp_path, api.port, secret=secret) as broker,
        broker.connect() as wire,
    ):
        for token in (OAUTH_TOKEN, "sk-ant-oat01-SECOND", "sk-ant-oat01-THIRD"):
            credentials(path, token, 3600)
            wire.send(get())
            assert wire.body(wire.head()) == f"Bearer {token}".encode()


def test_a_request_waits_for_a_login_that_is_being_renewed(tmp_path: Path) -> None:
    path = tmp_path / "login.json"
    secret = credentials(path, "sk-ant-oat01-OLD", -60)
    with (
        Api(show_login) as api,
        brokered(tmp_path, api.port, secret=secret) as broker,
        broker.connect() as wire,
    ):
        wire.send(post(b"{}"))
        threading.Timer(0.6, credentials, (path, "sk-ant-oat01-NEW", 3600)).start()
        began = time.monotonic()
        assert wire.body(wire.head()) == b"Bearer sk-ant-oat01-NEW"
        assert 0.5 < time.monotonic() - began < 3


@pytest.mark.parametrize(
    "content", [None, "", "{}", "[]", '{"claudeAiOauth": {"accessToken": ""}}']
)
def test_without_a_login_the_agent_hears_what_to_do(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "login.json"
    if content is not None:
        path.write_text(content)
    with (
        Api() as api,
        brokered(tmp_path, api.port, secret=Secret(credentials=str(path))) as broker,
    ):
        head, body = broker.ask(get())
        assert head.status == 401
        assert head.get("x-should-retry") == "false"
        assert b"authentication_error" in body
        assert b"cagewrap login" in body
        assert api.connections == 0
        assert broker.count().refused == 1


@pytest.mark.parametrize("content", ["", "two words", "a\nb", "ä", "x\x00y", "a\tb"])
def test_refuses_a_secret_that_is_no_word(tmp_path: Path, content: str) -> None:
    (tmp_path / "token").write_text(content)
    secret = Secret(file=str(tmp_path / "token"))
    with Api() as api, brokered(tmp_path, api.port, secret=secret) as broker:
        head, body = broker.ask(get())
        assert head.status == 401
        assert b"is not one line with one word" in body
        assert api.connections == 0


def test_a_command_is_run_once_for_many(tmp_path: Path) -> None:
    script = f"echo run >> {tmp_path}/runs; sleep 0.3; echo {API_KEY}"
    secret = Secret(command=("sh", "-c", script))
    env = {"PATH": os.environ["PATH"]}
    with Api(show_login) as api, brokered(tmp_path, api.port, secret=secret, env=env) as broker:
        wires = [broker.connect() for _ in range(5)]
        for wire in wires:
            wire.send(get())
        for wire in wires:
            assert wire.body(wire.head()) == API_KEY.encode()
            wire.close()
        assert broker.ask(get())[1] == API_KEY.encode()
    assert (tmp_path / "runs").read_text() == "run\n"


def test_a_command_that_fails_is_named_and_what_it_said_is_not(tmp_path: Path) -> None:
    secret = Secret(command=("sh", "-c", "echo MARKED; echo MARKED >&2; exit 3"))
    env = {"PATH": os.environ["PATH"]}
    with Api() as api, brokered(tmp_path, api.port, secret=secret, env=env) as broker:
        for _ in range(3):
            head, body = broker.ask(get())
            assert head.status == 401
            assert b"the command 'sh' for the login 'claude' failed: ended with status 3" in body
            assert b"MARKED" not in body
        assert api.connections == 0


def test_a_refused_login_is_read_again(tmp_path: Path) -> None:
    """A command prints another token when the first was refused."""
    script = f"echo run >> {tmp_path}/runs; echo sk-ant-oat01-$(wc -l < {tmp_path}/runs)"
    secret = Secret(command=("sh", "-c", script))

    def talk(wire: Wire) -> None:
        while True:
            try:
                head = wire.head()
            except (EOFError, OSError):
                return
            status = "401 No" if head.get("authorization") == "Bearer sk-ant-oat01-1" else "200 OK"
            wire.send(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode())

    env = {"PATH": os.environ["PATH"]}
    with Api(talk) as api, brokered(tmp_path, api.port, secret=secret, env=env) as broker:
        assert [broker.ask(get())[0].status for _ in range(3)] == [401, 200, 200]


# --- the way to the API ---------------------------------------------------------------------------


def test_an_api_with_a_certificate_of_the_owners_ca(tmp_path: Path) -> None:
    ca, context = make_certificate(tmp_path)
    for env in ({"NODE_EXTRA_CA_CERTS": str(ca)},):
        with (
            Api(show_login, context) as api,
            brokered(tmp_path, api.port, scheme="https", host="localhost", env=env) as broker,
            broker.connect() as wire,
        ):
            for _ in range(3):
                wire.send(post(bytes(100_000)))
                assert wire.body(wire.head()) == API_KEY.encode()
            assert api.connections == 1


@pytest.mark.parametrize("name", ["localhost", "other.example"])
def test_refuses_a_certificate_that_is_not_the_apis(tmp_path: Path, name: str) -> None:
    """Unknown CA; known CA, but another's name. The login is not sent."""
    ca, context = make_certificate(tmp_path, name)
    env = {"NODE_EXTRA_CA_CERTS": str(ca)} if name != "localhost" else {}
    with (
        Api(show_login, context) as api,
        brokered(tmp_path, api.port, scheme="https", host="localhost", env=env) as broker,
    ):
        head, body = broker.ask(post(b"{}"))
        assert head.status == 502
        assert b"is not trusted" in body
        assert broker.count().failed == 1


def test_an_api_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    with Api() as api:
        port = api.port
    with brokered(tmp_path, port) as broker:
        head, body = broker.ask(post(b"{}"))
        assert head.status == 502
        assert f"127.0.0.1:{port} cannot be reached".encode() in body


class Proxy:
    """Carries CONNECT to a port of this machine, whatever host was named."""

    def __init__(self, port: int, status: str = "200 OK") -> None:
        self.port = port
        self.status = status
        self.asked: list[str] = []
        self.logins: list[str | None] = []

    def talk(self, wire: Wire) -> None:
        head = wire.head()
        self.asked.append(head.first)
        self.logins.append(head.get("proxy-authorization"))
        wire.send(f"HTTP/1.1 {self.status}\r\n\r\n".encode())
        if not self.status.startswith("2"):
            return
        with socket.create_connection(("127.0.0.1", self.port)) as far:
            back = threading.Thread(target=copy, args=(far, wire.sock), daemon=True)
            back.start()
            copy(wire.sock, far)
            back.join(5)


def copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
    except OSError:
        pass
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def test_through_the_owners_proxy(tmp_path: Path) -> None:
    ca, context = make_certificate(tmp_path)
    with Api(show_login, context) as api:
        proxy = Proxy(api.port)
        with Api(proxy.talk) as server:
            env = {
                "HTTPS_PROXY": f"http://me:p%40ss@127.0.0.1:{server.port}",
                "NODE_EXTRA_CA_CERTS": str(ca),
            }
            with brokered(tmp_path, api.port, scheme="https", host="localhost", env=env) as broker:
                assert broker.ask(get())[1] == API_KEY.encode()
            assert proxy.asked == [f"CONNECT localhost:{api.port} HTTP/1.1"]
            assert proxy.logins == ["Basic " + b64encode(b"me:p@ss").decode()]


def test_a_proxy_that_refuses_is_named(tmp_path: Path) -> None:
    proxy = Proxy(0, "407 Who are you")
    with Api(proxy.talk) as server:
        env = {"https_proxy": f"127.0.0.1:{server.port}"}
        with brokered(tmp_path, 443, scheme="https", host="localhost", env=env) as broker:
            head, body = broker.ask(get())
            assert head.status == 502
            assert b"the proxy refused with status 407" in body


@pytest.mark.parametrize(
    ("no_proxy", "is_used"),
    [("", True), ("*", False), ("anthropic.com", False), (".anthropic.com", False),
     ("*.anthropic.com", False), ("other.com, api.anthropic.com:443", False),
     ("api.anthropic.com:8443", True), ("notanthropic.com", True), ("com.example", True)],
)  # fmt: skip
def test_no_proxy(no_proxy: str, is_used: bool) -> None:
    env = {"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": no_proxy}
    assert (find_proxy(parse_base("https://api.anthropic.com"), env) is not None) == is_used
    assert find_proxy(parse_base("http://api.anthropic.com"), env) is None


def test_refuses_a_proxy_of_another_kind(tmp_path: Path) -> None:
    env = {"HTTPS_PROXY": "socks5://localhost:1080"}
    with brokered(tmp_path, 443, scheme="https", host="localhost", env=env) as broker:
        head, body = broker.ask(get())
        assert head.status == 502
        assert b"must be http://HOST:PORT, not socks5://" in body
    with pytest.raises(ValueError, match="not socks5://"):
        find_proxy(parse_base("https://x"), {"ALL_PROXY": "socks5://localhost:1080"})


# --- counts ---------------------------------------------------------------------------------------


def test_counts_go_on_where_they_were(tmp_path: Path) -> None:
    write_counts(str(tmp_path), {"claude": Count(requests=5, answered_5xx=2)})
    with Api() as api:
        for _ in range(2):
            with brokered(tmp_path, api.port) as broker:
                broker.ask(post(b"abc"))
    found = read_counts(str(tmp_path))["claude"]
    assert (found.requests, found.answered_2xx, found.answered_5xx) == (7, 2, 2)
    assert (found.sent_bytes, found.received_bytes) == (6, 10)
    assert abs(found.last_at - time.time()) < 60


@pytest.mark.parametrize(
    "content", ["", "[]", '{"format": 99}', '{"format": 1, "logins": {"a": {"b": 1}}}']
)
def test_a_file_of_counts_that_is_not_ours_counts_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "requests.json").write_text(content)
    assert read_counts(str(tmp_path)) == {}


# --- the process ----------------------------------------------------------------------------------

LAUNCH = """
import os, sys
fds = list(map(int, sys.argv[1].split(",")))
high = [os.dup2(fd, 100 + at) for at, fd in enumerate(fds)]
for at, fd in enumerate(high):
    os.dup2(fd, 3 + at)
os.closerange(3 + len(fds), 200)
os.execv(sys.executable, [sys.executable, "-c", "from cagewrap.egress.broker import main; main()"])
"""


class Process:
    """A broker as a keeper starts it."""

    def __init__(self, directory: Path, upstream: Upstream, **env: str) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        orders = os.memfd_create("orders")
        text = json.dumps(
            {"upstreams": json.loads(render_upstreams([upstream])), "directory": str(directory)}
        )
        os.write(orders, text.encode())
        reader, self.life = os.pipe()
        fds = (orders, reader, self.listener.fileno())
        self.child = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, ",".join(map(str, fds))],
            pass_fds=fds,
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": ":".join([str(SOURCE), *sys.path]),
                **env,
            },
        )
        os.close(orders)
        os.close(reader)

    def connect(self) -> Wire:
        return Wire(socket.create_connection(("127.0.0.1", self.port), timeout=20))

    def end(self) -> None:
        os.close(self.life)
        self.child.wait(10)
        self.listener.close()


def test_the_process_keeps_its_secret_and_ends_with_its_keeper(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(API_KEY)
    with Api(show_login) as api:
        upstream = Upstream(
            "claude", f"http://127.0.0.1:{api.port}", Secret(file=f"{tmp_path}/key")
        )
        process = Process(tmp_path, upstream)
        with process.connect() as wire:
            wire.send(get())
            assert wire.body(wire.head()) == API_KEY.encode()
            at = Path(f"/proc/{process.child.pid}")
            assert API_KEY.encode() not in (at / "cmdline").read_bytes()
            if os.getuid() == 0:
                assert API_KEY.encode() not in (at / "environ").read_bytes()
            else:  # not even by others of the same user
                with pytest.raises(PermissionError):
                    (at / "environ").read_bytes()
            process.end()
            assert process.child.returncode == 0
            assert not wire.is_open()
    assert read_counts(str(tmp_path))["claude"].requests == 1


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", ""])
def test_the_process_trusts_the_owners_ca(tmp_path: Path, variable: str) -> None:
    ca, context = make_certificate(tmp_path)
    (tmp_path / "key").write_text(API_KEY)
    with Api(show_login, context) as api:
        base_url = f"https://localhost:{api.port}"
        upstream = Upstream("claude", base_url, Secret(file=f"{tmp_path}/key"))
        process = Process(tmp_path, upstream, **({variable: str(ca)} if variable else {}))
        with process.connect() as wire:
            wire.send(get())
            assert wire.head().status == (200 if variable else 502)
        process.end()


def test_large_bodies_cost_the_process_little(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(API_KEY)
    size = 100 << 20

    def talk(wire: Wire) -> None:
        head = wire.head()
        left = int(head.get("content-length") or 0)
        while left:
            left -= len(wire.receive(min(left, 1 << 20)))
        wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(100):
            wire.send(bytes(1 << 20))

    with Api(talk) as api:
        upstream = Upstream(
            "claude", f"http://127.0.0.1:{api.port}", Secret(file=f"{tmp_path}/key")
        )
        process = Process(tmp_path, upstream)
        with process.connect() as wire:
            wire.send(get("/v1/messages", f"Content-Length: {size}", method="POST"))
            for _ in range(100):
                wire.send(bytes(1 << 20))
            head = wire.head()
            left = int(head.get("content-length") or 0)
            while left:
                left -= len(wire.receive(min(left, 1 << 20)))
            status = Path(f"/proc/{process.child.pid}/status").read_text()
        peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        assert int(peak.split()[1]) < 64 << 10, peak
        process.end()


def test_the_process_outlives_a_signal_to_nobody_else(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(API_KEY)
    with Api(show_login) as api:
        upstream = Upstream(
            "claude", f"http://127.0.0.1:{api.port}", Secret(file=f"{tmp_path}/key")
        )
        process = Process(tmp_path, upstream)
        process.child.send_signal(signal.SIGKILL)
        process.child.wait(5)
        # The listener is the keeper's too: who connects meanwhile waits for the next broker.
        with process.connect() as wire:
            wire.send(get())
            assert eventually(wire.is_open, 0.1)
        process.end()
