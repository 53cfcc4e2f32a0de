"""Logins that a cage uses and never has: the broker's process, and what an agent is told of it.

The listeners are made in the cage's network namespace before the first agent that is to use them
starts.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence

from cagewrap import auth, upstream
from cagewrap.childenv import child_environment
from cagewrap.errors import SessionError
from cagewrap.hostclaude import PASSED_ON
from cagewrap.keeper import namespaces
from cagewrap.keeper.brokerplan import BASE_URL, DIRECTORY, Owners, plan_upstreams
from cagewrap.keeper.brokerprocess import Broker, let_end
from cagewrap.keeper.care import Care, Keep, Note
from cagewrap.keeper.container import Container
from cagewrap.keeper.inheritance import Known
from cagewrap.keeper.login import Login
from cagewrap.keeper.loop import Loop
from cagewrap.keeper.ownprogram import Whose
from cagewrap.keeper.request import Request
from cagewrap.loginstore import CREDENTIALS, Credentials, replace_file
from cagewrap.model import LoginMode
from cagewrap.paths import Paths
from cagewrap.sessions import Record, make_private
from cagewrap.stamps import NO_FILE
from cagewrap.upstream import Secret, Upstream

_YEAR_S = 365 * 86400.0
_PROXIES = tuple(
    form.encode()
    for name in ("http_proxy", "https_proxy", "all_proxy")
    for form in (name, name.upper())
)


class Brokered(Care):
    """The brokers of one cage: one for each set of logins that its messages have been given."""

    name = "broker"

    def __init__(
        self,
        loop: Loop,
        record: Record,
        paths: Paths,
        container: Container,
        login: Login,
        log: Callable[[str], None],
        whose: Whose,
    ) -> None:
        """login: decides about the login of each message. whose: of which build brokers are.
        Starts nothing."""
        self._loop = loop
        self._whose = whose
        self._login = login
        self._log = log
        self._container = container
        self._record = record
        # That of a cage for one command is deleted while the broker may still write.
        self._directory = "" if record.rm else paths.cage_dir(record.name)
        self._login_dir = os.path.join(paths.cage_login_dir(record.name), DIRECTORY)
        self._stamp = NO_FILE
        self._brokers: dict[tuple[Upstream, ...], Broker] = {}
        self._users: dict[int, Broker] = {}
        self._latest: Broker | None = None

    def hand_on(self, keep: Keep) -> Known:
        """The listeners, and what is served there: secrets too, so this is for memory alone."""
        latest = [broker is self._latest for broker in self._brokers.values()]
        return {
            "brokers": [broker.hand_on(keep) for broker in self._brokers.values()],
            "latest": latest.index(True) if True in latest else -1,
        }

    def go_on(self, known: Known) -> None:
        """Serve there."""
        brokers = []
        for one in known.get("brokers", ()):
            wanted = upstream.parse_upstreams(one["upstreams"])
            listeners = [socket.socket(fileno=fd) for fd in one["listeners"]]
            broker = Broker(
                self._loop, wanted, listeners, one["directory"], one["env"], self._log, self._whose
            )
            self._brokers[wanted] = broker
            brokers.append(broker)
            let_end(self._loop, one["life"], one["pid"])
        latest = int(known.get("latest", -1))
        self._latest = brokers[latest] if 0 <= latest < len(brokers) else None

    def before(self, request: Request, note: Note, ready: Callable[[], None]) -> None:
        """See that the broker of a message's logins runs."""
        settings, plan = self._login.settings(request), self._login.plan(request)
        wanted = plan_upstreams(settings, plan, self._login.store, self._owners(request))
        self._users.pop(id(request), None)
        if wanted:
            broker = self._brokers.get(wanted)
            if broker is None:
                broker = self._start(wanted, request.env)
            self._users[id(request)] = self._latest = broker
            self._write_placeholder(wanted)
            if broker.is_failing:
                note("the broker of this cage does not run (see `cagewrap logs`): no API is there")
        ready()

    def environment(self, request: Request, env: Mapping[bytes, bytes]) -> Mapping[bytes, bytes]:
        """Where the brokers are, and what stands for the logins."""
        added: dict[bytes, bytes] = {}
        if self._login.settings(request).mode is LoginMode.BROKER:
            # Claude would prefer one of these to what we add, and it may hold a real secret.
            own = {name.encode() for name in auth.OWN_VARIABLES}
            added = dict.fromkeys(own.intersection(env), b"")
        broker = self._users.get(id(request))
        if broker is None:
            return added
        added |= {name.encode(): value.encode() for name, value in broker.variables()}
        if any(env.get(name) for name in _PROXIES):
            for name in (b"no_proxy", b"NO_PROXY"):
                excepted = [one for one in (env.get(name, b""), b"127.0.0.1") if one]
                added[name] = b",".join(excepted)
        return added

    def poll(self) -> None:
        """Have the login renewed in time: the broker reads it from where it lies."""
        if self._latest is not None and any(
            one.secret.credentials for one in self._latest.upstreams
        ):
            self._login.renew_in_time()

    def after(self, request: Request, note: Note) -> None:  # noqa: ARG002
        """A broker that the settings of now do not mean ends with the last agent that uses it. The
        latest stays: what an agent left in the background may need it."""
        self._users.pop(id(request), None)
        used = {self._latest, *self._users.values()}
        for key, broker in list(self._brokers.items()):
            if broker not in used:
                broker.close()
                del self._brokers[key]

    def close(self) -> None:
        """End them all."""
        for broker in self._brokers.values():
            broker.close()
        self._brokers.clear()
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self._login_dir, CREDENTIALS))

    def _owners(self, request: Request) -> Owners:
        """What the owner gives the agent himself."""
        given = dict((*self._record.fixed_env, *request.fixed))
        base_url = given.get(BASE_URL) or _text(request.env, BASE_URL)
        name = self._login.own(request)
        file = dict(request.secret_files).get(name, "")
        if file:
            return Owners(base_url, name, Secret(file=file))
        value = _text(request.env, name) if name in request.secret_names else given.get(name)
        return Owners(base_url, name, Secret(value=value or _text(request.env, name)))

    def _start(self, wanted: tuple[Upstream, ...], env: Mapping[bytes, bytes]) -> Broker:
        with contextlib.ExitStack() as undo:
            listeners = [undo.enter_context(self._listen(one)) for one in wanted]
            undo.pop_all()
        names = [name for name in PASSED_ON if name.encode() in env]
        passed = {name: os.fsdecode(env[name.encode()]) for name in names}
        broker = Broker(
            self._loop,
            wanted,
            listeners,
            self._directory,
            child_environment(os.environ) | passed,
            self._log,
            self._whose,
        )
        self._brokers[wanted] = broker
        return broker

    def _listen(self, wanted: Upstream) -> socket.socket:
        try:
            return namespaces.listen_inside(self._container.init_pid, wanted.port)
        except OSError as error:
            raise SessionError(
                f"The broker of the login {wanted.name} cannot listen on port {wanted.port} of the "
                f"cage: {error}.",
                f"choose another port in [login.{wanted.name}], or none",
            ) from error

    def _write_placeholder(self, wanted: Sequence[Upstream]) -> None:
        """A login of the same kind as the owner's, so that Claude behaves the same: which model it
        takes, and what it does at the limits of a subscription, depends on it."""
        store = self._login.store
        found = store.read()
        if found is None or not any(one.secret.credentials for one in wanted):
            return
        if store.stamp != self._stamp:
            values = {
                **found.values,
                "accessToken": upstream.PLACEHOLDER,
                "expiresAt": int((time.time() + _YEAR_S) * 1000),
            }
            make_private(self._login_dir)
            path = os.path.join(self._login_dir, CREDENTIALS)
            replace_file(path, Credentials(values).for_agent(), lasting=False)
            self._stamp = store.stamp


def _text(env: Mapping[bytes, bytes], name: str) -> str:
    return env.get(name.encode(), b"").decode(errors="replace")
