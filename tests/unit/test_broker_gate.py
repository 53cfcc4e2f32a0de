"""What passes a broker, and what the API and the agent see of each other."""

from __future__ import annotations

import contextlib
import json
import random
import socket
from pathlib import Path

import pytest

from brokering import (
    API_KEY,
    OAUTH_TOKEN,
    Api,
    Head,
    Wire,
    brokered,
    get,
    post,
)
from cagewrap.egress import gate
from cagewrap.upstream import (
    ANTHROPIC_PATHS,
    Secret,
    Upstream,
    fill,
    parse_upstreams,
    render_upstreams,
)

CLAUDE = Upstream("claude", "https://api.anthropic.com", Secret(file="/x"))


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("POST", "/v1/messages"),
        ("POST", "/v1/messages?beta=true"),
        ("POST", "/v1/messages/count_tokens?beta=true"),
        ("GET", "/v1/models?limit=1000"),
        ("GET", "/v1/models/claude-opus-5-5"),
        ("HEAD", "/"),
        ("HEAD", "/api/hello"),
    ],
)
def test_what_claude_asks_for_passes(method: str, target: str) -> None:
    assert gate.find_refusal(CLAUDE, method, target, []) is None


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/v1/messages"),
        ("post", "/v1/messages"),
        ("DELETE", "/v1/models/x"),
        ("POST", "/v1/messages/"),
        ("POST", "/v1/messages/batches"),
        ("POST", "/v1/oauth/token"),
        ("POST", "/v1/organizations/api_keys"),
        ("GET", "/api/oauth/profile"),
        ("GET", "/v1/files"),
        ("GET", "/"),
        ("GET", "/v1/models/../oauth/token"),
        ("GET", "/v1/models/./x"),
        ("GET", "/v1/models//x"),
        ("GET", "/v1/models/%2e%2e/files"),
        ("GET", "/v1/models/..%2ffiles"),
        ("GET", "/v1/models/%2Ffiles"),
        ("GET", "/v1/models/x%5cy"),
        ("GET", "/v1/models/x\\..\\y"),
        ("GET", "/v1/models/x%00"),
        ("GET", "/v1/models/x#y"),
        ("POST", "//v1/messages"),
        ("POST", "http://evil.example/v1/messages"),
        ("POST", "https://api.anthropic.com/v1/messages"),
        ("OPTIONS", "*"),
        ("CONNECT", "evil.example:443"),
        ("GET", ""),
    ],
)
def test_refuses_everything_else(method: str, target: str) -> None:
    refusal = gate.find_refusal(CLAUDE, method, target, [])
    assert refusal is not None
    assert refusal.status == 403
    assert "POST /v1/messages" in refusal.message


def test_a_refusal_has_the_shape_of_the_apis_errors() -> None:
    refusal = gate.find_refusal(CLAUDE, "GET", "/v1/files?limit=1", [])
    assert refusal is not None
    found = json.loads(refusal.body())
    assert found["type"] == "error"
    assert found["error"]["type"] == "permission_error"
    assert found["error"]["message"].startswith("cagewrap: GET /v1/files is not among")


def test_a_base_url_in_its_parts() -> None:
    base = gate.parse_base("https://gateway.example:8443/anthropic/")
    assert (base.is_encrypted, base.host, base.port) == (True, "gateway.example", 8443)
    assert (base.path, base.authority) == ("/anthropic", "gateway.example:8443")
    assert gate.parse_base("http://[::1]:4000").authority == "[::1]:4000"
    assert gate.parse_base("https://api.anthropic.com").authority == "api.anthropic.com"


@pytest.mark.parametrize(
    "url",
    ["api.anthropic.com", "ftp://x/", "https://", "https://u:p@x/", "https://x/?a=b", "https://x/#y",
     "https://x/a b", "https://x/\r\nEvil: yes"],
)  # fmt: skip
def test_refuses_a_base_url_with_anything_else(url: str) -> None:
    with pytest.raises(ValueError, match=r"m(ust|ay) "):
        gate.parse_base(url)


def test_upstreams_survive_the_way_to_the_broker() -> None:
    secrets = (
        Secret(file="/a"),
        Secret(credentials="/b"),
        Secret(command=("get", "it")),
        Secret(value="v"),
    )
    upstreams = tuple(
        Upstream("n", "https://x", secret, "plain", "a: {secret}", ("GET /y",), 7, (("A", "b"),))
        for secret in secrets
    )
    assert parse_upstreams(render_upstreams(upstreams)) == upstreams
    assert fill("{url}/v1 {placeholder}", "http://127.0.0.1:9").startswith(
        "http://127.0.0.1:9/v1 sk-"
    )


# --- on the wire ----------------------------------------------------------------------------------


class Seen:
    """An API that keeps what it was asked."""

    def __init__(self) -> None:
        self.heads: list[Head] = []
        self.bodies: list[bytes] = []

    def talk(self, wire: Wire) -> None:
        """A request that breaks off is broken off here too."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                head = wire.head()
                self.heads.append(head)
                self.bodies.append(wire.body(head))
                wire.send(
                    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nAlt-Svc: h3=x\r\n"
                    b"Connection: keep-alive, x-hop\r\nX-Hop: 1\r\nX-Kept: 1\r\n"
                    b"Set-Cookie: a=b\r\nSet-Cookie: c=d\r\n\r\nok"
                )


AGENTS_OWN = (
    "Authorization: Bearer sk-cagewrap",
    "x-API-key: sk-cagewrap",
    "Proxy-Authorization: Basic eDp5",
    "X-HTTP-Method-Override: DELETE",
    "Connection: keep-alive, X-Gone",
    "X-Gone: 1",
    "anthropic-version: 2023-06-01",
    "Anthropic-Beta: context-1m-2025-08-07, oauth-2025-04-20",
    "User-Agent: claude-cli/2.1.332",
)


def test_an_api_key_takes_the_place_of_the_agents_login(tmp_path: Path) -> None:
    seen = Seen()
    with Api(seen.talk) as api, brokered(tmp_path, api.port) as broker:
        head, body = broker.ask(
            post(b'{"a":"\xc3\xa4"}', *AGENTS_OWN, path="/v1/messages?beta=true")
        )
        assert (head.status, body) == (200, b"ok")
        assert head.get("x-kept") == "1"
        assert head.all("set-cookie") == ["a=b", "c=d"]
        assert head.get("alt-svc") is None
        assert head.get("x-hop") is None
        [asked] = seen.heads
        assert asked.first == "POST /v1/messages?beta=true HTTP/1.1"
        assert seen.bodies == [b'{"a":"\xc3\xa4"}']
        assert asked.all("host") == [f"127.0.0.1:{api.port}"]
        assert asked.all("x-api-key") == [API_KEY]
        assert asked.all("anthropic-beta") == ["context-1m-2025-08-07"]
        assert asked.get("anthropic-version") == "2023-06-01"
        assert asked.get("user-agent") == "claude-cli/2.1.332"
        for name in ("authorization", "proxy-authorization", "x-http-method-override", "x-gone"):
            assert asked.get(name) is None, name


def test_a_subscriptions_token_goes_with_its_beta(tmp_path: Path) -> None:
    seen = Seen()
    (tmp_path / "token").write_text(OAUTH_TOKEN)
    secret = Secret(file=str(tmp_path / "token"))
    with Api(seen.talk) as api, brokered(tmp_path, api.port, secret=secret) as broker:
        broker.ask(
            post(b"{}", "x-api-key: sk-cagewrap", "anthropic-beta: a,b", "anthropic-beta: c")
        )
        broker.ask(post(b"{}", *AGENTS_OWN))
    for asked in seen.heads:
        assert asked.all("authorization") == [f"Bearer {OAUTH_TOKEN}"]
        assert asked.get("x-api-key") is None
    assert seen.heads[0].all("anthropic-beta") == ["a,b,c,oauth-2025-04-20"]
    assert seen.heads[1].all("anthropic-beta") == ["context-1m-2025-08-07,oauth-2025-04-20"]


def test_another_api_gets_the_header_it_wants(tmp_path: Path) -> None:
    seen = Seen()
    with (
        Api(seen.talk) as api,
        brokered(
            tmp_path,
            api.port,
            kind="plain",
            header="api-token: key={secret}",
            paths=("POST /v1/responses", "GET /v1/models/*"),
        ) as broker,
    ):
        broker.ask(post(b"{}", "Api-Token: mine", "Authorization: Bearer x", path="/v1/responses"))
        assert broker.ask(post(b"{}"))[0].status == 403
    [asked] = seen.heads
    assert asked.all("api-token") == [f"key={API_KEY}"]
    assert asked.get("authorization") is None
    assert asked.get("anthropic-beta") is None


def test_paths_lie_below_the_base_url(tmp_path: Path) -> None:
    seen = Seen()
    with (
        Api(seen.talk) as api,
        brokered(tmp_path, api.port, path="/gateway/anthropic/") as broker,
    ):
        assert broker.ask(post(b"{}"))[0].status == 200
        assert broker.ask(get("/gateway/anthropic/v1/models"))[0].status == 403
    assert [head.first for head in seen.heads] == ["POST /gateway/anthropic/v1/messages HTTP/1.1"]


SMUGGLED = b"POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked"
        b"\r\n\r\n0\r\n\r\n" + SMUGGLED,
        b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nContent-Length: 60"
        b"\r\n\r\n" + SMUGGLED,
        b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, identity\r\n\r\n"
        + SMUGGLED,
        b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n" + SMUGGLED,
        b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length : 5\r\n\r\n" + SMUGGLED,
        b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: +5\r\n\r\n" + SMUGGLED,
        b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        b"POST /v1/messages HTTP/1.1\r\n\r\n",
        b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nX: a\x00b\r\n\r\n",
        b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 1_000_000 + b"\r\n\r\n",
        b"GET /v1/models /v1/files HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 300,
    ],
)
def test_refuses_requests_that_could_be_two(tmp_path: Path, request_bytes: bytes) -> None:
    seen = Seen()
    with Api(seen.talk) as api, brokered(tmp_path, api.port) as broker, broker.connect() as wire:
        wire.send(request_bytes)
        head = wire.head()
        assert head.status in (400, 431, 501), head
        wire.body(head)
        assert wire.rest() == b"", "a second request was seen in it"
        found = broker.count()
        assert (found.requests, found.refused + found.failed) == (1, 1)
    assert seen.heads == []


def test_a_second_request_in_a_body_stays_a_body(tmp_path: Path) -> None:
    seen = Seen()
    with Api(seen.talk) as api, brokered(tmp_path, api.port) as broker, broker.connect() as wire:
        chunks = b"%x;x=\r\n%s\r\n0\r\n\r\n" % (len(SMUGGLED), SMUGGLED)
        wire.send(get("/v1/messages", "Transfer-Encoding: chunked", method="POST") + chunks)
        assert wire.body(wire.head()) == b"ok"
        wire.send(post(SMUGGLED))
        assert wire.body(wire.head()) == b"ok"
    assert [head.first for head in seen.heads] == ["POST /v1/messages HTTP/1.1"] * 2
    assert seen.bodies == [SMUGGLED, SMUGGLED]


def test_refuses_websockets_with_a_text(tmp_path: Path) -> None:
    with Api() as api, brokered(tmp_path, api.port) as broker:
        head, body = broker.ask(
            get("/v1/models", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: x")
        )
        assert head.status == 426
        assert b"WebSockets do not pass" in body
        assert api.connections == 0


def test_a_refused_upload_hears_why(tmp_path: Path) -> None:
    """Also one that is far from whole when it is refused."""
    with Api() as api, brokered(tmp_path, api.port) as broker, broker.connect() as wire:
        wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        wire.send(get("/v1/files", "Content-Length: 1000000", method="POST") + bytes(400_000))
        head = wire.head()
        assert head.status == 403
        assert head.get("connection") == "close"
        assert b"not among what this cage may do" in wire.body(head)
        assert broker.count().refused == 1
        assert api.connections == 0


def test_a_refusal_does_not_end_the_connection(tmp_path: Path) -> None:
    with Api() as api, brokered(tmp_path, api.port) as broker, broker.connect() as wire:
        for _ in range(3):
            wire.send(get("/v1/files"))
            head = wire.head()
            assert head.status == 403
            wire.body(head)
            wire.send(get())
            assert wire.body(wire.head()) == b"hello"
        found = broker.count()
        assert (found.requests, found.refused, found.answered_2xx) == (6, 3, 3)


def test_the_token_endpoint_is_not_among_the_paths() -> None:
    assert not any("oauth" in path for path in ANTHROPIC_PATHS)


def test_garbage_is_refused_or_closed_and_harms_nobody(tmp_path: Path) -> None:
    seen = Seen()
    chance = random.Random(24)
    good = post(b'{"a": 1}', "Transfer-Encoding-X: y") + get()
    with Api(seen.talk) as api, brokered(tmp_path, api.port) as broker, broker.connect() as other:
        for number in range(300):
            data = bytearray(good)
            for _ in range(chance.randrange(1, 8)):
                at = chance.randrange(len(data))
                data[at : at + chance.randrange(3)] = chance.randbytes(chance.randrange(4))
            with broker.connect() as wire:
                wire.send(bytes(data[: chance.randrange(1, len(data))]))
                wire.sock.shutdown(socket.SHUT_WR)
                with contextlib.suppress(ConnectionResetError):
                    wire.rest()
            if number % 30 == 0:
                other.send(get())
                assert other.body(other.head()) == b"ok"
        for head in seen.heads:
            method, target, _ = head.first.split(" ", 2)
            assert gate.find_refusal(CLAUDE, method, target, []) is None
            assert head.all("x-api-key") == [API_KEY]
        assert broker.ask(get())[0].status == 200
