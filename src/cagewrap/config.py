"""The settings in force for one command: defaults < file < project table < environment < flags."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from cagewrap import flags as table
from cagewrap.configfile import ConfigFile, ProjectTable, invalid_key, read_config
from cagewrap.environment import DEFAULT_PASSED
from cagewrap.errors import ConfigInvalidError
from cagewrap.flags import FlagValues, Kind, Setting, Values, collect, shown
from cagewrap.model import (
    AgentLogin,
    AgentProgram,
    EnvPolicy,
    ImageSettings,
    Limits,
    LoginSettings,
    Mount,
    PortForward,
    Settings,
    Share,
)
from cagewrap.values import BadValueError, EnvEntry, expand_home, parse_session

__all__ = ("ConfigFile", "ProjectTable", "Resolved", "find_project_table", "read_config", "resolve")

T = TypeVar("T")


class Resolved(NamedTuple):
    """The settings in force, and for each key of the table where its value came from."""

    settings: Settings
    sources: Mapping[str, str]


class _Level(NamedTuple):
    """One step of the order of precedence. `source` names where a row's value stands."""

    values: Values
    source: Callable[[Setting[object]], str]


def resolve(
    config: ConfigFile,
    *,
    project: str,
    env: Mapping[str, str],
    flags: FlagValues,
    real_path: Callable[[str], str] = os.path.realpath,
) -> Resolved:
    """Settle every setting: defaults < file < project table < environment < flags.

    project: absolute path. env: the caller's environment, of which CAGEWRAP_*, HOME and the
    variables named in session_env are looked at. Raises ConfigInvalidError for a bad value in a
    variable, or two tables for this project.
    """
    home = env.get("HOME", "")
    levels = _levels(config, project, home, env, flags, real_path)
    sources = {row.key: _source(row, levels) for row in table.SETTINGS}
    session_env = _last(levels, table.SESSION_ENV)
    session = _last(levels, table.SESSION)
    if not session:
        session, variable = _session_from(env, session_env)
        if session:
            sources["session"] = f"{variable} (session_env)"
    sources["project"] = "--project" if flags.project else "current directory"
    share = Share(**dict(_all(levels, table.SHARE)))
    settings = Settings(
        image=_last(levels, table.IMAGE),
        runtime=_last(levels, table.RUNTIME),
        identity=_last(levels, table.USER),
        network=_last(levels, table.NETWORK),
        session=session,
        project=project,
        rm=_last(levels, table.RM),
        mounts=_merge_mounts(_all(levels, table.MOUNT), home),
        hide=_unique(tuple(expand_home(one, home) for one in _all(levels, table.HIDE))),
        env=_build_policy(levels, session_env, home),
        limits=Limits(
            memory_bytes=_last(levels, table.MEMORY),
            cpus=_last(levels, table.CPUS),
            pids=_last(levels, table.PIDS),
            shm_bytes=_last(levels, table.SHM_SIZE),
        ),
        devices=_unique(_all(levels, table.DEVICE)),
        publish=_merge_ports(_all(levels, table.PUBLISH)),
        host_ports=_merge_ports(_all(levels, table.HOST_PORT)),
        podman_args=_all(levels, table.PODMAN_ARG),
        share=share,
        session_env=session_env,
        idle_stop_s=_last(levels, table.IDLE_STOP),
        keep_for_s=_last(levels, table.KEEP_FOR),
        login=LoginSettings(
            mode=_last(levels, table.LOGIN),
            claude=expand_home(_last(levels, table.LOGIN_CLAUDE), home),
            token_command=_last(levels, table.LOGIN_TOKEN_COMMAND),
            agents=_merge_agents(_all(levels, table.LOGIN_AGENTS), home),
        ),
        agents=_merge_programs(_all(levels, table.AGENTS), home),
        workbench=ImageSettings(
            base=_last(levels, table.IMAGE_BASE),
            target=_last(levels, table.IMAGE_TARGET),
            packages=_unique(_all(levels, table.IMAGE_PACKAGES)),
            run=_all(levels, table.IMAGE_RUN),
            containerfile=expand_home(_last(levels, table.IMAGE_CONTAINERFILE), home),
            suite=_last(levels, table.IMAGE_SUITE),
            mirrors=_all(levels, table.IMAGE_MIRRORS),
            apt_options=_all(levels, table.IMAGE_APT_OPTIONS),
        ),
        caches=_unique(_all(levels, table.CACHE)),
    )
    return Resolved(settings, sources)


def _levels(
    config: ConfigFile,
    project: str,
    home: str,
    env: Mapping[str, str],
    flags: FlagValues,
    real_path: Callable[[str], str],
) -> tuple[_Level, ...]:
    """The levels above the defaults, lowest first."""
    found = [_Level(config.values, lambda _: config.path)]
    chosen = find_project_table(config, project, home, real_path)
    if chosen is not None:
        where = f'{config.path} [project."{chosen.pattern}"]'
        found.append(_Level(chosen.values, lambda _: where))
    found.append(_Level(_values_from(env), lambda row: row.env))
    found.append(_Level(flags.values, lambda row: row.flag))
    return tuple(found)


def find_project_table(
    config: ConfigFile, project: str, home: str, real_path: Callable[[str], str] = os.path.realpath
) -> ProjectTable | None:
    """The one table that applies: the project's own path, else the longest `PATH/*` above it.

    Links are followed on both sides, so that either spelling of a home behind a link works.
    """
    wanted = real_path(project)
    best: tuple[int, ProjectTable] | None = None
    for one in config.projects:
        is_tree = one.pattern.endswith("/*")
        directory = real_path(expand_home(one.pattern.removesuffix("/*") or "/", home))
        below = wanted.startswith(directory.rstrip("/") + "/")
        if not (below if is_tree else wanted == directory):
            continue
        rank = len(directory) if is_tree else len(directory) + 1
        if best is not None and best[0] == rank:
            raise invalid_key(
                config.path,
                f'[project."{one.pattern}"]',
                f'names the same directory as [project."{best[1].pattern}"]',
            )
        if best is None or rank > best[0]:
            best = rank, one
    return best[1] if best else None


def _values_from(env: Mapping[str, str]) -> Values:
    """What CAGEWRAP_… variables give; an empty one is as good as none."""
    pairs: list[tuple[Setting[object], object]] = []
    for row in table.SETTINGS:
        text = env.get(row.env, "") if row.env else ""
        if not text:
            continue
        try:
            pairs.append((row, row.parse(text)))
        except BadValueError as error:
            raise ConfigInvalidError(
                f"The variable {row.env} = {shown(text)}: {error}.", f"unset {row.env}"
            ) from None
    return collect(pairs)


def _session_from(env: Mapping[str, str], names: tuple[str, ...]) -> tuple[str, str]:
    """The first of the variables that is set and not empty: its value, and its name."""
    for name in names:
        text = env.get(name, "")
        if text:
            try:
                return parse_session(text), name
            except BadValueError as error:
                raise ConfigInvalidError(
                    f"The variable {name} = {shown(text)} names no session: it {error}.",
                    f"unset {name}, or take it out of session_env",
                ) from None
    return "", ""


def _last(levels: tuple[_Level, ...], row: Setting[T]) -> T:
    """The value of the highest level that gives one, or the default."""
    for level in reversed(levels):
        value = level.values.get(row)
        if value is not None:
            return value
    return row.default


def _all(levels: tuple[_Level, ...], row: Setting[tuple[T, ...]]) -> tuple[T, ...]:
    """The items of all levels, lowest first."""
    return tuple(item for level in levels for item in level.values.get(row) or ())


def _source(row: Setting[object], levels: tuple[_Level, ...]) -> str:
    given = [level.source(row) for level in levels if level.values.get(row) is not None]
    if row.kind in (Kind.LIST, Kind.TABLE) and not row.replaces:
        return " + ".join(given) or "default"
    return given[-1] if given else "default"


def _unique(items: tuple[T, ...]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(items))


def _merge_mounts(mounts: tuple[Mount, ...], home: str) -> tuple[Mount, ...]:
    """One mount per target: the later one holds."""
    merged: dict[str, Mount] = {}
    for one in mounts:
        target = expand_home(one.target, home)
        merged[target] = one._replace(source=expand_home(one.source, home), target=target)
    return tuple(merged.values())


def _merge_ports(ports: tuple[PortForward, ...]) -> tuple[PortForward, ...]:
    """One forward per listening port: the later one holds."""
    return tuple({one.listen: one for one in ports}.values())


def _merge_agents(agents: tuple[AgentLogin, ...], home: str) -> tuple[AgentLogin, ...]:
    """One table per agent: the later one holds, whole."""
    merged = {
        one.name: one._replace(token_file=expand_home(one.token_file, home)) for one in agents
    }
    return tuple(merged.values())


def _merge_programs(agents: tuple[AgentProgram, ...], home: str) -> tuple[AgentProgram, ...]:
    """One program per agent: the later one holds."""
    merged = {one.name: one._replace(program=expand_home(one.program, home)) for one in agents}
    return tuple(merged.values())


def _build_policy(levels: tuple[_Level, ...], session_env: tuple[str, ...], home: str) -> EnvPolicy:
    """Fold every wish about the environment; of two about one name, the later holds."""
    rows = (table.PASS_ENV, table.ENV, table.SECRET, table.SECRET_FILES)
    passed = [*DEFAULT_PASSED, *session_env]
    named: dict[str, EnvEntry] = {}
    wishes = (level.values.get(row) or () for level in levels for row in rows)
    for entry in (one for some in wishes for one in some):
        named.pop(entry.name.removeprefix("!"), None)
        if entry.kind == "pass":
            passed.append(entry.name)
        else:
            named[entry.name] = entry
    entries = tuple(named.values())
    return EnvPolicy(
        passed=tuple(passed),
        fixed=tuple((one.name, one.value) for one in entries if one.kind == "set"),
        secret_names=tuple(one.name for one in entries if one.kind == "secret"),
        secret_files=tuple(
            (one.name, expand_home(one.value, home)) for one in entries if one.kind == "secret_file"
        ),
    )
