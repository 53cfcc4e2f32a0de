"""Connections to an API: dialled, through the owner's proxy if he has one, and kept for a while."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import time
from base64 import b64encode
from collections.abc import Callable, Mapping
from urllib.parse import SplitResult, unquote, urlsplit

import h11

from cagewrap.egress.gate import Base
from cagewrap.egress.link import Link

DIAL_S = 30.0
"""Between the first packet and the end of the TLS handshake."""
SILENT_S = 3600.0
"""How long an API may say nothing in the middle of an exchange; a turn can think for long."""
IDLE_S = 20.0
"""How long a connection is kept for the next request."""
_MOST_IDLE = 16
HEADER_BYTES = 1 << 17
_CA_FILES = (
    "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem",
)  # fmt: skip


Part = h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]
"""Of a request or an answer."""


class FarError(Exception):
    """The API cannot be reached, or broke off. The text is for the agent."""


class Far:
    """One connection to the API, with one exchange at a time."""

    def __init__(self, link: Link) -> None:
        """Owns the link."""
        self.link = link
        self.conn = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEADER_BYTES)
        self.is_used = False
        self.idle_since = 0.0

    async def send(self, event: h11.Request | h11.Data | h11.EndOfMessage) -> None:
        """Send a part of a request. Raises FarError."""
        try:
            await self.link.write(self.conn.send(event) or b"")
        except OSError as error:
            raise FarError(f"broke off ({error})") from error

    async def next(self) -> Part:
        """The next part of the answer. Raises FarError."""
        try:
            while True:
                event = self.conn.next_event()
                if event is not h11.NEED_DATA:
                    return event
                async with asyncio.timeout(SILENT_S):
                    self.conn.receive_data(await self.link.read())
        except h11.RemoteProtocolError as error:
            raise FarError(f"broke off or does not speak HTTP ({error})") from error
        except TimeoutError as error:
            raise FarError(f"has said nothing for {SILENT_S:.0f} seconds") from error
        except OSError as error:
            raise FarError(f"broke off ({error})") from error

    def abort(self) -> None:
        """Close it in the middle of whatever it was for."""
        self.link.abort()

    @property
    def is_done(self) -> bool:
        """Whether another request can follow."""
        return self.conn.states == {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}


class Dialer:
    """Connections to one API."""

    def __init__(self, base: Base, env: Mapping[str, str], log: Callable[[str], None]) -> None:
        """env: the owner's, of which proxies and CA files are looked at."""
        self.base = base
        self._proxy: SplitResult | None = None
        self._problem = ""
        try:
            self._proxy = find_proxy(base, env)
        except ValueError as error:
            self._problem = str(error)
        self._context = make_context(env, log) if base.is_encrypted else None
        self._idle: list[Far] = []

    async def take(self) -> Far:
        """A connection that is ready for a request. Raises FarError."""
        while self._idle:
            far = self._idle.pop()
            if far.link.is_quiet and _now() - far.idle_since < IDLE_S:
                far.conn.start_next_cycle()
                far.is_used = True
                return far
            far.link.abort()
        return await self.dial()

    def give(self, far: Far) -> None:
        """Keep a connection for the next request, or let go of it."""
        for old in [one for one in self._idle if _now() - one.idle_since >= IDLE_S]:
            self._idle.remove(old)
            old.link.abort()
        if far.is_done and far.link.is_quiet and len(self._idle) < _MOST_IDLE:
            far.idle_since = _now()
            self._idle.append(far)
        else:
            far.link.abort()

    def close(self) -> None:
        """Let go of all that is kept."""
        while self._idle:
            self._idle.pop().link.abort()

    async def dial(self) -> Far:
        """A new connection. Raises FarError."""
        if self._problem:
            raise FarError(self._problem)
        where = f"{self.base.host}:{self.base.port}"
        try:
            async with asyncio.timeout(DIAL_S):
                return Far(await self._dial())
        except TimeoutError as error:
            raise FarError(f"{where} did not answer within {DIAL_S:.0f} seconds") from error
        except ssl.SSLCertVerificationError as error:
            raise FarError(
                f"the certificate of {where} is not trusted ({error.verify_message}); "
                "NODE_EXTRA_CA_CERTS or SSL_CERT_FILE names a CA of your own"
            ) from error
        except OSError as error:
            raise FarError(f"{where} cannot be reached ({error.strerror or error})") from error

    async def _dial(self) -> Link:
        loop = asyncio.get_running_loop()
        host, port = (
            (self._proxy.hostname or "", self._proxy.port or 80)
            if self._proxy
            else (self.base.host, self.base.port)
        )
        _, link = await loop.create_connection(Link, host, port, happy_eyeballs_delay=0.25)
        try:
            link.watch_for_death()
            if self._proxy is not None:
                await _tunnel(link, self.base, self._proxy.username, self._proxy.password)
            if self._context is not None:
                await link.encrypt(self._context, self.base.host)
        except BaseException:
            link.abort()
            raise
        return link


async def _tunnel(link: Link, base: Base, user: str | None, password: str | None) -> None:
    """Have a proxy connect us. Raises OSError."""
    where = f"[{base.host}]:{base.port}" if ":" in base.host else f"{base.host}:{base.port}"
    headers = [("Host", where)]
    if user is not None:
        login = f"{unquote(user)}:{unquote(password or '')}".encode()
        headers.append(("Proxy-Authorization", "Basic " + b64encode(login).decode()))
    conn = h11.Connection(h11.CLIENT)
    await link.write(conn.send(h11.Request(method="CONNECT", target=where, headers=headers)) or b"")
    await link.write(conn.send(h11.EndOfMessage()) or b"")
    while True:
        try:
            event = conn.next_event()
            if event is h11.NEED_DATA:
                conn.receive_data(await link.read())
                continue
        except h11.RemoteProtocolError as error:
            raise OSError(f"the proxy does not speak HTTP: {error}") from error
        if isinstance(event, h11.Response):
            if 200 <= event.status_code < 300:
                return
            raise OSError(f"the proxy refused with status {event.status_code}")
        if not isinstance(event, h11.InformationalResponse):
            raise ConnectionResetError("the proxy closed the connection")


def find_proxy(base: Base, env: Mapping[str, str]) -> SplitResult | None:
    """The owner's proxy for an API, if any. A plain http API is not reached through one."""
    names = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "http_proxy", "HTTP_PROXY")
    found = next((env[name] for name in names if env.get(name)), "")
    if not (base.is_encrypted and found) or _is_excepted(base, env):
        return None
    parts = urlsplit(found if "://" in found else f"http://{found}")
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError(
            f"the proxy of the variable HTTPS_PROXY must be http://HOST:PORT, not {parts.scheme}://"
        )
    return parts


def _is_excepted(base: Base, env: Mapping[str, str]) -> bool:
    """Whether NO_PROXY names the host, or a domain it lies in."""
    for word in (env.get("no_proxy") or env.get("NO_PROXY") or "").split(","):
        name, _, port = word.strip().lower().partition(":")
        name = name.removeprefix("*").lstrip(".")
        if port and port != str(base.port):
            continue
        if word.strip() == "*" or (name and (base.host == name or base.host.endswith("." + name))):
            return True
    return False


def make_context(env: Mapping[str, str], log: Callable[[str], None]) -> ssl.SSLContext:
    """The system's CAs (or SSL_CERT_FILE and SSL_CERT_DIR), and those of NODE_EXTRA_CA_CERTS."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    paths = ssl.get_default_verify_paths()
    if not (paths.cafile or paths.capath):  # an interpreter that was built for another system
        for path in filter(os.path.exists, _CA_FILES):
            context.load_verify_locations(path)
    extra = env.get("NODE_EXTRA_CA_CERTS", "")
    if extra:
        try:
            context.load_verify_locations(extra)
        except (OSError, ssl.SSLError) as error:
            log(f"NODE_EXTRA_CA_CERTS {extra}: {error}")
    return context


def _now() -> float:
    """Goes on while the machine is asleep."""
    with contextlib.suppress(OSError):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()
