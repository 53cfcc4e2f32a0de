"""A broker between a test's client and a test's API, all of them on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from cagewrap.egress.broker import serve
from cagewrap.egress.counts import Count, read_counts
from cagewrap.upstream import Secret, Upstream

TIMEOUT_S = 20.0
API_KEY = "sk-ant-api03-MARKED-KEY"
OAUTH_TOKEN = "sk-ant-oat01-MARKED-TOKEN"


class Wire:
    """One end of a connection, read by hand."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.sock.settimeout(TIMEOUT_S)
        self.unread = b""

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def receive(self, count: int) -> bytes:
        """Exactly so many bytes, or fewer at the end."""
        parts, left = [self.unread], count - len(self.unread)
        while left > 0:
            data = self.sock.recv(1 << 18)
            if not data:
                break
            parts.append(data)
            left -= len(data)
        whole = b"".join(parts)
        self.unread = whole[count:]
        return whole[:count]

    def until(self, mark: bytes) -> bytes:
        """All up to a mark and with it; fails at the end."""
        while mark not in self.unread:
            data = self.sock.recv(1 << 18)
            if not data:
                raise EOFError(self.unread)
            self.unread += data
        data, _, self.unread = self.unread.partition(mark)
        return data + mark

    def head(self) -> Head:
        """The next head of a request or an answer."""
        first, *lines = self.until(b"\r\n\r\n").decode("latin-1").strip().split("\r\n")
        pairs = [line.split(":", 1) for line in lines]
        return Head(first, [(name.lower(), value.strip()) for name, value in pairs])

    def chunk(self) -> bytes:
        """The next chunk of a chunked body; b"" is the last, whose trailers are read too."""
        size = int(self.until(b"\r\n").split(b";")[0], 16)
        if size:
            data = self.receive(size)
            assert self.receive(2) == b"\r\n"
            return data
        trailers = b""
        while (line := self.until(b"\r\n")) != b"\r\n":
            trailers += line
        self.trailers = trailers
        return b""

    def body(self, head: Head) -> bytes:
        """The body after a head."""
        if head.get("transfer-encoding") == "chunked":
            return b"".join(iter(self.chunk, b""))
        if head.get("content-length") is not None:
            return self.receive(int(head.get("content-length") or 0))
        return b""

    def rest(self) -> bytes:
        """All until the other end closes. Raises ConnectionResetError."""
        data = self.unread
        self.unread = b""
        while more := self.sock.recv(1 << 18):
            data += more
        return data

    def is_open(self) -> bool:
        """Whether the other end has neither closed nor reset it. What comes is thrown away."""
        self.sock.setblocking(False)
        try:
            while self.sock.recv(1 << 18):
                pass
        except BlockingIOError:
            return True
        except OSError:
            return False
        finally:
            self.sock.settimeout(TIMEOUT_S)
        return False

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass
class Head:
    """A first line and headers, their names in lower case."""

    first: str
    headers: list[tuple[str, str]]

    @property
    def status(self) -> int:
        return int(self.first.split()[1])

    def get(self, name: str) -> str | None:
        return next((value for one, value in self.headers if one == name), None)

    def all(self, name: str) -> list[str]:
        return [value for one, value in self.headers if one == name]


Talk = Callable[[Wire], None]


def say_hello(wire: Wire) -> None:
    """Answers everything, for as long as it is asked."""
    while True:
        try:
            head = wire.head()
        except (EOFError, OSError):
            return
        wire.body(head)
        wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")


class Api:
    """A server of which a test says what it says."""

    def __init__(self, talk: Talk = say_hello, context: ssl.SSLContext | None = None) -> None:
        self.talk = talk
        self.connections = 0
        self.faults: list[BaseException] = []
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=300)
        self._threads: list[threading.Thread] = []
        self._wires: list[Wire] = []

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(sock,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            if self._context is not None:
                sock = self._context.wrap_socket(sock, server_side=True)
            with Wire(sock) as wire:
                self._wires.append(wire)
                self.talk(wire)
        except ssl.SSLError:
            return
        except BaseException as error:
            self.faults.append(error)

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for wire in self._wires:
            with contextlib.suppress(OSError):
                wire.sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(TIMEOUT_S)
        if kind is None:
            assert self.faults == [], self.faults


@dataclass
class Brokered:
    """A broker that runs. Files of logins and counts lie in `directory`."""

    port: int
    directory: Path
    faults: list[BaseException] = field(default_factory=list)

    def connect(self) -> Wire:
        return Wire(socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT_S))

    def ask(self, request: bytes) -> tuple[Head, bytes]:
        """One request on a connection of its own."""
        with self.connect() as wire:
            wire.send(request)
            head = wire.head()
            return head, wire.body(head)

    def count(self) -> Count:
        """What was counted until now."""
        time.sleep(0.4)
        return read_counts(str(self.directory)).get("claude", Count())


@contextmanager
def brokered(
    directory: Path,
    port: int,
    *,
    secret: Secret | None = None,
    scheme: str = "http",
    host: str = "127.0.0.1",
    path: str = "",
    env: Mapping[str, str] | None = None,
    **more: object,
) -> Iterator[Brokered]:
    """A broker for the API at a port of this machine's loopback, in a thread."""
    key = directory / "key"
    if secret is None:
        key.write_text(API_KEY + "\n")
        secret = Secret(file=str(key))
    upstream = Upstream("claude", f"{scheme}://{host}:{port}{path}", secret, **more)  # type: ignore[arg-type]
    listener = socket.create_server(("127.0.0.1", 0), backlog=300)
    found = Brokered(listener.getsockname()[1], directory)
    reader, writer = os.pipe()

    def run() -> None:
        try:
            asyncio.run(
                serve([upstream], [listener], reader, str(directory), env or {}), debug=False
            )
        except BaseException as error:
            found.faults.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        os.close(writer)
        thread.join(TIMEOUT_S)
        os.close(reader)
        listener.close()
    assert not thread.is_alive()
    assert found.faults == []


def get(path: str = "/v1/models", *headers: str, method: str = "GET") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *headers, "", ""]
    return "\r\n".join(lines).encode()


def post(body: bytes, *headers: str, path: str = "/v1/messages") -> bytes:
    return get(path, f"Content-Length: {len(body)}", *headers, method="POST") + body


def eventually(condition: Callable[[], bool], within_s: float = 5.0) -> bool:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def make_certificate(directory: Path, name: str = "localhost") -> tuple[Path, ssl.SSLContext]:
    """A certificate for a name: the file to trust, and the context of a server that has it."""
    cert, key = directory / f"{name}.pem", directory / f"{name}.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", "2", "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}",
         "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return cert, context
