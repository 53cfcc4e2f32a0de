"""What a person does with sessions: list, stop, remove, recreate, tidy up."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from cagewrap import control, foreign, proc, review, sessions
from cagewrap.builds import own_build
from cagewrap.childenv import search_path
from cagewrap.egress.counts import Count, read_counts
from cagewrap.errors import CagewrapError, InternalError, KeeperError, SessionError
from cagewrap.holding import places
from cagewrap.keeper import cgroups
from cagewrap.keeper.leftovers import kill_leftovers
from cagewrap.model import NetworkMode
from cagewrap.paths import Paths
from cagewrap.runtimes import podman
from cagewrap.sessions import Record, State
from cagewrap.stricter import is_without_network

_OWN_BUILD = own_build().text
PODMAN_S = 60.0
"""How long one podman command may take."""
STOP_S = 20.0
"""How long a keeper may take to stop its cage."""
TREE_S = 900.0
"""How long podman may take with a whole tree of files, or an image."""
_STOP_TRIES = 3
_CAGE_NAME = re.compile(r"cagewrap-[a-z0-9-]+-[0-9a-f]{8}")


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """One session as `ls` shows it.

    status: "running", "stopped" (its layer is kept), "new" (never had a container), "gone" (podman
    no longer has its container), "unknown" (podman did not answer) or "unresponsive" (its keeper
    did not answer: `stop` ends it). messages: agents at work.
    is_outdated: settings have changed since it was made. Times in seconds since the epoch.
    held: how many changes are held back, see `cagewrap review`. requests: by login, what its
    broker has counted. keeper: the version of cagewrap that its keeper runs, "" without a keeper.
    is_keeper_other: whether that is another build than this one.
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
    held: int = 0
    requests: Mapping[str, Count] = field(default_factory=dict)
    keeper: str = ""
    is_keeper_other: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """One thing that was done, and to which session."""

    what: str
    name: str
    detail: str = ""


class Sessions:
    """The sessions of one owner, and podman."""

    def __init__(self, paths: Paths, env: Mapping[str, str]) -> None:
        """env: the owner's environment, for podman.

        unreadable: why records could not be read that could not.
        """
        self.paths = paths
        self._records, self.unreadable = sessions.read_records(paths)
        projects = sessions.written_by(self._records)
        self.env = dict(env) | {
            "PATH": search_path(env, projects),
            "XDG_RUNTIME_DIR": paths.podman_runtime_dir,
        }

    # -- looking -------------------------------------------------------------------------------

    def infos(self) -> tuple[SessionInfo, ...]:
        """Every session that was there at first."""
        records = self._records
        states = {record.name: sessions.read_state(self.paths, record.name) for record in records}
        # podman is asked only where its storage cannot be looked at: it takes as long as all else.
        is_asked = any(state.container_id and not state.bundle for state in states.values())
        statuses = self.container_statuses() if is_asked else {}
        answers, silent = control.ask_all(self.paths, list(states), {"do": "status"})
        return tuple(
            _info(
                record,
                states[record.name],
                answers.get(record.name, {}),
                "unresponsive"
                if record.name in silent
                else _status(record, states[record.name], statuses),
                review.count(self.paths, record),
                self.paths.cage_dir(record.name),
            )
            for record in records
        )

    def container_statuses(self) -> dict[str, str] | None:
        """podman's state of each container of ours, by name; None when podman does not answer."""
        listed = self._containers()
        if listed is None:
            return None
        return {name: str(item["State"]) for item in listed for name in item["Names"]}

    def _containers(self) -> list[dict[str, Any]] | None:
        """What podman lists with our labels; None when it does not answer."""
        try:
            done = self.podman(podman.list_args(self.paths.state_dir))
            listed = json.loads(done.stdout or b"[]") if done.returncode == 0 else None
        except (CagewrapError, ValueError):
            return None
        return listed if isinstance(listed, list) else None

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
        """End its messages and stop its container; what is installed stays.

        A keeper that does not answer is killed.
        """
        with self.at_rest(record) as done:
            return done

    @contextmanager
    def at_rest(self, record: Record) -> Iterator[Done]:
        """A session that is stopped, and that nobody starts meanwhile."""
        has_stopped = False
        for _ in range(_STOP_TRIES):
            has_stopped |= self._stop_keeper(record.name)
            with control.alone(self.paths, record.name) as is_alone:
                if is_alone:
                    has_stopped |= self._stop_container(record, is_begun=has_stopped)
                    detail = "" if has_stopped else "it was not running"
                    yield Done("stopped" if has_stopped else "unchanged", record.name, detail)
                    return
        raise KeeperError(
            f"{record.name} is started again whenever it stops: messages keep coming.",
            "stop the harness that sends them, then try again",
        )

    def _stop_keeper(self, name: str) -> bool:
        """Let the keeper stop its cage, or kill it; whether there was one.

        One that is well says how it is at once; only then stopping is worth waiting for.
        """
        try:
            return (
                control.ask(self.paths, name, {"do": "status"}) is not None
                and control.ask(self.paths, name, {"do": "stop"}, STOP_S) is not None
            )
        except CagewrapError:
            return control.kill_keeper(self.paths, name)

    def _stop_container(self, record: Record, *, is_begun: bool) -> bool:
        """Stop what no keeper stops; whether it ran.

        is_begun: a keeper that was killed may have begun to start what it did not write down.
        """
        state = sessions.read_state(self.paths, record.name)
        kill_leftovers(state)
        is_running = sessions.is_alive(state.init_pid, state.init_start, state.boot_id)
        if is_running or (is_begun and self._is_begun(record.name)):
            self._check(self.podman(podman.stop_args(record.name)), record)
        if state.cgroup:
            cgroups.remove(state.cgroup)
        self._remove_runtime_files(record.name)
        places.clear_after(self.paths, record.name, record.project)
        return is_running

    def _is_begun(self, name: str) -> bool:
        return (self.container_statuses() or {}).get(name) == "running"

    def remove(self, record: Record, *, force: bool) -> Done:
        """Delete a session with everything it had: container, layer, HOME, records.

        Raises SessionError while messages run, and when commits of an agent's would be lost,
        unless forced.
        """
        from cagewrap import gitcarry  # not for those who only list

        if not force:
            self.refuse_at_work(record, f"cagewrap rm --force {record.name}")
        with self.at_rest(record):
            self._remove_container(record.name)
            why = gitcarry.carry_last(self.paths, record)
            if why and not force:
                raise SessionError(
                    f"What {record.name} did in git is not all in {record.project} yet: {why}.",
                    f"cagewrap rm --force {record.name} deletes it",
                )
            if record.layer_image:
                self.podman(podman.remove_image_args(record.layer_image))
            self._remove_directory(record.name)
        places.forget(self.paths, record.project)
        return Done("removed", record.name)

    def refuse_at_work(self, record: Record, hint: str) -> None:
        """Raise SessionError while messages of a session run. hint: what ends them."""
        try:
            answer = control.ask(self.paths, record.name, {"do": "status"}) or {}
        except CagewrapError as error:
            raise SessionError(
                f"{error.message} An agent may be at work.",
                hint,
            ) from error
        running = int(str(answer.get("messages", 0)))
        if running:
            raise SessionError(
                f"{record.name} has {running} agent(s) at work.",
                hint,
            )

    def recreate(self, record: Record, *, fresh: bool) -> Done:
        """Make its container anew with the settings of now; HOME is kept, and so is what was
        installed, unless `fresh` or another image is wanted."""
        with self.at_rest(record):
            return self._recreate(record, fresh=fresh)

    def _recreate(self, record: Record, *, fresh: bool) -> Done:
        keeps = not fresh and record.wanted_image in ("", record.image)
        layer = f"localhost/cagewrap-session:{record.name}" if keeps else ""
        has_container = bool(sessions.read_state(self.paths, record.name).container_id)
        if keeps and has_container:
            self._keep_layer(record, layer)
        elif keeps:
            layer = record.layer_image
        before = self.image_of(record) if has_container and record.layer_image else ""
        self._remove_container(record.name)
        if before:
            self.podman(podman.remove_image_args(before))  # fails if it is still the layer's image
        sessions.make_private(self.paths.cage_login_dir(record.name))
        args = record.wanted_args or record.run_args
        network = NetworkMode.NONE if is_without_network(args) else NetworkMode.OPEN
        image = layer or record.wanted_image or record.image
        changed = record._replace(
            run_args=(*args[:-1], image),
            image=record.wanted_image or record.image,
            network=network.value,
            binds=record.wanted_binds if record.wanted_args else record.binds,
            hide=record.wanted_hide if record.wanted_args else record.hide,
            config_hash=record.wanted_hash or record.config_hash,
            wanted_args=(),
            wanted_binds=(),
            wanted_hash="",
            wanted_hide=(),
            layer_image=layer,
        )
        sessions.write_record(self.paths, changed)
        sessions.write_state(self.paths, record.name, State())
        if record.layer_image and not layer:
            self.podman(podman.remove_image_args(record.layer_image))
        return Done("recreated", record.name, "what was installed is kept" if layer else "")

    def _keep_layer(self, record: Record, name: str) -> None:
        """Make an image of what is installed: one layer, however often that is done."""
        from cagewrap import squash  # not for those who only list

        below = squash.find_base(self.podman, self.image_of(record))
        labels = {podman.BASE_LABEL: below.id, podman.LAYERS_LABEL: str(len(below.layers))}
        self.commit(record, name, labels)
        if squash.count_layers(self.podman, name) > len(below.layers) + 1:
            old = self.podman(podman.image_id_args(name)).stdout.decode().strip()
            squash.flatten(self.podman, name, below, name, labels)
            self.podman(podman.remove_image_args(old))

    def commit(self, record: Record, name: str, labels: Mapping[str, str]) -> None:
        """Make an image of a stopped session's container as it is."""
        argv = podman.commit_args(record.name, name, labels)
        self._check(self.podman(argv, timeout_s=TREE_S), record)

    def image_of(self, record: Record) -> str:
        """The id of the image that a session's container was made from."""
        done = self.podman(podman.image_args(record.name))
        self._check(done, record)
        return done.stdout.decode().strip()

    def open_port(self, record: Record, host: int, cage: int) -> Done:
        """Make a port of the cage's loopback reachable on the host's. Starts the cage."""
        from cagewrap.launch import connect

        connection = connect(self.paths, record.name)
        command = {"do": "port", "host": host, "cage": cage}
        control.exchange(connection, record.name, command, STOP_S)
        return Done("published", record.name, f"http://127.0.0.1:{host} -> cage port {cage}")

    def collect(self, *, dry_run: bool) -> tuple[tuple[Done, ...], CagewrapError | None]:
        """Remove sessions whose project is gone or that were not used for `keep_for`, containers
        and directories without a session, and what killed keepers left.

        Second: the first failure; the rest was done.
        """
        records = sessions.list_records(self.paths)
        reasons = {record.name: self._why_collect(record) for record in records}

        def collect_one(record: Record) -> Done:
            if not dry_run:
                self.remove(record, force=False)
            return Done("removed", record.name, reasons[record.name])

        done, failure = run_on([r for r in records if reasons[r.name]], collect_one)
        if not dry_run:
            for record in records:
                self._clean_dead_keeper(record)
            places.forget_strays(self.paths)
        strays, stray_failure = self._collect_strays(dry_run=dry_run)
        return (*done, *strays), failure or stray_failure

    def _why_collect(self, record: Record) -> str:
        if control.is_listening(self.paths, record.name):
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
        try:
            lock = sessions.try_lock(sessions.keeper_lock(self.paths, record.name))
        except FileNotFoundError:
            return  # removed
        if lock is None:
            return
        try:
            kill_leftovers(sessions.read_state(self.paths, record.name))
        finally:
            os.close(lock)

    def _collect_strays(self, *, dry_run: bool) -> tuple[tuple[Done, ...], CagewrapError | None]:
        def container(name: str) -> Done:
            if not dry_run:
                self._remove_container(name)
            return Done("removed", name, "a container without a session")

        def directory(name: str) -> Done:
            if not dry_run:
                self._remove_directory(name, only_stray=True)
            return Done("removed", name, "a directory without a session")

        containers, failure = _run_on_names(self._stray_containers(), container)
        directories, other = _run_on_names(sessions.list_strays(self.paths), directory)
        return (*containers, *directories), failure or other

    def _stray_containers(self) -> list[str]:
        """Containers that were made for a session of ours which is gone."""
        names = [name for item in self._containers() or () if (name := _name_if_ours(item))]
        # Looked at after podman was asked: a session is written down before its container is made.
        return [name for name in names if not os.path.lexists(self.paths.record_file(name))]

    def _remove_container(self, name: str) -> None:
        done = self.podman(podman.remove_args(name))
        if done.returncode and not podman.says_missing(done.stderr):
            raise _explained(done)

    def _remove_directory(self, name: str, *, only_stray: bool = False) -> None:
        """Delete what is kept on the host.

        An agent wrote some of it, as users that only podman's namespace may delete for, and as
        deep as it liked: `rm` follows nothing and has no limit. The name is free at once.
        """
        path = f"{self.paths.cage_dir(name)}.removed-{os.getpid()}"
        with sessions.locked(sessions.registry_lock(self.paths)):
            if only_stray and not sessions.is_stray(self.paths, name):
                return  # it was being made, and is a session now
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.paths.record_file(name))
            try:
                os.rename(self.paths.cage_dir(name), path)
            except FileNotFoundError:
                return
        done = self.podman(foreign.remove_args(path), timeout_s=TREE_S)
        if os.path.lexists(path):
            raise SessionError(
                f"{path} cannot be deleted: {done.stderr.strip()[-200:]}",
                shlex.join(foreign.remove_args(path)),
            )
        self._remove_runtime_files(name)

    def _remove_runtime_files(self, name: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self.paths.socket_file(name))
        shutil.rmtree(os.path.join(self.paths.runtime_dir, name + ".d"), ignore_errors=True)

    # -- files of in-cage users ----------------------------------------------------------------

    def foreign_files(self, directory: str) -> tuple[str, ...]:
        """Paths below a directory that belong to a user of a cage other than its root."""
        done = self.podman(foreign.find_args(directory), timeout_s=TREE_S)
        return foreign.parse(done.stdout)

    def take_back(self, directory: str) -> Done:
        """Make such files the owner's."""
        done = self.podman(foreign.take_back_args(directory), timeout_s=TREE_S)
        if done.returncode:
            raise SessionError(
                f"Some files could not be taken back: {done.stderr.strip()[-200:]}",
                shlex.join(foreign.take_back_args(directory)),
            )
        return Done("taken back", directory, f"{len(foreign.parse(done.stdout))} file(s)")

    # -- podman --------------------------------------------------------------------------------

    def podman(self, argv: Sequence[str], timeout_s: float = PODMAN_S) -> proc.Outcome:
        """Run podman to its end; one that lost its pause process is mended first."""
        done = proc.capture(argv, timeout_s=timeout_s, env=self.env)
        if done.returncode and podman.says_wedged(done.stderr):
            proc.capture(podman.migrate_args(), timeout_s=timeout_s, env=self.env)
            done = proc.capture(argv, timeout_s=timeout_s, env=self.env)
        return done

    def _check(self, done: proc.Outcome, record: Record) -> None:
        if done.returncode:
            raise _explained(done, record.image)


def _name_if_ours(container: Mapping[str, object]) -> str:
    """The name of a container that was made as a cage; "" for one of the owner's.

    Its labels alone do not say it: an image made of a cage hands them on.
    """
    names, labels = container.get("Names"), container.get("Labels")
    if not (isinstance(names, list) and names and isinstance(labels, dict)):
        return ""
    name = str(names[0])
    return name if _CAGE_NAME.fullmatch(name) and labels.get("cagewrap.name") == name else ""


def _ports(answer: Mapping[str, object]) -> list[list[int]]:
    found = answer.get("ports")
    return found if isinstance(found, list) else []


def _explained(done: proc.Outcome, image: str = "") -> CagewrapError:
    """What a failure of podman means. Its table is not for those who only list."""
    from cagewrap.runtimes.failures import explain_failure

    return explain_failure(done.argv, done.returncode, done.stderr, image=image)


def _info(
    record: Record, state: State, answer: control.Answer, status: str, held: int, directory: str
) -> SessionInfo:
    return SessionInfo(
        name=record.name,
        session=record.session,
        project=record.project,
        status=status,
        messages=int(str(answer.get("messages", 0))),
        image=record.image,
        created_at=record.created_at,
        used_at=max(state.used_at, record.created_at),
        is_outdated=record.is_outdated,
        ports=tuple((int(a), int(b)) for a, b in _ports(answer)),
        kill=str(answer.get("kill", "")),
        held=held,
        requests=read_counts(directory),
        keeper=str(answer.get("version", "?" if answer else "")),
        is_keeper_other=bool(answer) and answer.get("build") != _OWN_BUILD,
    )


def _status(record: Record, state: State, statuses: dict[str, str] | None) -> str:
    """What has become of a session's container; `statuses` only for one without a bundle."""
    if not state.container_id:
        return "new"
    if sessions.is_alive(state.init_pid, state.init_start, state.boot_id):
        return "running"
    if state.bundle:
        return "stopped" if os.path.isdir(state.bundle) else "gone"
    if statuses is None:
        return "unknown"
    return "stopped" if record.name in statuses else "gone"


def run_on(
    records: Sequence[Record], action: Callable[[Record], Done]
) -> tuple[tuple[Done, ...], CagewrapError | None]:
    """Do something to each session; the first failure is returned after the rest was done."""
    by_name = {record.name: record for record in records}
    return _run_on_names(list(by_name), lambda name: action(by_name[name]))


def _run_on_names(
    names: Sequence[str], action: Callable[[str], Done]
) -> tuple[tuple[Done, ...], CagewrapError | None]:
    done: list[Done] = []
    failure: CagewrapError | None = None
    for name in names:
        try:
            done.append(action(name))
        except CagewrapError as error:
            failure = failure or error
        except OSError as error:
            failure = failure or sessions.explain_os_error(error)
        except Exception as error:  # noqa: BLE001 - a bug that one session meets spares the others
            bug = f"A bug met by {name}: {type(error).__name__}: {error}."
            failure = failure or InternalError(bug, "report it with --debug")
    return tuple(done), failure
