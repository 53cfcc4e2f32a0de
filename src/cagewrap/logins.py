"""What a person does with cagewrap's own login: make it, look at it, remove it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cagewrap import auth, beneath, sessions
from cagewrap.auth import OWN_VARIABLES, Plan
from cagewrap.childenv import search_path
from cagewrap.errors import LoginError
from cagewrap.hostclaude import find_claude, find_ours, is_native, ours_in_words
from cagewrap.launch import Plan as Launch
from cagewrap.loginstore import (
    CREDENTIALS,
    MOST_BYTES,
    Credentials,
    LoginStore,
    Status,
    parse_credentials,
)
from cagewrap.model import LoginMode, LoginSettings, Mount
from cagewrap.paths import Paths
from cagewrap.project import find_project

_CLAUDE_INSIDE = "/opt/cagewrap-claude"
_TOKEN_BYTES = 4096


@dataclass(frozen=True, slots=True)
class LoginInfo:
    """What `cagewrap login status` shows. Times in seconds since the epoch, 0 for never.

    mode, source, why, hint: of `auth.Plan`. own: the variable of yours that is used instead, or "".
    state: of cagewrap's own login; see `auth.LoginState`. outcome, detail: of the last renewal.
    claude: the program that renews it, "" for none. has_token: whether a token is kept.
    """

    mode: str
    source: str
    why: str
    hint: str
    own: str
    state: str
    expires_at: float
    refreshed_at: float
    tried_at: float
    outcome: str
    detail: str
    claude: str
    has_token: bool


def look(launch: Launch) -> LoginInfo:
    """What a session with these settings would get."""
    store = LoginStore(launch.paths)
    caller = {os.fsencode(name): os.fsencode(value) for name, value in launch.env.items()}
    own = auth.own_login(launch.settings.env, caller)
    found = store.look(time.time(), own)
    plan: Plan = auth.plan_login(launch.settings.login, found)
    status, credentials = store.read_status(), store.read()
    return LoginInfo(
        mode=plan.mode.value,
        source=plan.source.value,
        why=plan.why,
        hint=plan.hint,
        own=own,
        state=found.login.value,
        expires_at=credentials.expires_at if credentials else 0.0,
        refreshed_at=status.refreshed_at,
        tried_at=status.tried_at,
        outcome=status.outcome,
        detail=status.detail,
        claude=host_claude(launch),
        has_token=found.has_token_file,
    )


def host_claude(launch: Launch) -> str:
    """The claude of this machine that renews the login, or ""."""
    projects = sessions.written_by_cages(launch.paths)
    projects.add(launch.project.path)
    path = search_path(launch.env, projects)
    return find_claude(path, launch.paths.home, projects, launch.settings.login.claude)


def passed_over(launch: Launch) -> str:
    """In brackets, what stands where `host_claude` is looked for and is cagewrap's; or ""."""
    path, told = search_path(launch.env), launch.settings.login.claude
    return ours_in_words(find_ours(path, launch.paths.home, told))


def take_token(paths: Paths, text: str) -> str:
    """Keep a token; returns the variable it goes into. Raises LoginError for what is none."""
    token = "".join(text.split())  # a terminal breaks a long one into lines
    if len(token) > _TOKEN_BYTES or not token.isascii() or not auth.token_variable(token):
        raise LoginError(
            "That is no token of Anthropic's: one begins with sk-ant-oat (from `claude "
            "setup-token`) or sk-ant-api (an API key).",
            "claude setup-token, then cagewrap login --token",
        )
    with _locked(paths) as store:
        store.write_token(token)
    return auth.token_variable(token)


def take_login(paths: Paths, directory: str) -> Credentials:
    """Take the login that was made in a directory. Raises LoginError unless it is whole."""
    content = b""
    root = beneath.open_root(directory)
    try:
        fd = beneath.open_dir(root, ())
        try:
            with contextlib.suppress(OSError):
                content = beneath.read_regular(fd, CREDENTIALS, MOST_BYTES)
        finally:
            os.close(fd)
    finally:
        os.close(root)
    found = parse_credentials(content)
    if found is None or not found.refresh_token:
        raise LoginError("The login was not completed; nothing has changed.", "cagewrap login")
    with _locked(paths) as store:
        store.write(found)
        store.write_status(Status(refreshed_at=time.time()))
    return found


def forget(paths: Paths) -> tuple[str, ...]:
    """Remove every login of cagewrap's own, also from cages that run; returns what there was."""
    with _locked(paths) as store:
        found = list(store.forget())
        shared = os.path.join(paths.shared_login_dir, CREDENTIALS)
        published = [paths.cage_login_dir(one.name) for one in sessions.list_records(paths)]
        for path in (shared, *(os.path.join(one, CREDENTIALS) for one in published)):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(path)
                if path == shared:
                    found.append("shared login")
    return tuple(found)


@contextmanager
def _locked(paths: Paths) -> Iterator[LoginStore]:
    """The store, while nobody renews what is in it."""
    store = LoginStore(paths)
    sessions.make_private(store.directory)
    fd = os.open(store.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield store
    finally:
        os.close(fd)


# --- making one in a cage -------------------------------------------------------------------------


@contextmanager
def login_cage(launch: Launch, claude: str) -> Iterator[tuple[Launch, list[str], str]]:
    """A cage of its own in which a person logs in: its plan, the command, and the directory of
    the host in which the login will be."""
    parent = os.path.dirname(launch.paths.login_dir)
    sessions.make_private(parent)
    directory = tempfile.mkdtemp(prefix="new-", dir=parent)
    project = os.path.realpath(tempfile.mkdtemp(prefix="cagewrap-login-", dir="/tmp"))
    try:
        yield (
            _plan(launch, claude, directory, project),
            [_CLAUDE_INSIDE if is_native(claude) else "claude", "auth", "login"],
            directory,
        )
    finally:
        for path in (directory, project):
            shutil.rmtree(path, ignore_errors=True)


def _plan(launch: Launch, claude: str, directory: str, project: str) -> Launch:
    """The settings of the owner, for a login of Claude's alone: none of his own reaches it."""
    settings, env = launch.settings, launch.settings.env
    program = Mount(os.path.realpath(claude), _CLAUDE_INSIDE, readonly=True, why="claude")
    chosen = find_project(project, launch.paths.home, project)
    return launch._replace(
        project=chosen,
        settings=settings._replace(
            project=chosen.path,
            session="",
            rm=True,
            hide=(),
            publish=(),
            mounts=(*settings.mounts, *((program,) if is_native(claude) else ())),
            login=LoginSettings(LoginMode.DIRECTORY, directory=directory),
            env=env._replace(
                passed=(*env.passed, *(f"!{name}" for name in OWN_VARIABLES)),
                fixed=tuple(one for one in env.fixed if one[0] not in OWN_VARIABLES),
                secret_names=tuple(one for one in env.secret_names if one not in OWN_VARIABLES),
                secret_files=tuple(one for one in env.secret_files if one[0] not in OWN_VARIABLES),
            ),
        ),
    )
