"""One connection of an agent's to a broker, and the exchanges on it, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import h11

from cagewrap.egress import gate
from cagewrap.egress.counts import Count
from cagewrap.egress.dial import HEADER_BYTES, Dialer, Far, FarError, Part
from cagewrap.egress.gate import Headers, Refusal
from cagewrap.egress.link import Link
from cagewrap.egress.secret import SecretError, Vault
from cagewrap.upstream import Upstream

_LINGER_S = 2.0
_LATE_S = 5.0
"""How long an API that takes no more of a request may need for its answer."""
_HOPELESS = 401
_BAD_GATEWAY = 502
_HARMLESS = ("GET", "HEAD")
_FIRST = asyncio.FIRST_COMPLETED

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Service:
    """What all connections to one API share. changed: called when something was counted."""

    upstream: Upstream
    vault: Vault
    dialer: Dialer
    count: Count
    changed: Callable[[], None]
    log: Callable[[str], None]


class NearError(Exception):
    """The agent is gone, or its request broke off."""


class Near:
    """The agent's side."""

    def __init__(self, link: Link, service: Service) -> None:
        """Owns the link."""
        self._link = link
        self._service = service
        self._conn = h11.Connection(h11.SERVER, max_incomplete_event_size=HEADER_BYTES)
        self.is_idle = True

    async def serve(self) -> None:
        """All exchanges, until either side closes."""
        try:
            while await self._exchange():
                self._conn.start_next_cycle()
                self.is_idle = True
            await self._link.finish(_LINGER_S)
        except (NearError, FarError, OSError):
            self._link.abort()
        except asyncio.CancelledError:  # what is not sent yet could wait for ever
            self._link.abort()
            raise
        finally:
            self._link.close()

    def close(self) -> None:
        """Let go of a connection that nobody uses."""
        self._link.close()

    async def _exchange(self) -> bool:
        """One request and its answer. False: it was the last. Raises NearError, FarError."""
        try:
            request = await self._next()
            if not isinstance(request, h11.Request):
                return False
        except h11.RemoteProtocolError as error:
            self._service.count.begin()
            await self._answer(Refusal(error.error_status_hint or 400, f"{error}."))
            self._service.changed()
            return False
        self.is_idle = False
        self._service.count.begin()
        self._service.changed()
        try:
            await self._pass_on(request)
        finally:
            self._service.changed()
        return self._conn.states == {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}

    async def _pass_on(self, request: h11.Request) -> None:
        service, method = self._service, request.method.decode()
        headers = list(request.headers.raw_items())
        framing = gate.framing(headers)
        if not framing:
            await self._next()  # the end of a request without a body
        refusal = gate.find_refusal(service.upstream, method, request.target.decode(), headers)
        if refusal is not None:
            service.log(f"{service.upstream.name}: refused: {refusal.message}")
            await self._answer(refusal)
            return
        try:
            secret = await self._unless_gone(service.vault.read(), _forget)
        except SecretError as error:
            service.log(f"{service.upstream.name}: {error}")
            await self._answer(Refusal(_HOPELESS, str(error)))
            return
        base = service.dialer.base
        onward = h11.Request(
            method=method,
            target=base.path + request.target.decode(),
            headers=gate.headers_up(service.upstream, base, secret, headers) + framing,
        )
        try:
            if not framing and method in _HARMLESS:
                await self._carry_twice(onward)
            else:
                await self._carry_over(
                    await self._unless_gone(service.dialer.take(), Far.abort), onward
                )
        except FarError as error:
            service.count.failed += 1
            service.log(f"{service.upstream.name}: {error}")
            if self._conn.our_state is not h11.SEND_RESPONSE:
                raise
            await self._answer(Refusal(_BAD_GATEWAY, f"{service.upstream.base_url}: {error}."))

    async def _carry_twice(self, request: h11.Request) -> None:
        """As _carry_over, and once more if the API had closed the connection while it was idle."""
        far = await self._unless_gone(self._service.dialer.take(), Far.abort)
        try:
            await self._carry_over(far, request)
        except FarError:
            if not far.is_used or self._conn.our_state is not h11.SEND_RESPONSE:
                raise
            far = await self._unless_gone(self._service.dialer.dial(), Far.abort)
            await self._carry_over(far, request)

    async def _carry_over(self, far: Far, request: h11.Request) -> None:
        """Both directions at once: an answer may come before the whole of the request is there."""
        body = asyncio.create_task(self._carry_body(far, request))
        answer = asyncio.create_task(self._carry_answer(far))
        gone = asyncio.create_task(self._link.gone.wait())
        tasks = (body, answer, gone)
        try:
            await asyncio.wait(tasks, return_when=_FIRST)
            while not answer.done():
                if gone.done():
                    raise NearError("the agent is gone")
                late_s = _time_for_answer(body)
                waits = [task for task in tasks if not task.done()]
                done, _ = await asyncio.wait(waits, timeout=late_s, return_when=_FIRST)
                if not done:
                    body.result()
            answer.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._service.dialer.give(far)

    async def _carry_body(self, far: Far, request: h11.Request) -> None:
        await far.send(request)
        if self._conn.their_state is not h11.SEND_BODY:
            await far.send(h11.EndOfMessage())
            return
        if self._conn.they_are_waiting_for_100_continue:
            await self._send(h11.InformationalResponse(status_code=100, headers=[]))
        while True:
            try:
                event = await self._next()
            except h11.RemoteProtocolError as error:
                raise NearError(str(error)) from error
            if isinstance(event, h11.Data):
                await far.send(h11.Data(data=event.data))
                self._service.count.sent_bytes += len(event.data)
            elif isinstance(event, h11.EndOfMessage):
                trailers = gate.trailers_up(list(event.headers.raw_items()))
                await far.send(h11.EndOfMessage(headers=trailers))
                return
            else:
                raise NearError("the request broke off")

    async def _carry_answer(self, far: Far) -> None:
        while True:
            event = await far.next()
            if isinstance(event, h11.Response):
                await self._carry_head(event)
            elif isinstance(event, h11.Data):
                await self._send(h11.Data(data=event.data))
                self._service.count.received_bytes += len(event.data)
            elif isinstance(event, h11.EndOfMessage):
                trailers = gate.headers_down(list(event.headers.raw_items()))
                takes_them = self._conn.their_http_version != b"1.0"
                await self._send(h11.EndOfMessage(headers=trailers if takes_them else []))
                return
            elif not isinstance(event, h11.InformationalResponse):
                raise FarError("closed the connection without an answer")

    async def _carry_head(self, response: h11.Response) -> None:
        self._service.count.answered(response.status_code)
        if response.status_code == _HOPELESS:
            self._service.vault.doubt()
        headers = gate.headers_down(list(response.headers.raw_items()))
        await self._send(
            h11.Response(status_code=response.status_code, reason=response.reason, headers=headers)
        )

    async def _answer(self, refusal: Refusal) -> None:
        """An answer of our own. What the agent has not sent yet of its request is not read."""
        is_ours = refusal.status != _BAD_GATEWAY
        self._service.count.refused += is_ours
        body = refusal.body()
        headers: Headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        if refusal.status == 426:
            headers.append((b"upgrade", b"HTTP/1.1"))
        if is_ours:
            headers.append((b"x-should-retry", b"false"))
        if self._conn.their_state is not h11.DONE:
            headers.append((b"connection", b"close"))
        await self._send(h11.Response(status_code=refusal.status, headers=headers))
        await self._send(h11.Data(data=body))
        await self._send(h11.EndOfMessage())

    async def _send(self, event: h11.Event) -> None:
        try:
            await self._link.write(self._conn.send(event) or b"")
        except (OSError, h11.LocalProtocolError) as error:
            raise NearError(str(error)) from error

    async def _next(self) -> Part:
        while True:
            event = self._conn.next_event()
            if event is not h11.NEED_DATA:
                return event
            self._conn.receive_data(await self._link.read())

    async def _unless_gone(self, work: Coroutine[Any, Any, T], discard: Callable[[T], None]) -> T:
        """What comes of it. Raises NearError when the agent does not wait for it.

        The work is not cancelled then, since a socket that is just connected would be lost; what
        comes of it later is given to `discard`.
        """
        task = asyncio.create_task(work)
        gone = asyncio.create_task(self._link.gone.wait())
        try:
            await asyncio.wait((task, gone), return_when=_FIRST)
        finally:
            gone.cancel()
            if not task.done():
                _late.add(task)
                task.add_done_callback(lambda late: _discard(late, discard))
        if not task.done():
            raise NearError("the agent is gone")
        return task.result()


_late: set[asyncio.Task[Any]] = set()
"""Work for agents that are gone; the event loop itself does not keep it alive."""


async def settle(within_s: float) -> None:
    """Wait for what was begun for agents that are gone: no socket of it is lost then."""
    loop = asyncio.get_running_loop()
    late = [task for task in _late if task.get_loop() is loop]
    if late:
        await asyncio.wait(late, timeout=within_s)


def _discard(task: asyncio.Task[T], discard: Callable[[T], None]) -> None:
    _late.discard(task)
    if not task.cancelled() and task.exception() is None:
        discard(task.result())


def _forget(_secret: str) -> None:
    """Nothing to let go of."""


def _time_for_answer(body: asyncio.Task[None]) -> float | None:
    """How long the answer may take; None for as long as it wants. Raises NearError."""
    error = body.exception() if body.done() else None
    if error is None:
        return None
    if isinstance(error, FarError):
        return _LATE_S
    raise error
