"""Where Claude renews its login: platform.claude.com and api.anthropic.com, behind a proxy of ours.

It ends the TLS of every CONNECT with a certificate of its own. Each refresh token works once, as
with the real service; what is asked with one a second time is answered with invalid_grant.

In a test: `with MockLogin(directory) as login`, and `login.env` for who is to reach it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import socketserver
import ssl
import subprocess
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

NAMES = ("platform.claude.com", "api.anthropic.com")
ACCESS = "sk-ant-oat01-MARKED-"
REFRESH = "sk-ant-ort01-MARKED-"
CODE = "CODE-MARKED"
"""What a person is shown in the browser, and pastes."""
SCOPES = "user:inference user:profile user:sessions:claude_code"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_CONNECT(self) -> None:
        self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        self.connection = self.server.tls.wrap_socket(self.connection, server_side=True)
        self.rfile = self.connection.makefile("rb", -1)
        self.wfile = socketserver._SocketWriter(self.connection)  # type: ignore[attr-defined]
        self.close_connection = False

    def finish(self) -> None:
        with contextlib.suppress(OSError):
            super().finish()
        self.connection.close()

    def do_GET(self) -> None:
        self.server.login.note("GET", self.path)
        if self.path.startswith("/api/oauth/profile"):
            account = {"uuid": "u", "email": "o@example.com", "has_claude_max": True}
            organization = {
                "uuid": "v",
                "organization_type": "claude_max",
                "rate_limit_tier": "default_claude_max_20x",
            }
            self._send(200, {"account": account, "organization": organization})
        else:
            self._send(404, {"error": "not_found"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.server.login.note("POST", self.path)
        if self.path == "/v1/oauth/token":
            self._send(*self.server.login.answer(json.loads(body)))
        else:
            self._send(404, {"error": "not_found"})

    def log_message(self, *_: object) -> None:
        pass

    def _send(self, status: int, value: Any) -> None:
        data = json.dumps(value).encode()
        try:
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:
            self.server.login.note("GONE", self.path)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    login: MockLogin
    tls: ssl.SSLContext

    def handle_error(self, *_: object) -> None:
        """Who hangs up is none of ours."""


@dataclass
class MockLogin:
    """delay_s: before a token is answered. life_s: how long a new one lives. status: of a failure,
    0 for none. tokens: refresh tokens that work."""

    directory: Path
    delay_s: float = 0.3
    life_s: int = 28800
    status: int = 0
    tokens: set[str] = field(default_factory=lambda: {REFRESH + "0"})
    seen: list[str] = field(default_factory=list)
    granted: list[str] = field(default_factory=list)
    _count: Any = field(default_factory=lambda: itertools.count(1), repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __enter__(self) -> Self:
        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.login = self
        self._server.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._server.tls.load_cert_chain(*make_certificate(self.directory, NAMES))
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def env(self) -> dict[str, str]:
        proxy = f"http://127.0.0.1:{self._server.server_address[1]}"
        return {
            "HTTPS_PROXY": proxy,
            "NODE_EXTRA_CA_CERTS": str(self.directory / "authority.pem"),
        }

    @property
    def posts(self) -> int:
        """How often a token was asked for."""
        return self.seen.count("POST /v1/oauth/token")

    def note(self, method: str, path: str) -> None:
        with self._lock:
            self.seen.append(f"{method} {path}")

    def answer(self, asked: dict[str, Any]) -> tuple[int, Any]:
        with self._lock:
            token, status = asked.get("refresh_token", ""), self.status
            is_good = token in self.tokens or asked.get("code") == CODE
            if not status:
                self.tokens.discard(token)  # spent from the moment it is asked with
            number = next(self._count)
        time.sleep(self.delay_s)
        if status:
            return status, {"error": "server_error"}
        if not is_good:
            return 400, {"error": "invalid_grant"}
        with self._lock:
            self.tokens.add(f"{REFRESH}{number}")
            self.granted.append(f"{ACCESS}{number}")
        return 200, {
            "token_type": "Bearer",
            "access_token": f"{ACCESS}{number}",
            "refresh_token": f"{REFRESH}{number}",
            "expires_in": self.life_s,
            "scope": SCOPES,
        }


def credentials(left_s: float, number: int = 0, **changes: Any) -> str:
    """A login as Claude writes it."""
    values = {
        "accessToken": f"{ACCESS}{number}",
        "refreshToken": f"{REFRESH}{number}",
        "expiresAt": round((time.time() + left_s) * 1000),
        "scopes": SCOPES.split(),
        "subscriptionType": "max",
        "rateLimitTier": "default_claude_max_20x",
    }
    other = {"accessToken": "sk-ant-MARKED-other", "refreshToken": "sk-ant-MARKED-other"}
    return json.dumps({"claudeAiOauth": values | changes, "mcpOAuth": {"x": other}})


def make_certificate(directory: Path, names: tuple[str, ...]) -> tuple[Path, Path]:
    """A certificate for these names and its key; `authority.pem` beside them is who signs it."""
    directory.mkdir(exist_ok=True)

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=directory, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl(
        *("req", "-x509", *key, "-keyout", "authority.key", "-out", "authority.pem"),
        *("-subj", "/CN=test authority", "-days", "3"),
        *("-addext", "keyUsage=critical,keyCertSign"),
    )
    openssl("req", *key, "-keyout", "server.key", "-out", "server.csr", "-subj", f"/CN={names[0]}")
    text = f"subjectAltName={','.join(f'DNS:{name}' for name in names)}\n"
    (directory / "extensions").write_text(text)
    openssl(
        *("x509", "-req", "-in", "server.csr", "-CA", "authority.pem", "-CAkey", "authority.key"),
        *("-CAcreateserial", "-days", "3", "-out", "server.pem", "-extfile", "extensions"),
    )
    return directory / "server.pem", directory / "server.key"
