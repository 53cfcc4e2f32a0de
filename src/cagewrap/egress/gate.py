"""What of a request and its answer passes a broker. Pure: no input, no output."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from cagewrap.upstream import OAUTH_BETA, OAUTH_PREFIX, Upstream

Headers = list[tuple[bytes, bytes]]

_SHOWN = 200
_PORTS = {"https": 443, "http": 80}
_HOP_BY_HOP = frozenset(
    (
        b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"te", b"trailer",
        b"transfer-encoding", b"upgrade",
    )
)  # fmt: skip
_NOT_UP = _HOP_BY_HOP | {
    b"host", b"expect", b"content-length", b"authorization", b"proxy-authorization", b"x-api-key",
    b"api-key", b"x-goog-api-key", b"x-http-method", b"x-http-method-override",
    b"x-method-override", b"x-original-url", b"x-rewrite-url",
}  # fmt: skip
_NOT_DOWN = _HOP_BY_HOP | {b"alt-svc"}
_HIDDEN_IN_PATH = ("%2e", "%2f", "%5c", "%00", "\\", "//", "#")
_KINDS = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error",
    426: "invalid_request_error", 504: "timeout_error",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer of the broker's own."""

    status: int
    message: str

    def body(self) -> bytes:
        """In the shape of Anthropic's errors, which is also that of OpenAI's."""
        kind = _KINDS.get(self.status, "api_error")
        error = {"type": kind, "message": f"cagewrap: {self.message}", "code": "cagewrap_broker"}
        return json.dumps({"type": "error", "error": error}).encode()


@dataclass(frozen=True, slots=True)
class Base:
    """A base URL in its parts. `path` has no `/` at its end."""

    is_encrypted: bool
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """As the Host header has it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = _PORTS["https" if self.is_encrypted else "http"]
        return host if self.port == usual else f"{host}:{self.port}"


def parse_base(url: str) -> Base:
    """Take a base URL apart. Raises ValueError saying what is wrong with it."""
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError("must be https://HOST or http://HOST")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("may have a host, a port and a path, and nothing else")
    if not url.isascii() or any(ord(letter) <= 32 for letter in url):
        raise ValueError("may have no spaces and no letters beyond ASCII")
    port = parts.port or _PORTS[parts.scheme]
    return Base(parts.scheme == "https", parts.hostname, port, parts.path.rstrip("/"))


def find_refusal(upstream: Upstream, method: str, target: str, headers: Headers) -> Refusal | None:
    """Why a request does not pass; None when it does."""
    names = [name.lower() for name, _ in headers]
    if b"content-length" in names and b"transfer-encoding" in names:
        return Refusal(400, "a request has either a Content-Length or a Transfer-Encoding.")
    if any(name.lower() == b"upgrade" and b"websocket" in value.lower() for name, value in headers):
        return Refusal(
            426,
            "WebSockets do not pass the login broker of this cage; send the request over HTTP "
            "(codex: supports_websockets = false).",
        )
    if _is_allowed(upstream.paths, method, target):
        return None
    shown = f"{method} {target.partition('?')[0]}"
    shown = shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "…"
    return Refusal(
        403,
        f"{shown} is not among what this cage may do with the login {upstream.name!r}: "
        f"{', '.join(upstream.paths)}. The owner can add to login paths in cagewrap.toml.",
    )


def _is_allowed(rules: Sequence[str], method: str, target: str) -> bool:
    path = target.partition("?")[0]
    if not path.startswith("/") or any(one in path.lower() for one in _HIDDEN_IN_PATH):
        return False
    if any(part in (".", "..") for part in path.split("/")):
        return False
    for rule in rules:
        wanted_method, _, wanted = rule.partition(" ")
        if method != wanted_method:
            continue
        if path == wanted or (wanted.endswith("*") and path.startswith(wanted[:-1])):
            return True
    return False


def headers_up(upstream: Upstream, base: Base, secret: str, headers: Headers) -> Headers:
    """The headers of a request on its way to the API. Its framing is not among them."""
    kept = [(b"host", base.authority.encode()), *_without(headers, _NOT_UP)]
    own: Headers = []
    if upstream.kind != "anthropic":
        name, _, value = upstream.header.partition(":")
        own.append((name.strip().encode(), value.strip().replace("{secret}", secret).encode()))
    elif secret.startswith(OAUTH_PREFIX):
        own.append((b"authorization", b"Bearer " + secret.encode()))
    else:
        own.append((b"x-api-key", secret.encode()))
    if upstream.kind == "anthropic":
        kept = _with_beta(kept, is_wanted=secret.startswith(OAUTH_PREFIX))
    replaced = {name.lower() for name, _ in own}
    return [*((name, value) for name, value in kept if name.lower() not in replaced), *own]


def _with_beta(headers: Headers, *, is_wanted: bool) -> Headers:
    """The API takes a subscription's token only beside its beta, which an agent that believes to
    have an API key does not send; and an agent that believes to have a token sends it."""
    rest = [(name, value) for name, value in headers if name.lower() != b"anthropic-beta"]
    values = [value for name, value in headers if name.lower() == b"anthropic-beta"]
    words = [word.strip() for value in values for word in value.split(b",")]
    wanted = OAUTH_BETA.encode()
    words = [word for word in words if word and word != wanted]
    words += [wanted] if is_wanted else []
    return [*rest, (b"anthropic-beta", b",".join(words))] if words else rest


def headers_down(headers: Headers) -> Headers:
    """The headers of an answer on its way to the agent."""
    return _without(headers, _NOT_DOWN)


def trailers_up(headers: Headers) -> Headers:
    """What may follow the body of a request."""
    return _without(headers, _NOT_UP)


def _without(headers: Headers, dropped: Iterable[bytes]) -> Headers:
    """Headers less the dropped ones and those that `Connection` names."""
    named = {
        word.strip().lower()
        for name, value in headers
        if name.lower() == b"connection"
        for word in value.split(b",")
    }
    gone = named.union(dropped)
    return [(name, value) for name, value in headers if name.lower() not in gone]


def framing(headers: Headers) -> Headers:
    """How long a request's body is, as its own headers say."""
    for name, value in headers:
        if name.lower() == b"content-length":
            return [(b"content-length", value)]
    if any(name.lower() == b"transfer-encoding" for name, _ in headers):
        return [(b"transfer-encoding", b"chunked")]
    return []
