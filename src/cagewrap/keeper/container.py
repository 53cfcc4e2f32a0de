"""Bringing a cage's container up: adopt it when it runs, start it when it is stopped, else make it.

podman is started without waiting for it, so that the rest of the keeper is imported and shims are
accepted meanwhile. What podman prints goes to a memfd, never to a pipe: conmon may keep a copy.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence

from cagewrap.errors import CagewrapError, KeeperError, MountRefusedError
from cagewrap.keeper import spawn
from cagewrap.keeper.loop import Loop, Timer
from cagewrap.keeper.processes import descendants
from cagewrap.runtimes import podman
from cagewrap.sessions import Record, State, is_alive, start_time
from cagewrap.sources import identify_sources

_TIDY_S = 0.3
"""How long conmon may take to tell podman that a container ended."""
_START_S = 60.0
"""How long `podman start` may take; `podman run` may copy the image, and takes what it needs."""
_RETRIES = 3
"""How often podman is asked again when what it says has no meaning known to us: another of its
processes, or conmon, was killed meanwhile."""
_EXEC_S = 0.002
"""How often a container's first process is looked at until it is its init."""
_ABANDONED_S = 10.0
"""How long a podman whose keeper was killed may take to finish."""


class Container:
    """The container of one session."""

    def __init__(
        self,
        loop: Loop,
        record: Record,
        env: Mapping[str, str],
        pid_file: str,
        others: Callable[[], Sequence[str]],
    ) -> None:
        """env: for podman. others: ids of other sessions' running containers."""
        self.loop = loop
        self.record = record
        self.env = dict(env)
        self.pid_file = pid_file
        self._making = pid_file + ".making"
        self._others = others
        self.container_id = ""
        self.init_pid = 0
        self._has_reported = False
        self._has_mended = False
        self._retries = 0
        self._has_forgotten = False
        self._podman_pid = 0
        self._has_timed_out = False
        self.is_adopted = False
        self.expected: dict[str, tuple[int, int]] = {}
        """What must be mounted: device and inode, by place inside."""

    def tell(
        self,
        ready: Callable[[], None],
        failed: Callable[[CagewrapError], None],
        note: Callable[[str], None],
    ) -> None:
        """Whom to call: `ready` once the container runs (`container_id` and `init_pid` are set
        then), or `failed`; `note` with a line for whoever waits. Said before the loop runs."""
        self._ready = ready
        self._failed = failed
        self._note = note

    def adopt(self, state: State, expected: Mapping[str, tuple[int, int]]) -> None:
        """As `bring_up`, for a keeper that goes on as another build: what is mounted was looked at
        when it was mounted, and `expected` then. Raises KeeperError when it has just ended."""
        if not is_alive(state.init_pid, state.init_start, state.boot_id):
            raise KeeperError(
                f"The container {self.record.name} ended just now.", "send the message again"
            )
        self.container_id, self.init_pid = state.container_id, state.init_pid
        self.expected = dict(expected)
        self.is_adopted = True
        self.loop.later(0, lambda: self._ready())  # noqa: PLW0108 - not said yet

    def refuse_new(self) -> None:
        """Raise KeeperError unless it is the one that was adopted."""
        if not self.is_adopted:
            raise KeeperError("The container had to be started anew.", "cagewrap logs")

    @property
    def is_at_work(self) -> bool:
        """Whether podman is."""
        return bool(self._podman_pid)

    def bring_up(self, state: State) -> None:
        """Begin; what comes of it is told once the loop runs."""
        self.container_id = state.container_id
        try:
            self.expected = identify_sources(self.record.binds)
        except MountRefusedError as error:
            refusal = error
            self.loop.later(0, lambda: self._failed(refusal))
            return
        if is_alive(state.init_pid, state.init_start, state.boot_id):
            self.init_pid = state.init_pid
            self.is_adopted = True
            self.loop.later(0, lambda: self._ready())  # noqa: PLW0108 - not said yet
        elif state.container_id:
            self._start()
        elif os.path.exists(self._making):
            self._wait_for_abandoned(time.monotonic() + _ABANDONED_S)
        else:
            self._make(_RETRIES)

    def _wait_for_abandoned(self, deadline: float) -> None:
        """A keeper was killed while it made the container: let its podman end, then start over."""
        naming = [words[0] for words in _processes_naming(self.pid_file).values()]
        if naming.count(b"podman") and time.monotonic() < deadline:
            self.loop.later(0.05, lambda: self._wait_for_abandoned(deadline))
        else:
            self._start_over(tries=1)

    def _start_over(self, tries: int) -> None:
        def removed(*_: object) -> None:
            self._end_strays()
            self._make(tries)

        self._spawn(podman.remove_args(self.record.name), removed)

    def _end_strays(self) -> None:
        """Kill what a podman that was killed left of a container it does not know about: conmon
        and the runtime wait for it for ever."""
        for conmon in _processes_naming(self.pid_file):
            _kill(descendants(conmon))

    def _end_begun(self) -> bool:
        """Kill the container's processes, if it has any. conmon lives, and tells podman."""
        conmons = list(_processes_naming(self.pid_file))
        for conmon in conmons:
            _kill(descendants(conmon)[1:])
        return bool(conmons)

    def _make(self, tries: int) -> None:
        def made(code: int, out: str, err: str) -> None:
            os.unlink(self._making)
            if code == 0:
                self.container_id = (out.split() or [self.record.name])[-1]
                self._runs(err)
            elif self._mend(err, lambda: self._make(tries)):
                pass
            elif tries > 1 and ("already in use" in err or self._is_unexplained(code, err)):
                # Left by a keeper that was killed between making it and writing it down; or
                # podman, conmon or the runtime was killed meanwhile.
                self._start_over(tries - 1)
            else:
                self._end_strays()
                self._fail(self.record.run_args, code, err)

        self._remove_pid_file()
        os.close(os.open(self._making, os.O_WRONLY | os.O_CREAT, 0o600))
        self._spawn(self.record.run_args, made)

    def _is_unexplained(self, code: int, err: str) -> bool:
        from cagewrap.runtimes.failures import explain_failure

        error = explain_failure(self.record.run_args, code, err, image=self.record.image)
        return error.id == CagewrapError.id

    def _restarted(self, code: int, _out: str, err: str) -> None:
        start = podman.start_args(self.record.name)
        if code == 0:
            self._runs(err)
        elif self._has_timed_out:
            self._failed(_hangs(self.record.name))
        elif podman.says_missing(err):
            self._note(
                "the container of this session is gone (podman removed it): what was installed in "
                "it is lost, HOME and the project are kept; going on in a new one"
            )
            self._make(_RETRIES)
        elif podman.says_improper_state(err) and self._report_end():
            self._start()
        elif self._mend(err, self._start):
            pass
        elif not self._retries:
            self._retry()
        elif podman.says_begun(err) and not self._has_forgotten:
            self._has_forgotten = True
            self._forget_begun()
        elif self._retries < _RETRIES and self._is_unexplained(code, err):
            self._retry()
        else:
            self._fail(start, code, err)

    def _retry(self) -> None:
        """podman tidies up as it fails: what was killed with its conmon starts then. What a podman
        that was killed had started already ends first: podman takes it for not begun."""
        self._retries += 1
        wait_s = _TIDY_S if self._end_begun() else 0
        self.loop.later(wait_s, self._start)

    def _forget_begun(self) -> None:
        """Let the runtime forget what a podman that was killed had it make, then start."""
        from cagewrap.runtimes import oci

        self._end_strays()
        state_dir = oci.runtime(self.record.runtime).state_dir(self.env["XDG_RUNTIME_DIR"])
        forget = podman.forget_args(self.record.runtime, state_dir, self.container_id)
        self._spawn(forget, lambda *_: self._start())

    def _mend(self, err: str, again: Callable[[], None]) -> bool:
        """Let podman forget its pause process, once, when it says that this and all it ran is
        gone; then call `again`. That ends every container, also one whose conmon alone is gone.
        While one of another session's runs, podman is told instead that it has ended, and makes
        its pause process anew; that session's keeper needs no podman until it stops it."""
        if self._has_mended or not podman.says_wedged(err):
            return False
        self._has_mended = True
        told = [self._tell_ended(container_id) for container_id in self._others()]
        if told and all(told):
            self.loop.later(0, again)
            return True
        self._spawn(podman.migrate_args(), lambda *_: again())
        return True

    def _report_end(self) -> bool:
        """Tell podman in conmon's place, once, that the container has ended.

        When conmon was killed, podman takes the container for running, or stopping, for ever: it
        waits for the file in which conmon writes the exit code.
        """
        if self._has_reported or not self.container_id:
            return False
        self._has_reported = True
        return self._tell_ended(self.container_id)

    def _tell_ended(self, container_id: str) -> bool:
        exits = os.path.join(self.env["XDG_RUNTIME_DIR"], "libpod", "tmp", "exits")
        try:
            with open(os.path.join(exits, container_id), "w", encoding="ascii") as file:
                file.write(str(128 + signal.SIGKILL))
        except OSError:
            return False
        return True

    def _runs(self, err: str) -> None:
        """podman says that it runs; a cage that is less than it should be is not used."""
        from cagewrap.runtimes.failures import explain_warning

        warning = explain_warning(err)
        if warning is None:
            self._read_init()
        else:
            self.stop(lambda: self._failed(warning))

    def _read_init(self) -> None:
        """Find the container's init: conmon wrote it down before podman came back."""
        try:
            with open(self.pid_file, encoding="ascii") as file:
                self._is_up(int(file.read()))
        except (OSError, ValueError):
            # It ran already, of an earlier start whose podman was killed.
            self._spawn(podman.pid_args(self.record.name), self._told_init)

    def _told_init(self, _code: int, out: str, _err: str) -> None:
        self._is_up(int(out) if out.strip().isdigit() else 0)

    def _is_up(self, pid: int) -> None:
        if pid and start_time(pid):
            if not _is_init(pid):
                # The runtime has let it go, and it is still the runtime's own: not to be entered
                # (the runtime is not dumpable), and not what its environment will be.
                self.loop.later(_EXEC_S, lambda: self._is_up(pid))
                return
            self.init_pid = pid
            self._ready()
        elif self._report_end():
            self._start()
        else:
            self._failed(
                KeeperError(
                    f"The container {self.record.name} ended as soon as it was started.",
                    f"cagewrap logs {self.record.name}",
                )
            )

    def _fail(self, argv: Sequence[str], code: int, err: str) -> None:
        from cagewrap.runtimes.failures import explain_failure

        self._failed(explain_failure(argv, code, err, image=self.record.image))

    def _remove_pid_file(self) -> None:
        try:
            os.unlink(self.pid_file)
        except FileNotFoundError:
            return

    def _start(self) -> None:
        """Start the container that is there."""
        self._spawn(podman.start_args(self.record.name), self._restarted, timeout_s=_START_S)

    def _spawn(
        self,
        argv: Sequence[str],
        ended: Callable[[int, str, str], None],
        *,
        timeout_s: float = 0.0,
    ) -> None:
        """Start podman; `ended` is called with its exit code and what it printed. One at a time."""
        timer: Timer | None = None
        out = os.memfd_create("podman-stdout")
        err = os.memfd_create("podman-stderr")
        null = os.open(os.devnull, os.O_RDONLY)

        def done(status: int) -> None:
            is_dropped = self._podman_pid != pid
            if timer is not None:
                timer.cancel()
            if is_dropped:
                return
            self._podman_pid = 0
            ended(os.waitstatus_to_exitcode(status), _content(out), _content(err))

        try:
            program = spawn.Program(argv[0], self.env.get("PATH", ""))
            fds = ((null, 0), (out, 1), (err, 2))
            pid = spawn.spawn(program, argv, self.env, fds)
        except OSError as error:
            text = str(error)
            self.loop.later(0, lambda: ended(127, "", text))
            return
        finally:
            os.close(null)
        self._podman_pid = pid
        timer = self.loop.later(timeout_s, lambda: self._time_out(pid)) if timeout_s else None
        self.loop.on_end(pid, done)

    def _time_out(self, pid: int) -> None:
        self._has_timed_out = True
        _kill_group(pid)

    def cancel(self) -> None:
        """Kill the podman that is at work, and forget what it was for: it may wait for ever in a
        container that an agent has prepared (a FIFO at /etc/passwd blocks `podman start`)."""
        if self._podman_pid:
            _kill_group(self._podman_pid)
            self._podman_pid = 0

    def restart(self) -> None:
        """Stop it and start it again; `ready` or `failed` is called as after bring_up."""
        self.is_adopted = False
        self.stop(self._start)

    def stop(self, ended: Callable[[], None]) -> None:
        """Stop the container and keep its layer."""

        pid, started = self.init_pid, start_time(self.init_pid)

        def stopped(*_: object) -> None:
            if started and start_time(pid) == started:  # podman was told that it ended: see _mend
                _kill([pid])
            ended()

        self._spawn(podman.stop_args(self.record.name), stopped)

    def remove(self, directory: str, ended: Callable[[], None]) -> None:
        """Remove the container, and what the session kept on the host."""
        delete = ("podman", "unshare", "rm", "-rf", "--", directory)
        self._spawn(
            podman.remove_args(self.record.name), lambda *_: self._spawn(delete, lambda *_: ended())
        )


def _is_init(pid: int) -> bool:
    """Whether a container's first process has executed the init that every cage has."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().split(b"\0")[0] == podman.INIT_TARGET.encode()
    except OSError:
        return False


def _kill_group(pid: int) -> None:
    """Kill a podman of ours with what it started in its session."""
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def _kill(pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _processes_naming(path: str) -> dict[int, list[bytes]]:
    """Processes with that path among their arguments, and all of these."""
    found: dict[int, list[bytes]] = {}
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        if entry.isdigit() and os.fsencode(path) in words:
            found[int(entry)] = words
    return found


def _hangs(name: str) -> KeeperError:
    return KeeperError(
        f"podman could not start the container {name} within {_START_S:.0f} seconds; an agent may "
        "have put something into it that blocks.",
        f"cagewrap recreate --fresh {name}",
    )


def _content(fd: int) -> str:
    os.lseek(fd, 0, os.SEEK_SET)
    with open(fd, encoding="utf-8", errors="replace") as file:
        return file.read()
