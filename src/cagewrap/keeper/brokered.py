"""Logins that a cage uses and never has: the broker's process, and what an agent is told of it.

The listeners are made in the cage's network namespace before the first agent that is to use them
starts, and kept here too: while a broker that died is started again, who connects waits.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from cagewrap import ahead, auth, upstream
from cagewrap.auth import Plan, Source
from cagewrap.childenv import child_environment
from cagewrap.errors import SessionError
from cagewrap.hostclaude import PASSED_ON
from cagewrap.keeper import namespaces, spawn
from cagewrap.keeper.care import Care, Note
from cagewrap.keeper.login import Login
from cagewrap.keeper.loop import Loop
from cagewrap.keeper.request import Request
from cagewrap.loginspec import CLAUDE
from cagewrap.loginstore import CREDENTIALS, Credentials, LoginStore, Stamp, replace_file
from cagewrap.model import AgentLogin, LoginMode, LoginSettings
from cagewrap.paths import Paths
from cagewrap.sessions import Record, make_private
from cagewrap.upstream import Secret, Upstream

_FIRST_FD = 3  # egress.broker.FIRST_FD, which is not imported here
_LAST_YEAR_S = 365 * 86400.0
_PATIENCE_S = (0.1, 5.0)
"""Before a broker that died is started again: at first, and at most."""
_DIRECTORY = "broker"
"""Below the cage's login directory: a login whose token is a placeholder."""
_PROXIES = (
    b"http_proxy",
    b"HTTP_PROXY",
    b"https_proxy",
    b"HTTPS_PROXY",
    b"all_proxy",
    b"ALL_PROXY",
)
_BASE_URL = ("ANTHROPIC_BASE_URL", "{url}")


class Brokered(Care):
    """The brokers of one cage: one for each set of logins that its messages have been given."""

    def __init__(
        self,
        loop: Loop,
        record: Record,
        paths: Paths,
        init_pid: int,
        login: Login,
        log: Callable[[str], None],
    ) -> None:
        """login: decides about the login of each message. Starts nothing."""
        self._loop = loop
        self._login = login
        self._log = log
        self._init_pid = init_pid
        self._directory = paths.cage_dir(record.name)
        self._login_dir = os.path.join(paths.cage_login_dir(record.name), _DIRECTORY)
        self._stamp: Stamp = (0, 0, 0)
        self._brokers: dict[tuple[Upstream, ...], Broker] = {}
        self._users: dict[int, Broker] = {}
        self._latest: Broker | None = None

    def before(self, request: Request, note: Note, ready: Callable[[], None]) -> None:  # noqa: ARG002
        """See that the broker of a message's logins runs."""
        settings, plan = self._login.settings(request), self._login.plan(request)
        wanted = plan_upstreams(settings, plan, self._login.store)
        if wanted:
            broker = self._brokers.get(wanted)
            if broker is None:
                broker = self._start(wanted, request.env)
            self._users[id(request)] = self._latest = broker
            self._write_placeholder(wanted)
        ready()

    def environment(self, request: Request, env: Mapping[bytes, bytes]) -> Mapping[bytes, bytes]:
        """Where the brokers are, and what stands for the logins."""
        broker = self._users.get(id(request))
        if broker is None:
            return {}
        added = {name.encode(): value.encode() for name, value in broker.variables()}
        if any(one.name == CLAUDE for one in broker.upstreams):
            # One of these would be preferred to what we add, and it may be a real secret.
            own = {name.encode() for name in auth.OWN_VARIABLES}
            added = dict.fromkeys(own.intersection(env), b"") | added
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
        )
        self._brokers[wanted] = broker
        return broker

    def _listen(self, wanted: Upstream) -> socket.socket:
        try:
            return namespaces.listen_inside(self._init_pid, wanted.port)
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
                "expiresAt": int((time.time() + _LAST_YEAR_S) * 1000),
            }
            make_private(self._login_dir)
            path = os.path.join(self._login_dir, CREDENTIALS)
            replace_file(path, Credentials(values).for_agent(), lasting=False)
            self._stamp = store.stamp


class Broker:
    """One process, for as long as the cage runs or its settings hold."""

    def __init__(
        self,
        loop: Loop,
        upstreams: tuple[Upstream, ...],
        listeners: Sequence[socket.socket],
        directory: str,
        env: Mapping[str, str],
        log: Callable[[str], None],
    ) -> None:
        """Owns the listeners, one of each upstream. directory: where it counts. Starts it."""
        self.upstreams = upstreams
        self._loop = loop
        self._listeners = [_high(listener) for listener in listeners]
        self._directory = directory
        self._env = dict(env)
        self._log = log
        self._life = -1
        self._patience_s = _PATIENCE_S[0]
        self._started_at = 0.0
        self._is_closed = False
        self._start()

    def variables(self) -> list[tuple[str, str]]:
        """What an agent is told."""
        return [
            (name, upstream.fill(value, f"http://127.0.0.1:{listener.getsockname()[1]}"))
            for one, listener in zip(self.upstreams, self._listeners, strict=True)
            for name, value in one.env
        ]

    def close(self) -> None:
        """End it."""
        self._is_closed = True
        if self._life >= 0:
            os.close(self._life)
            self._life = -1
        for listener in self._listeners:
            listener.close()

    def _start(self) -> None:
        """Start the process. Whatever fails is tried again: without a broker there is no API."""
        if self._is_closed:
            return
        self._started_at = time.monotonic()
        orders = _memory(
            {
                "upstreams": json.loads(upstream.render_upstreams(self.upstreams)),
                "directory": self._directory,
            }
        )
        reader, self._life = os.pipe2(os.O_CLOEXEC)
        given = [_high_fd(orders), _high_fd(reader), *(one.fileno() for one in self._listeners)]
        argv = ahead.self_command("broker", "-", with_site=True)
        try:
            program = spawn.Program(
                os.path.basename(sys.executable), os.path.dirname(sys.executable)
            )
            fds = [(fd, _FIRST_FD + at) for at, fd in enumerate(given)]
            pid = spawn.spawn(program, argv, self._env, fds)
        except OSError as error:
            self._log(f"broker: cannot be started: {error}")
            self._again()
            return
        finally:
            os.close(given[0])
            os.close(given[1])
        self._loop.on_end(pid, self._ended)

    def _ended(self, status: int) -> None:
        if not self._is_closed:
            self._log(f"broker: ended with {os.waitstatus_to_exitcode(status)}")
            self._again()

    def _again(self) -> None:
        os.close(self._life)
        self._life = -1
        if time.monotonic() - self._started_at > 2 * _PATIENCE_S[1]:
            self._patience_s = _PATIENCE_S[0]
        self._loop.later(self._patience_s, self._start)
        self._patience_s = min(2 * self._patience_s, _PATIENCE_S[1])


def plan_upstreams(settings: LoginSettings, plan: Plan, store: LoginStore) -> tuple[Upstream, ...]:
    """What a message reaches through a broker: Claude's API in the mode `broker`, and those of
    `[login.NAME]` in every mode but `none`. Not what there is no secret for."""
    agents = {agent.name: agent for agent in settings.agents}
    claude = agents.pop(CLAUDE, AgentLogin(CLAUDE))
    found: list[Upstream] = []
    if settings.mode is LoginMode.BROKER:
        secret = _own_secret(claude) or _shared_secret(settings, plan, store)
        if secret is not None:
            found.append(_for_claude(claude, secret))
    if settings.mode is not LoginMode.NONE:
        for agent in agents.values():
            secret = _own_secret(agent)  # and never Claude's: it is for another API
            if secret is not None:
                found.append(_for_agent(agent, secret))
    return tuple(found)


def _own_secret(agent: AgentLogin) -> Secret | None:
    if agent.token_file:
        return Secret(file=agent.token_file)
    return Secret(command=agent.token_command) if agent.token_command else None


def _shared_secret(settings: LoginSettings, plan: Plan, store: LoginStore) -> Secret | None:
    match plan.source:
        case Source.LOGIN:
            return Secret(credentials=store.credentials_file)
        case Source.TOKEN_FILE:
            return Secret(file=store.token_file)
        case Source.TOKEN_COMMAND:
            return Secret(command=settings.token_command)
        case Source.NOTHING:
            return None


def _for_claude(agent: AgentLogin, secret: Secret) -> Upstream:
    directory = f"{auth.LOGIN_TARGET}/{_DIRECTORY}"
    login = (
        (auth.DIRECTORY_VARIABLE, directory)
        if secret.credentials
        else ("ANTHROPIC_AUTH_TOKEN", "{placeholder}")
    )
    return Upstream(
        name=agent.name,
        base_url=agent.base_url or upstream.ANTHROPIC_URL,
        secret=secret,
        kind="plain" if agent.header else "anthropic",
        header=agent.header,
        paths=agent.paths or upstream.ANTHROPIC_PATHS,
        port=agent.port,
        env=tuple({**dict((_BASE_URL, login)), **dict(agent.env)}.items()),
    )


def _for_agent(agent: AgentLogin, secret: Secret) -> Upstream:
    return replace(
        _for_claude(agent, secret),
        kind="plain",
        header=agent.header or "authorization: Bearer {secret}",
        env=agent.env,
    )


def _memory(value: object) -> int:
    fd = os.memfd_create("cagewrap-broker", os.MFD_CLOEXEC)
    os.write(fd, json.dumps(value).encode())
    return fd


def _high(listener: socket.socket) -> socket.socket:
    """The same socket with a number that is not one of the broker's own."""
    with listener:
        return socket.socket(
            fileno=fcntl.fcntl(listener.fileno(), fcntl.F_DUPFD_CLOEXEC, spawn.HIGH_FD)
        )


def _high_fd(fd: int) -> int:
    high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, spawn.HIGH_FD)
    os.close(fd)
    return high
