"""The login of a cage's messages: a file or a variable for each, and renewing it in time.

The decision is `auth.plan_login`'s, made for each message anew. In mode `access` the cage sees one
file, written here whenever the login on the host has changed, with the access token alone.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping

from cagewrap import auth
from cagewrap.auth import Plan, Source
from cagewrap.errors import CagewrapError, SessionError
from cagewrap.hostclaude import PASSED_ON
from cagewrap.keeper.care import Care, Keep, Note
from cagewrap.keeper.inheritance import Known
from cagewrap.keeper.loop import Loop
from cagewrap.keeper.ownprogram import Whose
from cagewrap.keeper.refreshing import Refresher
from cagewrap.keeper.request import Request
from cagewrap.keeper.tokens import TokenCommand
from cagewrap.loginstore import CREDENTIALS, EARLY_S, LoginStore, replace_file
from cagewrap.model import EnvPolicy, LoginMode, LoginSettings
from cagewrap.paths import Paths
from cagewrap.sessions import Record
from cagewrap.stamps import NO_FILE

WAIT_S = 90.0
"""How long a message waits for a login that has ended to be renewed."""


class Login(Care):
    """Logs the messages of one cage in."""

    name = "login"

    def __init__(
        self,
        loop: Loop,
        record: Record,
        paths: Paths,
        log: Callable[[str], None],
        whose: Whose,
    ) -> None:
        """Removes what a keeper that was killed has left in the cage's login directory.

        whose: of which build the program is that renews.
        """
        self.store = LoginStore(paths)
        self.refresher = Refresher(loop, self.store, log, whose)
        self._loop = loop
        self._record = record
        self._log = log
        self._home_dir = paths.home_dir(record.name)
        self._targets = {target for _, target in record.binds}
        self._published = os.path.join(paths.cage_login_dir(record.name), CREDENTIALS)
        self._marker = os.path.join(paths.cage_dir(record.name), "login-told")
        self._published_stamp = NO_FILE
        self._users: set[int] = set()
        self._last: tuple[LoginSettings, Mapping[bytes, bytes]] = (LoginSettings(), {})
        self._settings: tuple[bytes, LoginSettings] = (b"", LoginSettings())
        self._commands: dict[tuple[str, ...], TokenCommand] = {}
        self._told: set[str] = set()
        self._unpublish()

    # -- a message -----------------------------------------------------------------------------

    def before(self, request: Request, note: Note, ready: Callable[[], None]) -> None:
        """See that the login the message gets is there, and good for a while."""
        self._before(request, note, ready, may_wait=True)

    def _before(
        self, request: Request, note: Note, ready: Callable[[], None], *, may_wait: bool
    ) -> None:
        settings, plan = self._read_settings(request), self.plan(request)
        self._check_mounts(plan)
        if plan.source is Source.NOTHING:
            self._tell_missing(request, plan, note)
        if plan.source is Source.LOGIN:
            self._before_access(request, note, ready, plan.mode, may_wait=may_wait)
        else:
            if not self._users:
                self._unpublish()
            if plan.mode is LoginMode.TOKEN and plan.source is Source.TOKEN_COMMAND:
                self._before_token(settings, note, ready)
            else:
                ready()

    def environment(self, request: Request, env: Mapping[bytes, bytes]) -> Mapping[bytes, bytes]:
        """The variable with the login, or where it is."""
        settings = self._read_settings(request)
        plan = auth.plan_login(settings, self.store.look(time.time(), auth.find_own(env)))
        if plan.mode is LoginMode.DIRECTORY:
            return {_encoded(auth.DIRECTORY_VARIABLE): _encoded(auth.SHARED_TARGET)}
        if plan.source is Source.NOTHING:
            return {}
        if plan.mode is LoginMode.ACCESS:
            self._users.add(id(request))
            return {_encoded(auth.DIRECTORY_VARIABLE): _encoded(auth.LOGIN_TARGET)}
        if plan.mode is LoginMode.TOKEN:
            token = self._token(settings, plan.source)
            name = auth.token_variable(token)
            return {_encoded(name): _encoded(token)} if name else {}
        return {}

    def after(self, request: Request, note: Note) -> None:  # noqa: ARG002
        """The file stays while anything of a message runs: it may be in use."""
        self._users.discard(id(request))

    def poll(self) -> None:
        """Renew in time, and pass on what was renewed."""
        if self._published_stamp == NO_FILE and not self._users:
            return
        try:
            self._publish()
            self._renew_if_early()
        except (OSError, CagewrapError) as error:
            self._say_once(f"the login cannot be handed over: {error}", self._log)

    def idle(self) -> None:
        """Nobody needs the file."""
        self._unpublish()

    def close(self) -> None:
        """Leave no token behind."""
        self._unpublish()

    def hand_on(self, keep: Keep) -> Known:  # noqa: ARG002
        """Whether the file is in use, and how it is renewed. What is between us and the API may
        have a password, so this is for memory alone."""
        settings, env = self._last
        passed = [
            (name, os.fsdecode(env[name.encode()])) for name in PASSED_ON if name.encode() in env
        ]
        return {
            "is_published": self._published_stamp != NO_FILE,
            "settings": auth.pack(settings).decode(),
            "env": passed,
        }

    def go_on(self, known: Known) -> None:
        """The file is there again."""
        env = {os.fsencode(name): os.fsencode(value) for name, value in known.get("env", ())}
        if "settings" in known:
            self._last = auth.unpack(known["settings"].encode()), env
        if known.get("is_published"):
            self._publish()

    def settings(self, request: Request) -> LoginSettings:
        """What a message asks for."""
        return self._read_settings(request)

    def renew_in_time(self) -> None:
        """Renew the login if it ends soon. Raises nothing."""
        try:
            self._renew_if_early()
        except (OSError, CagewrapError) as error:
            self._say_once(f"the login cannot be renewed: {error}", self._log)

    def plan(self, request: Request) -> Plan:
        """What a message gets."""
        found = self.store.look(time.time(), self.own(request))
        return auth.plan_login(self._read_settings(request), found)

    # -- mode access ---------------------------------------------------------------------------

    def _before_access(
        self,
        request: Request,
        note: Note,
        ready: Callable[[], None],
        mode: LoginMode,
        *,
        may_wait: bool,
    ) -> None:
        """Also for the mode broker, where nothing is published."""
        self._last = self._read_settings(request), request.env
        found = self.store.read()
        is_ended = found is None or found.expires_at <= time.time()
        if is_ended and may_wait and self.refresher.may_begin:
            self._wait(request, note, ready)
            return
        self._tell_failure(note, is_ended=is_ended)
        if mode is LoginMode.ACCESS:
            self._publish()
        self._renew_if_early()
        ready()

    def _tell_failure(self, note: Note, *, is_ended: bool) -> None:
        """Say once that the login could not be renewed; again only after it could."""
        found = self.store.read()
        if is_ended:
            detail = self.store.read_status().detail or "it takes too long"
            self._say_once(
                f"{_FAILED} now: {detail}. `cagewrap login status` says more, and "
                "`cagewrap login --token` takes a token",
                note,
            )
        elif found is None or found.expires_at - time.time() > EARLY_S:
            self._told = {text for text in self._told if not text.startswith(_FAILED)}
        elif self.store.is_dead(found):
            self._say_once(
                "cagewrap's login ends within minutes and cannot be renewed: `cagewrap login` "
                "makes a new one",
                note,
            )

    def _wait(self, request: Request, note: Note, ready: Callable[[], None]) -> None:
        """Go on once the login is renewed, or when that takes too long."""
        self.refresher.begin(self._last[0].claude, self._last[1])
        is_over = False

        def go_on() -> None:
            nonlocal is_over
            if is_over:
                return
            is_over = True
            timer.cancel()
            try:
                self._before(request, note, ready, may_wait=False)
            except (OSError, CagewrapError) as error:
                note(f"the login cannot be handed over: {error}")
                ready()

        timer = self._loop.later(WAIT_S, go_on)
        self.refresher.when_done(go_on)

    def _renew_if_early(self) -> None:
        found = self.store.read()
        if found is None or found.expires_at - time.time() > EARLY_S:
            return
        if not self.store.is_dead(found):
            self.refresher.begin(self._last[0].claude, self._last[1])

    def _publish(self) -> None:
        """Write the cage's file, if the login on the host is another one now."""
        found = self.store.read()
        if found is None:
            self._unpublish()
        elif self._published_stamp != self.store.stamp:
            replace_file(self._published, found.for_agent(), lasting=False)
            self._published_stamp = self.store.stamp

    def _unpublish(self) -> None:
        self._published_stamp = NO_FILE
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(self._published)

    # -- mode token ----------------------------------------------------------------------------

    def _before_token(self, settings: LoginSettings, note: Note, ready: Callable[[], None]) -> None:
        command = self._command(settings.token_command)

        def fetched() -> None:
            if not command.value:
                note(f"no login: {command.problem}")
            elif not auth.token_variable(command.value):
                note("no login: what the token command printed begins like no token of Anthropic's")
            ready()

        command.fetch(fetched)

    def _command(self, argv: tuple[str, ...]) -> TokenCommand:
        if argv not in self._commands:
            self._commands[argv] = TokenCommand(self._loop, argv)
        return self._commands[argv]

    def _token(self, settings: LoginSettings, source: Source) -> str:
        if source is Source.TOKEN_COMMAND:
            return self._command(settings.token_command).value
        return self.store.read_token()

    # -- what is wanted, and what is said ------------------------------------------------------

    def _read_settings(self, request: Request) -> LoginSettings:
        if self._settings[0] != request.login:
            self._settings = request.login, auth.unpack(request.login)
        return self._settings[1]

    def own(self, request: Request) -> str:
        """The variable with a login that the owner gives the agent, or ""."""
        fixed = (*self._record.fixed_env, *request.fixed)
        policy = EnvPolicy(request.passed, fixed, request.secret_names, request.secret_files)
        return auth.own_login(policy, request.env)

    def _check_mounts(self, plan: Plan) -> None:
        """Raise SessionError when the cage was made without the place for such a login."""
        wanted = ""
        if plan.mode is LoginMode.DIRECTORY:
            wanted = auth.SHARED_TARGET
        elif plan.source is Source.LOGIN:
            wanted = auth.LOGIN_TARGET
        if wanted and wanted not in self._targets:
            raise SessionError(
                f"The cage {self._record.name} was made without a place for a login of the mode "
                f"{plan.mode.value}.",
                f"cagewrap recreate {self._record.name}",
            )

    def _tell_missing(self, request: Request, plan: Plan, note: Note) -> None:
        """Once for a session, and only where a login was likely expected."""
        is_claude = os.path.basename(request.argv[0]).startswith(b"claude")
        is_asked = self._read_settings(request).mode is not LoginMode.AUTO
        if not plan.hint or not (is_claude or is_asked) or self._has_login_inside():
            return
        text = f"not logged in: {plan.why}; `{plan.hint}` makes one"
        if "ended" in plan.why:  # told again by each keeper
            self._say_once(text, note)
            return
        with open(self._marker, "a+", encoding="utf-8") as file:
            file.seek(0)
            if text + "\n" not in file.readlines():
                file.write(text + "\n")
                note(text)

    def _has_login_inside(self) -> bool:
        return os.path.lexists(os.path.join(self._home_dir, ".claude", CREDENTIALS))

    def _say_once(self, text: str, note: Note) -> None:
        if text not in self._told:
            self._told.add(text)
            note(text)


_FAILED = "cagewrap's login has expired and could not be renewed"


def _encoded(text: str) -> bytes:
    return text.encode(errors="surrogateescape")
