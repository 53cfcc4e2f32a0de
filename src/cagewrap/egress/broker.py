"""The broker's process: listeners in a cage, the owner's logins, and the APIs they are for.

Started by a keeper for one cage, with what it needs in descriptors and nothing secret in its
arguments; it ends with the keeper. It runs outside of the cage, and no agent can enter it.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence

from cagewrap.egress.counts import Count, read_counts, write_counts
from cagewrap.egress.dial import Dialer
from cagewrap.egress.exchange import Near, Service, settle
from cagewrap.egress.gate import parse_base
from cagewrap.egress.link import Link
from cagewrap.egress.secret import Vault
from cagewrap.upstream import Upstream, parse_upstreams

FIRST_FD = 3
"""What the keeper hands over: the orders, a pipe that ends with the keeper, then the listeners."""
CONNECTIONS = 128
"""At once, of one login; who comes later waits in the listener's queue."""
_FLUSH_S = 0.2
_PAUSE_S = 0.1
_SETTLE_S = 1.0
_HEAD_S = 1.0
"""How long a request may take to come in, on a connection that was made a moment ago."""
_MOST_LINES = 50
_LINES_S = 3600.0
_PR_SET_PDEATHSIG = 1  # include/uapi/linux/prctl.h
_PR_SET_DUMPABLE = 4


def main() -> None:
    """Serve until the keeper ends."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    orders_fd, life_fd = FIRST_FD, FIRST_FD + 1
    with open(orders_fd, encoding="utf-8") as file:
        file.seek(0)
        orders = json.load(file)
    upstreams = parse_upstreams(json.dumps(orders["upstreams"]))
    listeners = [socket.socket(fileno=life_fd + 1 + at) for at in range(len(upstreams))]
    asyncio.run(serve(upstreams, listeners, life_fd, orders["directory"], os.environ))


async def serve(
    upstreams: Sequence[Upstream],
    listeners: Sequence[socket.socket],
    life_fd: int,
    directory: str,
    env: Mapping[str, str],
) -> None:
    """Serve on the listeners, one of each upstream, until `life_fd` is at its end. With anything to
    read there, another process has the listeners: only what is under way is finished.

    directory: where the counts are kept, "" for nowhere. env: the owner's.
    """
    counts = read_counts(directory) if directory else {}
    ledger = Ledger(directory, {one.name: counts.get(one.name, Count()) for one in upstreams})
    log = Log()
    doors: list[Door] = []
    for upstream, listener in zip(upstreams, listeners, strict=True):
        service = Service(
            upstream=upstream,
            vault=Vault(upstream.name, upstream.secret, env),
            dialer=Dialer(parse_base(upstream.base_url), env, log),
            count=ledger.counts[upstream.name],
            changed=ledger.changed,
            log=log,
        )
        doors.append(Door(listener, service))
    loop = asyncio.get_running_loop()
    ended, relieved = asyncio.Event(), asyncio.Event()

    def told() -> None:
        (relieved if os.read(life_fd, 1) else ended).set()

    loop.add_reader(life_fd, told)
    tasks = [asyncio.create_task(door.serve()) for door in doors]
    waiting = [asyncio.create_task(event.wait()) for event in (ended, relieved)]
    await asyncio.wait([*waiting, *tasks], return_when=asyncio.FIRST_COMPLETED)
    if relieved.is_set():
        for task in tasks:
            task.cancel()
        for door in doors:
            finishing = asyncio.create_task(door.finish())
            await asyncio.wait([waiting[0], finishing], return_when=asyncio.FIRST_COMPLETED)
    loop.remove_reader(life_fd)
    for task in tasks:
        task.cancel()
    for door in doors:
        await door.close()
    ledger.close()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result


class Door:
    """One listener, and the connections that came through it."""

    def __init__(self, listener: socket.socket, service: Service) -> None:
        """Owns the listener."""
        listener.setblocking(False)  # noqa: FBT003
        self._listener = listener
        self._service = service
        self._open: dict[Near, asyncio.Task[None]] = {}
        self._room = asyncio.Event()

    async def serve(self) -> None:
        """Accept for ever."""
        loop = asyncio.get_running_loop()
        while True:
            if len(self._open) >= CONNECTIONS:
                await self._make_room()
            try:
                sock, _ = await loop.sock_accept(self._listener)
            except OSError as error:  # no descriptors or memory left
                self._service.log(f"a connection was not accepted: {error}")
                await asyncio.sleep(_PAUSE_S)
                continue
            _, link = await loop.connect_accepted_socket(Link, sock)
            near = Near(link, self._service)
            task = asyncio.create_task(near.serve())
            self._open[near] = task
            task.add_done_callback(functools.partial(self._ended, near))

    async def finish(self) -> None:
        """Wait until what is under way has ended; nobody is let in any more."""
        await asyncio.sleep(_HEAD_S)
        while self._open:
            for near in self._open:
                if near.is_idle:
                    near.close()
            await asyncio.sleep(_PAUSE_S)

    async def close(self) -> None:
        """Break off what is under way."""
        tasks = list(self._open.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await settle(_SETTLE_S)
        self._service.dialer.close()
        await asyncio.sleep(0)  # the event loop closes sockets at its next turn

    async def _make_room(self) -> None:
        """Close the connection that has been idle for longest, or wait until one ends."""
        self._room.clear()
        for near in self._open:
            if near.is_idle:
                near.close()
                break
        await self._room.wait()

    def _ended(self, near: Near, task: asyncio.Task[None]) -> None:
        self._open.pop(near, None)
        self._room.set()
        if not task.cancelled() and task.exception() is not None:
            self._service.log(f"bug: {task.exception()!r}")


class Ledger:
    """The counts, written down soon after they change."""

    def __init__(self, directory: str, counts: dict[str, Count]) -> None:
        """counts: by login, changed in place."""
        self.counts = counts
        self._directory = directory
        self._timer: asyncio.TimerHandle | None = None

    def changed(self) -> None:
        """Something was counted."""
        if self._timer is None and self._directory:
            self._timer = asyncio.get_running_loop().call_later(_FLUSH_S, self.flush)

    def close(self) -> None:
        """Write down what is not written yet, and nothing otherwise: the session's directory may be
        on its way out."""
        if self._timer is not None:
            self.flush()

    def flush(self) -> None:
        """Write them down. A full disk costs the counts and nothing else."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            write_counts(self._directory, self.counts)
        except OSError as error:
            _write(f"{self._directory}: {error}")


class Log:
    """Lines in the keeper's log: each once an hour at most, and not more than an agent may fill."""

    def __init__(self) -> None:
        """Nothing written yet."""
        self._seen: set[str] = set()
        self._since = time.monotonic()

    def __call__(self, text: str) -> None:
        """Write a line."""
        if time.monotonic() - self._since > _LINES_S:
            self._seen.clear()
            self._since = time.monotonic()
        if text not in self._seen and len(self._seen) < _MOST_LINES:
            self._seen.add(text)
            _write(text)


def _write(text: str) -> None:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S")
    sys.stderr.write(f"{stamp} broker: {text}\n")
    sys.stderr.flush()
