"""Sessions and what is written down about them.

A session has a directory below `$XDG_STATE_HOME/cagewrap/cages`, named as its container:
`record.json` (what it is; written when it is made, renamed or recreated), `state.json` (what its
keeper last knew; written by the keeper alone), `home/` (its private HOME) and `keeper.log`.
Locks are files in the same directory tree, taken with flock: `registry.lock` for choosing or making
a session, `NAME/lock` for starting and stopping its keeper, `NAME/keeper.lock` held by a living
keeper.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from cagewrap.diskspace import full_disks, is_full, lacks_files
from cagewrap.errors import CagewrapError, DirectoryError, SessionError, StorageError
from cagewrap.mountargs import writable_sources
from cagewrap.paths import Paths

_Value = TypeVar("_Value", "Record", "State")
FORMAT = 1
"""Of records and states. Older and younger versions of cagewrap read and write them too: a field
keeps its meaning for ever, a new one has a default, and one that is not known here stays where it
is. A record that others must not touch would have another format; they leave it alone then."""


class Record(NamedTuple):
    """What a session is. Times are seconds since the epoch; `run_args` makes its container.

    binds: (source, target) of what it mounts, each source a real path; looked at before every
    start, and at what was mounted after it.

    wanted_*: what the settings of the last command would make instead; empty when the same.
    layer_image: the image `recreate` made of what was installed, "" when there is none.
    claude: whether it shares Claude's conversations and settings with the host.
    git_identity: whether a new HOME says who the owner is to git.
    publish, host_ports: pairs (port listened on, port dialled).
    hide: the patterns of what is hidden.
    """

    name: str
    project: str
    session: str
    created_at: float
    image: str
    runtime: str
    identity: str
    network: str
    config_hash: str
    home: str
    run_args: tuple[str, ...]
    binds: tuple[tuple[str, str], ...] = ()
    fixed_env: tuple[tuple[str, str], ...] = ()
    rm: bool = False
    idle_stop_s: float = 1800.0
    keep_for_s: float = 30 * 86400.0
    claude: bool = True
    git_identity: bool = True
    publish: tuple[tuple[int, int], ...] = ()
    host_ports: tuple[tuple[int, int], ...] = ()
    wanted_hash: str = ""
    wanted_args: tuple[str, ...] = ()
    wanted_binds: tuple[tuple[str, str], ...] = ()
    wanted_image: str = ""
    layer_image: str = ""
    hide: tuple[str, ...] = ()
    wanted_hide: tuple[str, ...] = ()
    format: int = FORMAT

    @property
    def is_outdated(self) -> bool:
        """Whether the settings have changed since its container was made."""
        return bool(self.wanted_args)


class State(NamedTuple):
    """What a session's keeper last knew.

    container_id: "" when it never had a container. *_start: field 22 of /proc/PID/stat (clock
    ticks since boot), which with boot_id tells a process from a later one of the same pid.
    cgroup: the directory whose children m1, m2 … hold messages; "" without usable cgroups.
    used_at: seconds since the epoch of the last message's start or end.
    bundle: the container's directory in podman's storage; gone when podman removes it.
    """

    container_id: str = ""
    boot_id: str = ""
    keeper_pid: int = 0
    keeper_start: int = 0
    init_pid: int = 0
    init_start: int = 0
    cgroup: str = ""
    used_at: float = 0.0
    bundle: str = ""
    format: int = FORMAT


def read_record(paths: Paths, name: str) -> Record | None:
    """The record of a session, or None when there is none. Raises SessionError when unreadable."""
    return _read(paths.record_file(name), Record)


def write_record(paths: Paths, record: Record) -> None:
    """Write a session's record, whole or not at all. What another version wrote down there, and
    is not known here, is kept."""
    path = paths.record_file(record.name)
    before = read_object(path)
    unknown = {key: item for key, item in before.items() if key not in Record._fields}
    write_json(path, unknown | record._asdict())
    os.utime(paths.cages_dir)  # see WrittenByCages: it may have other mounts


def read_state(paths: Paths, name: str) -> State:
    """What the keeper last knew; an empty State when nothing was written or it cannot be read."""
    try:
        return _read(_state_file(paths, name), State) or State()
    except SessionError:
        return State()


def write_state(paths: Paths, name: str, state: State) -> None:
    """Write what the keeper knows, whole or not at all."""
    write_json(_state_file(paths, name), state._asdict())


def list_records(paths: Paths) -> list[Record]:
    """Every session, oldest first. A record that cannot be read is left out."""
    return read_records(paths)[0]


def read_records(paths: Paths) -> tuple[list[Record], list[SessionError]]:
    """Every session, oldest first; and why those could not be read that could not."""
    try:
        names = os.listdir(paths.cages_dir)
    except FileNotFoundError:
        return [], []
    found: list[Record] = []
    errors: list[SessionError] = []
    for name in names:
        try:
            record = read_record(paths, name)
        except SessionError as error:
            errors.append(error)
            continue
        if record is not None:
            found.append(record)
    return sorted(found, key=lambda record: record.created_at), errors


def written_by_cages(paths: Paths) -> set[str]:
    """What of the host a cage can write to: every session's project and writable mounts."""
    return written_by(list_records(paths))


def written_by(records: Iterable[Record]) -> set[str]:
    """The same of these sessions."""
    found: set[str] = set()
    for record in records:
        found |= {record.project, *writable_sources(record.run_args)}
    return found


class WrittenByCages:
    """`written_by_cages`, read again when a session was made, changed or removed since."""

    def __init__(self, paths: Paths) -> None:
        """Reads nothing yet."""
        self._paths = paths
        self._at = -1
        self._found: set[str] = set()

    def __call__(self) -> set[str]:
        """What holds now."""
        at = os.stat(self._paths.cages_dir).st_mtime_ns
        if at != self._at:
            is_whole = not list_strays(self._paths)  # one may be getting its record now
            self._found, self._at = written_by_cages(self._paths), at if is_whole else -1
        return self._found


def is_stray(paths: Paths, name: str) -> bool:
    """Whether a session's directory has no record (it was being made, or removed, and killed)."""
    path = paths.cage_dir(name)
    return os.path.isdir(path) and not os.path.exists(paths.record_file(name))


def list_strays(paths: Paths) -> list[str]:
    """The directories among the sessions' that have no record."""
    try:
        return [name for name in sorted(os.listdir(paths.cages_dir)) if is_stray(paths, name)]
    except FileNotFoundError:
        return []


def find_record(records: list[Record], project: str, session: str) -> Record | None:
    """The session of that project and name; `--rm` cages belong to their command alone."""
    for record in records:
        if (record.project, record.session) == (project, session) and not record.rm:
            return record
    return None


def select(records: list[Record], wanted: str, cwd: str) -> Record:
    """The session a person means: a session name, a container name, "" or "." for this directory.

    Raises SessionError when there is none, or more than one.
    """
    is_named = wanted not in ("", ".")
    if is_named:
        found = [r for r in records if wanted in (r.name, r.session)]
        here = [r for r in found if _is_below(cwd, r.project)]
        found = here if len(found) > 1 and here else found
    else:
        below = [r for r in records if _is_below(cwd, r.project)]
        nearest = max((len(r.project) for r in below), default=0)
        found = [r for r in below if len(r.project) == nearest]
    if len(found) == 1:
        return found[0]
    what = repr(wanted) if is_named else f"the directory {cwd}"
    if not found:
        raise SessionError(f"There is no session for {what}.", "cagewrap ls")
    names = ", ".join(record.name for record in found)
    raise SessionError(f"More than one session fits {what}: {names}.", f"name one: {found[0].name}")


@contextmanager
def locked(path: str) -> Iterator[None]:
    """Hold a lock file for the body. The descriptor is not inherited by children."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def try_lock(path: str) -> int | None:
    """Take a lock file without waiting: its descriptor, to be kept, or None when it is held."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def registry_lock(paths: Paths) -> str:
    """The lock for choosing or making a session."""
    return os.path.join(paths.state_dir, "registry.lock")


def cage_lock(paths: Paths, name: str) -> str:
    """The lock for starting and stopping a session's keeper."""
    return os.path.join(paths.cage_dir(name), "lock")


def keeper_lock(paths: Paths, name: str) -> str:
    """The lock a living keeper holds."""
    return os.path.join(paths.cage_dir(name), "keeper.lock")


def explain_os_error(error: OSError, *directories: str) -> CagewrapError:
    """What it means when a file of ours cannot be read or written. directories: where it may lie,
    if the error does not say."""
    path = error.filename if isinstance(error.filename, str) else "the state directory"
    if is_full(error):
        where = path if isinstance(error.filename, str) else full_disks(directories) or path
        there = next(iter(directories), "") or os.path.dirname(path) or "."
        if lacks_files(there):
            return StorageError(
                f"No space is left to write {where}: its disk has space, and too many files "
                "(no inodes are left).",
                f"df -i {shlex.quote(there)}",
            )
        return StorageError(f"No space is left to write {where}.", f"df -h {shlex.quote(there)}")
    return DirectoryError(f"{path} cannot be used: {error.strerror}.", "cagewrap doctor")


def make_directories(paths: Paths) -> None:
    """Create the state and runtime directories, for the owner alone.

    Raises DirectoryError for one that another user can write to, and so plant a session in.
    """
    directories = (paths.state_dir, paths.cages_dir, paths.runtime_dir)
    try:
        for directory in directories:
            make_private(directory)
        for directory in directories:
            _refuse_unsafe(directory)
    except OSError as error:
        raise explain_os_error(error) from error


def make_private(directory: str) -> None:
    """Create a directory and what is missing above it, whatever the umask leaves open."""
    missing = []
    while not os.path.lexists(directory):
        missing.append(directory)
        directory = os.path.dirname(directory)
    for path in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)


def _refuse_unsafe(directory: str) -> None:
    found = os.lstat(directory)
    if not stat.S_ISDIR(found.st_mode):
        raise DirectoryError(
            f"{directory} is not a directory itself.", f"rm {shlex.quote(directory)}"
        )
    if found.st_uid != os.getuid():
        raise DirectoryError(
            f"{directory} belongs to uid {found.st_uid}, who could have cagewrap run anything.",
            f"sudo chown {os.getuid()} {shlex.quote(directory)} && chmod 700 "
            f"{shlex.quote(directory)}",
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise DirectoryError(
            f"{directory} can be written by other users of this machine, who could have cagewrap "
            "run anything.",
            f"chmod 700 {shlex.quote(directory)}",
        )


def boot_id() -> str:
    """The kernel's id of this boot."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def start_time(pid: int) -> int:
    """When a process started, in clock ticks since boot; 0 when it is not there or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            after_name = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0
    return 0 if after_name[0] in (b"Z", b"X") else int(after_name[19])


def is_alive(pid: int, started: int, boot: str) -> bool:
    """Whether the process written down is the one that runs now."""
    return pid > 0 and boot == boot_id() and started != 0 and start_time(pid) == started


def renamed(record: Record, session: str) -> Record:
    """The same session under a new name; its container and HOME stay."""
    return record._replace(session=session)


def now() -> float:
    """Seconds since the epoch."""
    return time.time()


def write_json(path: str, value: dict[str, Any]) -> None:
    """Write a JSON file so that a reader sees the old content or the new, never half."""
    temporary = f"{path}.{os.getpid()}"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(value, file, indent=1)
        os.replace(temporary, path)
    except OSError as error:
        error.filename = error.filename or path
        raise explain_os_error(error) from error


def _read(path: str, kind: type[_Value]) -> _Value | None:
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise SessionError(f"{path} cannot be read: {error}.", f"rm {shlex.quote(path)}") from error
    if kind is Record:
        _refuse_foreign(path, value)
    try:
        return kind(**{key: _frozen(item) for key, item in value.items() if key in kind._fields})
    except (AttributeError, TypeError) as error:
        raise SessionError(f"{path} cannot be read: {error}.", f"rm {shlex.quote(path)}") from error


def refuse_foreign(paths: Paths, name: str) -> None:
    """Raise SessionError when there is a session of that name that another version made, and that
    this one does not understand."""
    path = paths.record_file(name)
    _refuse_foreign(path, read_object(path) or {"format": FORMAT})


def _refuse_foreign(path: str, value: object) -> None:
    found = value.get("format") if isinstance(value, dict) else None
    if found != FORMAT:
        raise SessionError(
            f"{path} was written by another version of cagewrap, and this one leaves its session "
            f"alone (its format is {found!r}, this one's {FORMAT}).",
            "use that version, or another session: cagewrap --session NAME -- …",
        )


def read_object(path: str) -> dict[str, Any]:
    """What is in a file; nothing if it cannot be read."""
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _frozen(value: Any) -> Any:  # noqa: ANN401 - JSON's own shape
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


def _state_file(paths: Paths, name: str) -> str:
    return os.path.join(paths.cage_dir(name), "state.json")


def conversations_file(paths: Paths, name: str, agent: str = "Claude") -> str:
    """What a keeper writes down about an agent's conversations in its cage."""
    return os.path.join(paths.cage_dir(name), f"conversations-{agent.lower()}.json")


def _is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")
