"""What a person does with sessions: list, stop, remove, recreate, tidy up."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from cagewrap import proc, protocol, sessions
from cagewrap.errors import CagewrapError, KeeperError, SessionError
from cagewrap.keeper import cgroups
from cagewrap.keeper.container import kill_leftovers
from cagewrap.launch import connect, try_connect
from cagewrap.paths import Paths
from cagewrap.runtimes import podman
from cagewrap.runtimes.failures import explain_failure
from cagewrap.sessions import Record, State

PODMAN_S = 60.0
"""How long one podman command may take."""
STOP_S = 20.0
"""How long a keeper may take to stop its cage."""
_SHOWN_FILES = 20


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """One session as `ls` shows it.

    status: "running", "stopped" (its layer is kept), "new" (never had a container), "gone" (podman
    no longer has its container) or "unknown" (podman did not answer). messages: agents at work.
    is_outdated: settings have changed since it was made. Times in seconds since the epoch.
    """

    name: str
    session: str
    project: str
    status: str
    messages: int
    image: str
    created_at: float
    used_at: float
    is_outdated: bool
    ports: tuple[tuple[int, int], ...] = ()
    kill: str = ""


@dataclass(frozen=True, slots=True)
class Done:
    """One thing that was done, and to which session."""

    what: str
    name: str
    detail: str = ""


class Sessions:
    """The sessions of one owner, and podman."""

    def __init__(self, paths: Paths, env: Mapping[str, str]) -> None:
        """env: the owner's environment, for podman."""
        self.paths = paths
        self.env = dict(env) | {"XDG_RUNTIME_DIR": paths.podman_runtime_dir}

    # -- looking -------------------------------------------------------------------------------

    def infos(self) -> tuple[SessionInfo, ...]:
        """Every session."""
        records = sessions.list_records(self.paths)
        statuses = self.container_statuses()
        return tuple(self._info(record, statuses) for record in records)

    def container_statuses(self) -> dict[str, str] | None:
        """podman's state of each container of ours, by name; None when podman does not answer."""
        try:
            done = self._podman(podman.list_args(self.paths.state_dir))
            listed = json.loads(done.stdout or b"[]")
        except (CagewrapError, ValueError):
            return None
        return {name: str(item["State"]) for item in listed for name in item["Names"]}

    def _info(self, record: Record, statuses: dict[str, str] | None) -> SessionInfo:
        state = sessions.read_state(self.paths, record.name)
        answer = self._ask(record.name, {"do": "status"}) or {}
        return SessionInfo(
            name=record.name,
            session=record.session,
            project=record.project,
            status=_status(record, state, statuses),
            messages=int(str(answer.get("messages", 0))),
            image=record.image,
            created_at=record.created_at,
            used_at=max(state.used_at, record.created_at),
            is_outdated=record.is_outdated,
            ports=tuple((int(a), int(b)) for a, b in _ports(answer)),
            kill=str(answer.get("kill", "")),
        )

    def find(self, wanted: str, cwd: str) -> Record:
        """The session a person means; see sessions.select."""
        return sessions.select(sessions.list_records(self.paths), wanted, cwd)

    def log(self, record: Record) -> str:
        """What its keeper wrote."""
        try:
            with open(self.paths.log_file(record.name), encoding="utf-8", errors="replace") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    # -- doing ---------------------------------------------------------------------------------

    def stop(self, record: Record) -> Done:
        """End its messages and stop its container; what is installed stays."""
        answer = self._ask(record.name, {"do": "stop"}, timeout_s=STOP_S)
        if answer is not None:
            return Done("stopped", record.name)
        return self._stop_without_keeper(record)

    def _stop_without_keeper(self, record: Record) -> Done:
        state = sessions.read_state(self.paths, record.name)
        kill_leftovers(state)
        is_running = sessions.is_alive(state.init_pid, state.init_start, state.boot_id)
        if is_running:
            self._check(self._podman(podman.stop_args(record.name)), record)
        if state.cgroup:
            cgroups.remove(state.cgroup)
        self._remove_runtime_files(record.name)
        if is_running:
            return Done("stopped", record.name)
        return Done("unchanged", record.name, "it was not running")

    def remove(self, record: Record, *, force: bool) -> Done:
        """Delete a session with everything it had: container, layer, HOME, records.

        Raises SessionError while messages run, unless forced.
        """
        answer = self._ask(record.name, {"do": "status"}) or {}
        running = int(str(answer.get("messages", 0)))
        if running and not force:
            raise SessionError(
                f"{record.name} has {running} agent(s) at work.",
                f"cagewrap rm --force {record.name}",
            )
        self.stop(record)
        with sessions.locked(sessions.registry_lock(self.paths)):
            self._remove_container(record.name)
            if record.layer_image:
                self._podman(podman.remove_image_args(record.layer_image))
            self._remove_directory(record.name)
        return Done("removed", record.name)

    def recreate(self, record: Record, *, fresh: bool) -> Done:
        """Make its container anew with the settings of now; HOME is kept, and so is what was
        installed, unless `fresh` or another image is wanted."""
        self.stop(record)
        keeps = not fresh and record.wanted_image in ("", record.image)
        layer = f"localhost/cagewrap-session:{record.name}" if keeps else ""
        has_container = bool(sessions.read_state(self.paths, record.name).container_id)
        if keeps and has_container:
            self._check(self._podman(podman.commit_args(record.name, layer)), record)
        elif keeps:
            layer = record.layer_image
        self._remove_container(record.name)
        args = record.wanted_args or record.run_args
        image = layer or record.wanted_image or record.image
        changed = replace(
            record,
            run_args=(*args[:-1], image),
            image=record.wanted_image or record.image,
            config_hash=record.wanted_hash or record.config_hash,
            wanted_args=(),
            wanted_hash="",
            layer_image=layer,
        )
        sessions.write_record(self.paths, changed)
        sessions.write_state(self.paths, record.name, State())
        if record.layer_image and not layer:
            self._podman(podman.remove_image_args(record.layer_image))
        return Done("recreated", record.name, "what was installed is kept" if layer else "")

    def open_port(self, record: Record, host: int, cage: int) -> Done:
        """Make a port of the cage's loopback reachable on the host's. Starts the cage."""
        connection = connect(self.paths, record.name)
        _exchange(connection, {"do": "port", "host": host, "cage": cage}, STOP_S)
        return Done("published", record.name, f"http://127.0.0.1:{host} -> cage port {cage}")

    def collect(self, *, dry_run: bool) -> tuple[Done, ...]:
        """Remove sessions whose project is gone or that were not used for `keep_for`, containers
        and directories without a session, and what killed keepers left."""
        records = sessions.list_records(self.paths)
        done: list[Done] = []
        for record in records:
            reason = self._why_collect(record)
            if reason:
                done.append(Done("removed", record.name, reason))
                if not dry_run:
                    self.remove(record, force=True)
            elif not dry_run:
                self._clean_dead_keeper(record)
        known = {record.name for record in records}
        done += self._collect_strays(known, dry_run=dry_run)
        return tuple(done)

    def _why_collect(self, record: Record) -> str:
        if try_connect(self.paths.socket_file(record.name)):
            return ""
        state = sessions.read_state(self.paths, record.name)
        unused_s = sessions.now() - max(state.used_at, record.created_at)
        if record.rm:
            return "it was for one command"
        if not os.path.isdir(record.project) and os.path.isdir(os.path.dirname(record.project)):
            return f"its project {record.project} is gone"
        if unused_s > record.keep_for_s:
            return f"not used for {unused_s / 86400:.0f} days"
        return ""

    def _clean_dead_keeper(self, record: Record) -> None:
        lock = sessions.try_lock(sessions.keeper_lock(self.paths, record.name))
        if lock is None:
            return
        try:
            kill_leftovers(sessions.read_state(self.paths, record.name))
        finally:
            os.close(lock)

    def _collect_strays(self, known: set[str], *, dry_run: bool) -> list[Done]:
        done: list[Done] = []
        for name in self.container_statuses() or {}:
            if name not in known:
                done.append(Done("removed", name, "a container without a session"))
                if not dry_run:
                    self._remove_container(name)
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self.paths.cages_dir):
                if sessions.is_stray(self.paths, name):
                    done.append(Done("removed", name, "a directory without a session"))
                    if not dry_run:
                        self._remove_directory(name)
        return done

    def _remove_container(self, name: str) -> None:
        done = self._podman(podman.remove_args(name))
        if done.returncode and not podman.says_missing(done.stderr):
            raise explain_failure(done.argv, done.returncode, done.stderr)

    def _remove_directory(self, name: str) -> None:
        """Delete what is kept on the host; files of in-cage users need podman's namespace."""
        path = self.paths.cage_dir(name)
        shutil.rmtree(path, ignore_errors=True)
        if os.path.lexists(path):
            done = self._podman(("podman", "unshare", "rm", "-rf", "--", path))
            if done.returncode or os.path.lexists(path):
                raise SessionError(
                    f"{path} cannot be deleted: {done.stderr.strip()[-200:]}",
                    f"podman unshare rm -rf {path}",
                )
        self._remove_runtime_files(name)

    def _remove_runtime_files(self, name: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self.paths.socket_file(name))
        shutil.rmtree(os.path.join(self.paths.runtime_dir, name + ".d"), ignore_errors=True)

    # -- files of in-cage users ----------------------------------------------------------------

    def foreign_files(self, directory: str) -> tuple[str, ...]:
        """Paths below a directory that belong to a user of a cage other than its root."""
        uid = os.getuid()
        found: list[str] = []
        for parent, directories, files in os.walk(directory):
            for entry in (*directories, *files):
                path = os.path.join(parent, entry)
                with contextlib.suppress(OSError):
                    if os.lstat(path).st_uid not in (uid, 0):
                        found.append(path)
        return tuple(found)

    def take_back(self, directory: str) -> Done:
        """Make such files the owner's."""
        foreign = self.foreign_files(directory)
        for at in range(0, len(foreign), 500):
            batch = foreign[at : at + 500]
            done = self._podman(("podman", "unshare", "chown", "-h", "0:0", "--", *batch))
            if done.returncode:
                raise SessionError(
                    f"Some files could not be taken back: {done.stderr.strip()[-200:]}",
                    f"podman unshare chown -R 0:0 {directory}",
                )
        return Done("taken back", directory, f"{len(foreign)} file(s)")

    # -- podman and keepers --------------------------------------------------------------------

    def _podman(self, argv: Sequence[str]) -> proc.Outcome:
        return proc.capture(argv, timeout_s=PODMAN_S, env=self.env)

    def _check(self, done: proc.Outcome, record: Record) -> None:
        if done.returncode:
            raise explain_failure(done.argv, done.returncode, done.stderr, image=record.image)

    def _ask(
        self, name: str, command: Mapping[str, object], timeout_s: float = 5.0
    ) -> Mapping[str, object] | None:
        """A keeper's answer, or None when no keeper runs."""
        connection = try_connect(self.paths.socket_file(name))
        if connection is None:
            return None
        return _exchange(connection, command, timeout_s)


def _exchange(
    connection: socket.socket, command: Mapping[str, object], timeout_s: float
) -> Mapping[str, object]:
    """Send one command to a keeper and wait for its answer."""
    with connection:
        connection.settimeout(timeout_s)
        try:
            connection.send(protocol.COMMAND + json.dumps(command).encode())
            packet = connection.recv(protocol.PACKET_BYTES)
        except OSError as error:
            raise KeeperError(
                f"The cage's keeper does not answer: {error}.", "cagewrap gc"
            ) from error
    if packet[:1] == protocol.ERROR:
        raise _keeper_error(packet[1:])
    return json.loads(packet[1:]) if packet[:1] == protocol.REPLY else {}


def _keeper_error(text: bytes) -> CagewrapError:
    code, message, hint = (part.decode(errors="replace") for part in text.split(b"\0"))
    error = CagewrapError(message, hint)
    error.exit_code = int(code)
    return error


def _ports(answer: Mapping[str, object]) -> list[list[int]]:
    found = answer.get("ports")
    return found if isinstance(found, list) else []


def _status(record: Record, state: State, statuses: dict[str, str] | None) -> str:
    if not state.container_id:
        return "new"
    if statuses is None:
        return "unknown"
    if record.name not in statuses:
        return "gone"
    is_running = sessions.is_alive(state.init_pid, state.init_start, state.boot_id)
    return "running" if is_running else "stopped"


def run_on(
    records: Sequence[Record], action: Callable[[Record], Done]
) -> tuple[tuple[Done, ...], CagewrapError | None]:
    """Do something to each session; the first failure is returned after the rest was done."""
    done: list[Done] = []
    failure: CagewrapError | None = None
    for record in records:
        try:
            done.append(action(record))
        except CagewrapError as error:
            failure = failure or error
    return tuple(done), failure
