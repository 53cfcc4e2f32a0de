"""The full path to a cage: configuration, project, session, keeper. Taken without a ticket."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import sys
import time
from collections.abc import Mapping
from typing import NamedTuple

from cagewrap import auth, cage, sessions, warm
from cagewrap.ahead import Ahead
from cagewrap.caches import make_caches
from cagewrap.childenv import search_path
from cagewrap.config import read_config, resolve
from cagewrap.errors import (
    DirectoryError,
    KeeperError,
    SessionError,
    UserNamespaceError,
)
from cagewrap.flags import FlagValues, parse_wrap_flags
from cagewrap.keeper.leftovers import kill_leftovers
from cagewrap.keepersocket import try_connect
from cagewrap.model import CageSpec, LoginMode, Owner, PortForward, Settings
from cagewrap.mounts import build_mount_plan, empty_file
from cagewrap.paths import Paths, paths_from_env
from cagewrap.project import Project, caller_cwd, find_project
from cagewrap.runtimes.create import run_args
from cagewrap.runtimes.init import find_init
from cagewrap.sessions import Record, explain_os_error
from cagewrap.shares import share_env

# What podman, crun and the network helpers need of the owner's environment, and nothing else.
_KEEPER_ENV = (
    "DBUS_SESSION_BUS_ADDRESS", "HOME", "LOGNAME", "PATH", "TMPDIR", "TZ", "USER",
    "GIT_CONFIG_GLOBAL", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME",
)  # fmt: skip
_KEEPER_ENV_PREFIXES = ("CONTAINERS_", "STORAGE_", "_PYI_", "LD_LIBRARY_PATH")


class Plan(NamedTuple):
    """What a command line means: which project and session, and with which settings."""

    paths: Paths
    owner: Owner
    project: Project
    settings: Settings
    env: Mapping[str, str]
    flags: FlagValues


def prepare(
    flags: list[str], command: list[str], cwd: bytes, ahead: Ahead
) -> tuple[warm.Ticket, socket.socket]:
    """Find or make the cage for a command, and connect to its keeper, which `ahead` may become."""
    try:
        return _prepare(flags, command, cwd, ahead)
    except OSError as error:
        paths = paths_from_env(dict(os.environ), os.getuid())
        raise explain_os_error(error, paths.state_dir, paths.runtime_dir) from error


def _prepare(
    flags: list[str], command: list[str], cwd: bytes, ahead: Ahead
) -> tuple[warm.Ticket, socket.socket]:
    plan, config_stamp = make_plan(flags)
    if not command:
        from cagewrap.errors import UsageError

        raise UsageError("There is no command after `--`.", "cagewrap -- claude")
    if plan.flags.dry_run:
        _show(plan)
    ticket, connection = prepare_plan(plan, command, ahead)
    if not plan.settings.rm:
        raw_flags = [os.fsencode(flag) for flag in flags]
        names = [os.fsencode(name) for name in plan.settings.session_env]
        config = (os.fsencode(plan.paths.config_file), config_stamp)
        warm.write_ticket(cwd, raw_flags, config, ticket, names)
    return ticket, connection


def prepare_plan(
    plan: Plan, command: list[str], ahead: Ahead | None = None
) -> tuple[warm.Ticket, socket.socket]:
    """Find or make the cage of a plan, and connect to its keeper."""
    record = choose_session(plan, command)
    connection = connect(plan.paths, record.name, ahead)
    path = os.fsencode(plan.paths.socket_file(record.name))
    return warm.Ticket(path, _policy(plan.settings)), connection


def prepare_named(name: str) -> tuple[warm.Ticket, socket.socket]:
    """Connect to the cage of that name, with the environment its project's settings allow."""
    env = dict(os.environ)
    paths = paths_from_env(env, os.getuid())
    record = sessions.read_record(paths, name)
    if record is None:
        raise SessionError(f"There is no session {name}.", "cagewrap ls")
    config = read_config(paths.config_file)
    settings = resolve(config, project=record.project, env=env, flags=FlagValues()).settings
    path = os.fsencode(paths.socket_file(name))
    return warm.Ticket(path, _policy(settings)), connect(paths, name)


def image_of(name: str) -> str:
    """What image the cage of that name is made from."""
    record = sessions.read_record(paths_from_env(os.environ, os.getuid()), name)
    return record.image if record else ""


def make_plan(flags: list[str]) -> tuple[Plan, bytes]:
    """Read the configuration for this directory and these flags; creates nothing but directories.

    Second: the configuration file's stamp, taken before it was read.
    """
    if os.getuid() == 0:
        raise UserNamespaceError(
            "cagewrap runs as an ordinary user: a cage of root's would be root on this machine.",
            "run it as the user who owns the project",
        )
    env = dict(os.environ)
    paths = paths_from_env(env, os.getuid())
    stamp = warm.stamp(os.fsencode(paths.config_file))
    given = parse_wrap_flags(flags)
    config = read_config(paths.config_file)
    sessions.make_directories(paths)
    known = {record.project for record in sessions.list_records(paths)}
    override = given.project or env.get("CAGEWRAP_PROJECT", "")
    project = find_project(caller_cwd(env), paths.home, override, known=known)
    settings = resolve(config, project=project.path, env=env, flags=given).settings
    return Plan(paths, _owner(env), project, settings, env, given), stamp


def choose_session(plan: Plan, command: list[str]) -> Record:
    """The session for this command: found, found under its old name, or made."""
    paths, settings, project = plan.paths, plan.settings, plan.project.path
    if settings.login.mode is LoginMode.DIRECTORY and not settings.login.directory:
        sessions.make_private(paths.shared_login_dir)
    with sessions.locked(sessions.registry_lock(paths)):
        records = sessions.list_records(paths)
        found = None if settings.rm else sessions.find_record(records, project, settings.session)
        if found is None and settings.session and not settings.rm:
            from cagewrap.resumed import find_resumed  # a name is new only once

            old = find_resumed(paths, records, project, command)
            if old is not None:
                found = sessions.renamed(old, settings.session)
                sessions.write_record(paths, found)
                warm.forget_tickets()  # of the old name, which is free again
        if found is None:
            return _make_session(plan, {record.name for record in records})
    return _note_changes(plan, found)


def _make_session(plan: Plan, taken: set[str]) -> Record:
    settings, project = plan.settings, plan.project.path
    salt = f"{os.getpid()} {sessions.now()}" if settings.rm else ""
    name = cage.cage_name(project, settings.session, salt)
    while name in taken:
        salt += "+"
        name = cage.cage_name(project, settings.session, salt)
    sessions.refuse_foreign(plan.paths, name)
    sessions.make_private(plan.paths.home_dir(name))
    sessions.make_private(plan.paths.cage_login_dir(name))
    record = build_record(plan, name, sessions.now())
    _seed_home(plan, name)
    sessions.write_record(plan.paths, record)
    return record


def build_record(plan: Plan, name: str, created_at: float) -> Record:
    """The record of a session made from these settings."""
    spec = build_spec(plan, name)
    settings = plan.settings
    pid_file = os.path.join(plan.paths.runtime_dir, name + ".d", "init.pid")
    return Record(
        name=name,
        project=spec.project,
        session=spec.session,
        created_at=created_at,
        image=spec.image,
        runtime=spec.runtime,
        identity=spec.identity.value,
        network=spec.network.value,
        config_hash=cage.config_hash(spec),
        home=spec.home,
        run_args=run_args(spec, pid_file=pid_file, init=find_init(), owner=plan.owner),
        binds=tuple((mount.source, mount.target) for mount in spec.mounts if mount.kind == "bind"),
        fixed_env=share_env(settings.share),
        claude=settings.share.claude,
        git_identity=settings.share.git_identity,
        rm=settings.rm,
        idle_stop_s=settings.idle_stop_s,
        keep_for_s=settings.keep_for_s,
        publish=_pairs(settings.publish),
        host_ports=_pairs(settings.host_ports),
        hide=settings.hide,
    )


def build_spec(plan: Plan, name: str) -> CageSpec:
    """What the container of this plan is fixed to. Raises MountRefusedError."""
    make_caches(plan.settings.caches, plan.paths)
    home_dir = plan.paths.home_dir(name)
    mounts = build_mount_plan(
        plan.project,
        plan.settings,
        owner=plan.owner,
        paths=plan.paths,
        home_dir=home_dir,
        env=plan.env,
    )
    if plan.flags.verbose:
        for note in mounts.notes:
            sys.stderr.write(f"cagewrap: {note}\n")
    return cage.build_spec(
        name,
        plan.settings,
        plan.project.path,
        plan.owner.home,
        mounts.mounts,
        plan.paths.state_dir,
    )


def _note_changes(plan: Plan, record: Record) -> Record:
    """Write down that the settings differ from the cage's: `ls` shows it, `recreate` applies it.

    A session whose container could not be made yet takes the new settings at once. Raises
    SessionError where the cage would keep less from its agents than the settings want.
    """
    wanted = build_record(plan, record.name, record.created_at)
    if wanted.config_hash != record.config_hash and _is_unmade(plan.paths, record.name):
        sessions.make_private(plan.paths.cage_login_dir(record.name))
        sessions.write_record(plan.paths, wanted)
        return wanted
    changed = record._replace(
        wanted_args=() if wanted.config_hash == record.config_hash else wanted.run_args,
        wanted_binds=() if wanted.config_hash == record.config_hash else wanted.binds,
        wanted_hash=wanted.config_hash,
        idle_stop_s=wanted.idle_stop_s,
        keep_for_s=wanted.keep_for_s,
        publish=wanted.publish,
        host_ports=wanted.host_ports,
        claude=wanted.claude,
        wanted_image=wanted.image,
        wanted_hide=() if wanted.config_hash == record.config_hash else wanted.hide,
    )
    if changed != record:
        sessions.write_record(plan.paths, changed)
    if changed.is_outdated:
        from cagewrap.stricter import refuse_looser

        refuse_looser(changed)
        sys.stderr.write(
            f"cagewrap: the settings have changed since the cage {record.name} was made; "
            f"`cagewrap recreate {record.name}` applies them\n"
        )
    return changed


def _is_unmade(paths: Paths, name: str) -> bool:
    """Whether a session has no container, and no keeper that is making one."""
    lock = sessions.try_lock(sessions.keeper_lock(paths, name))
    if lock is None:
        return False
    os.close(lock)
    return not sessions.read_state(paths, name).container_id


def connect(paths: Paths, name: str, ahead: Ahead | None = None) -> socket.socket:
    """A connection to the keeper of a session; starts it when there is none.

    ahead: a keeper that waits for its cage.
    """
    path = paths.socket_file(name)
    connection = try_connect(path)
    if connection is not None:
        return connection
    with sessions.locked(sessions.cage_lock(paths, name)):
        connection = try_connect(path)
        if connection is not None:
            return connection
        if not os.path.exists(paths.record_file(name)):
            raise SessionError(
                f"The session {name} was removed at this moment.", "send the message again"
            )
        return _start_keeper(paths, name, ahead)


def _start_keeper(paths: Paths, name: str, ahead: Ahead | None) -> socket.socket:
    """Start a keeper on a socket made here, and return a connection to it.

    We are connected before it starts: one that fails at once still finds us waiting.
    """
    path = paths.socket_file(name)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(path)
    except OSError as error:
        raise DirectoryError(
            f"A socket cannot be made at {path}: {error.strerror or error}.",
            "export XDG_RUNTIME_DIR=/run/user/$(id -u)",
        ) from error
    os.chmod(path, 0o600)
    listener.listen(128)
    connection = try_connect(path)
    if connection is None:
        raise KeeperError(f"The socket {path} does not answer.", f"rm {path}")
    log = os.open(paths.log_file(name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        with listener, ahead or Ahead() as keeper:
            keeper.take(name, _keeper_environment(paths), listener.fileno(), log)
    finally:
        os.close(log)
    return connection


def _keeper_environment(paths: Paths) -> dict[str, str]:
    env = {
        name: value
        for name, value in os.environ.items()
        if name in _KEEPER_ENV or name.startswith(_KEEPER_ENV_PREFIXES)
    }
    return env | {
        "PATH": search_path(os.environ, _projects(paths)),
        "XDG_RUNTIME_DIR": paths.podman_runtime_dir,
        "LC_ALL": "C.UTF-8",
    }


def _projects(paths: Paths) -> set[str]:
    """Where agents write."""
    return sessions.written_by_cages(paths)


def clean_after_keeper(socket_path: bytes) -> None:
    """End what a keeper that was killed left running, if no new keeper has done so already. Where
    the session was removed at this moment, nothing runs."""
    paths = paths_from_env(dict(os.environ), os.getuid())
    name = os.path.basename(os.fsdecode(socket_path)).removesuffix(".sock")
    with contextlib.suppress(FileNotFoundError):
        _clean_after(paths, name)


def _clean_after(paths: Paths, name: str) -> None:
    with sessions.locked(sessions.cage_lock(paths, name)):
        lock = sessions.try_lock(sessions.keeper_lock(paths, name))
        for _ in range(25):  # the kernel closes a killed keeper's connections before its lock
            if lock is not None:
                break
            time.sleep(0.02)
            lock = sessions.try_lock(sessions.keeper_lock(paths, name))
        if lock is None:
            return
        try:
            kill_leftovers(sessions.read_state(paths, name))
        finally:
            os.close(lock)


def _seed_home(plan: Plan, name: str) -> None:
    """What a new private HOME starts with; its keeper does the rest."""
    home = plan.paths.home_dir(name)
    hidden = empty_file(home)
    if not os.path.exists(hidden):
        os.close(os.open(hidden, os.O_WRONLY | os.O_CREAT, 0o444))


def _policy(settings: Settings) -> list[list[bytes]]:
    """The sections of a request that say what of the environment passes, and which login."""
    policy = settings.env
    return [
        [os.fsencode(name) for name in policy.passed],
        [os.fsencode(f"{name}={value}") for name, value in policy.fixed],
        [os.fsencode(name) for name in policy.secret_names],
        [os.fsencode(f"{name}={path}") for name, path in policy.secret_files],
        [auth.pack(settings.login)],
        [os.fsencode(f"{one.name}={one.program}") for one in settings.agents],
    ]


def _pairs(forwards: tuple[PortForward, ...]) -> tuple[tuple[int, int], ...]:
    return tuple((forward.listen, forward.connect) for forward in forwards)


def _owner(env: Mapping[str, str]) -> Owner:
    import pwd

    uid = os.getuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = env.get("USER", "owner")
    groups = tuple(group for group in os.getgroups() if group != os.getgid())
    return Owner(uid=uid, gid=os.getgid(), name=name, home=env["HOME"], groups=groups)


def _show(plan: Plan) -> None:
    """`--dry-run`: print the container's command line and stop."""
    name = cage.cage_name(plan.project.path, plan.settings.session)
    record = build_record(plan, name, 0.0)
    sys.stdout.write(shlex.join(record.run_args) + "\n")
    sys.stdout.flush()
    os._exit(0)
