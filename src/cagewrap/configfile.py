"""Reading the configuration file.

Five things can come of it: the file is missing (then the defaults hold), or it cannot be read, is
not TOML, has an unknown key, or has a value that is not allowed. The last four stop the command,
because a file that is half understood protects less than its owner thinks.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from cagewrap import flags as table
from cagewrap.errors import ConfigInvalidError
from cagewrap.flags import Kind, Setting, Values, collect, shown
from cagewrap.values import BadValueError, nearest, parse_path

LOGIN = "login"
AGENTS = "agents"
_TABLES_OF_TABLES = (table.LOGIN_AGENTS.key, table.AGENTS.key)
IMAGE = "image"


class ProjectTable(NamedTuple):
    """`[project."PATH"]`: the settings of one project, or of all below `PATH/*`."""

    pattern: str
    values: Values


class ConfigFile(NamedTuple):
    """What the file at `path` says; nothing when it is not `found`."""

    path: str
    found: bool = False
    values: Values = Values()
    projects: tuple[ProjectTable, ...] = ()


def read_config(path: str, *, uid: int | None = None) -> ConfigFile:
    """Read and check the whole file, all project tables too.

    uid: the owner (default: this process's). Raises ConfigInvalidError, naming the file and the
    key, for everything but a file that does not exist.
    """
    content = _read_file(path, os.geteuid() if uid is None else uid)
    if content is None:
        return ConfigFile(path)
    import tomllib

    try:
        document = tomllib.loads(content.decode())
    except UnicodeDecodeError as error:
        raise ConfigInvalidError(
            f"{path}: byte {error.start} is not UTF-8.", f"save {path} as UTF-8"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigInvalidError(f"{path} is not TOML: {error}.", f"edit {path}") from None
    projects = document.pop("project", {})
    if not isinstance(projects, dict):
        raise invalid_key(path, "project", 'must be tables: [project."/PATH"]')
    return ConfigFile(
        path=path,
        found=True,
        values=_parse_table(path, "", document),
        projects=tuple(_parse_project(path, *one) for one in projects.items()),
    )


def _read_file(path: str, uid: int) -> bytes | None:
    """The file's bytes; None when there is none. Only owner and root may write it."""
    try:
        # O_NONBLOCK: a fifo in its place must not hold the agent up.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        if os.path.islink(path):
            raise ConfigInvalidError(
                f"{path} is a link to a file that does not exist.", f"rm {path}"
            ) from None
        return None
    except OSError as error:
        raise ConfigInvalidError(
            f"{path} cannot be read: {error.strerror}.", f"ls -l {path}"
        ) from None
    try:
        _check_file(path, uid, os.fstat(fd))
        with open(fd, "rb", closefd=False) as file:
            return file.read()
    except OSError as error:
        raise ConfigInvalidError(
            f"{path} cannot be read: {error.strerror}.", f"ls -l {path}"
        ) from None
    finally:
        os.close(fd)


def _check_file(path: str, uid: int, found: os.stat_result) -> None:
    """Refuse what is no file, or what somebody else could have written."""
    if not stat.S_ISREG(found.st_mode):
        raise ConfigInvalidError(f"{path} is not a regular file.", f"mv {path} {path}.old")
    if found.st_uid not in (0, uid):
        raise ConfigInvalidError(
            f"{path} belongs to uid {found.st_uid}, who could change what a cage may do.",
            f"sudo chown {uid} {path}",
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigInvalidError(
            f"{path} can be written by others (mode {stat.S_IMODE(found.st_mode):04o}), who "
            "could change what a cage may do.",
            f"chmod go-w {path}",
        )


def _parse_project(path: str, pattern: str, found: object) -> ProjectTable:
    where = f'[project."{pattern}"]'
    directory = pattern.removesuffix("/*") or "/"
    try:
        normal = parse_path(directory)
    except BadValueError as error:
        raise invalid_key(path, where, str(error)) from None
    if "*" in directory:
        raise invalid_key(path, where, "may have a * only as its last part: PATH/*")
    if not isinstance(found, dict):
        raise invalid_key(path, where, "must be a table")
    return ProjectTable(
        pattern=normal if directory == pattern else normal.rstrip("/") + "/*",
        values=_parse_table(path, where + ".", found),
    )


def _parse_table(path: str, prefix: str, found: Mapping[str, object]) -> Values:
    """The settings in one table of the file; `prefix` stands before each key in messages."""
    rows = {row.key: row for row in table.SETTINGS if row.in_file}
    pairs: list[tuple[Setting[object], object]] = []
    for key, value in _flat(path, prefix, found):
        row = rows.get(key)
        if row is None:
            known = [name for name in rows if name not in _TABLES_OF_TABLES]
            more = ("image.name", AGENTS, *([] if prefix else ["project"]))
            raise _unknown_key(path, prefix, key, (*known, *more))
        if prefix and row.of_machine:
            raise invalid_key(
                path, prefix + key, "all projects share the image, so it stands in [image] alone"
            )
        try:
            texts = _texts(row, value)
        except BadValueError as error:
            raise invalid_key(path, prefix + key, str(error), row=row, found=value) from None
        for text in texts:
            try:
                pairs.append((row, row.parse(text)))
            except BadValueError as error:
                raise invalid_key(path, prefix + key, str(error), row=row, found=text) from None
        if not texts:
            pairs.append((row, ()))
    return collect(pairs)


def _flat(path: str, prefix: str, found: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """The table's keys and values; `[login]` as keys of its own, `login.mode` and so on, and
    `[image]` likewise, whose `name` is what `image` is without a table."""
    for key, value in found.items():
        if key == IMAGE and isinstance(value, dict):
            for name, one in value.items():
                yield IMAGE if name == "name" else f"{IMAGE}.{name}", one
            continue
        if key not in (LOGIN, AGENTS):
            yield key, value
            continue
        if not isinstance(value, dict):
            raise invalid_key(path, prefix + key, f"must be a table: [{prefix}{key}]")
        if key == AGENTS:
            yield table.AGENTS.key, value
            continue
        agents = {name: one for name, one in value.items() if isinstance(one, dict)}
        for name, one in value.items():
            if name not in agents:
                yield f"{LOGIN}.{name}", one
        if agents:
            yield table.LOGIN_AGENTS.key, agents


def _unknown_key(path: str, prefix: str, key: str, known: tuple[str, ...]) -> ConfigInvalidError:
    for row in table.FLAGS:
        if row.key == key:
            ways = f"{row.flag} or {row.env}" if row.env else row.flag
            return ConfigInvalidError(
                f"{path}: {prefix}{key} is given by {ways}, not in the file.", f"edit {path}"
            )
    return ConfigInvalidError(
        f"{path}: {prefix}{key} is not a setting{nearest(key, known)}.",
        f"edit {path}: its keys are the flags of cagewrap --help, with _ for -",
    )


def _texts(row: Setting[object], found: object) -> list[str]:
    """A TOML value as the texts the row's flag would be given."""
    if row.kind is Kind.LIST:
        if not isinstance(found, list):
            raise BadValueError("must be a list: [ … ]")
        return [row.item(one) for one in found]
    if row.kind is Kind.TABLE:
        if not isinstance(found, dict):
            raise BadValueError(f"must be a table: [{row.key}]")
        return [row.pair(name, one) for name, one in found.items()]
    return [row.item(found)]


def invalid_key(
    path: str, key: str, reason: str, *, row: Setting[object] | None = None, found: object = None
) -> ConfigInvalidError:
    """The error for one key. What was found is shown unless it may be a secret."""
    if row is None or row.is_sensitive or isinstance(found, (dict, list)):
        value = ""
    else:
        value = " = " + (shown(found) if isinstance(found, str) else str(found))
    return ConfigInvalidError(f"{path}: {key}{value}: {reason}.", f"edit {path}")
