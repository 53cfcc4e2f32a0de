"""The keeper's own life: start, serve messages, stop when idle.

Started by a shim under the cage's lock, with a listening socket made by that shim (so nobody waits
for it to be ready). It brings the container up, launches each message's process, and leaves when
the container has been idle for `idle_stop_s`, was stopped, or died.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping

from cagewrap import protocol, sessions
from cagewrap.builds import Build
from cagewrap.errors import (
    CagewrapError,
    InternalError,
    KeeperError,
    MountRefusedError,
)
from cagewrap.keeper import cgroups
from cagewrap.keeper.arrival import Arrival
from cagewrap.keeper.begin import Begun, log
from cagewrap.keeper.care import POLL_S
from cagewrap.keeper.door import Door
from cagewrap.keeper.inheritance import Inheritance
from cagewrap.keeper.loop import Timer
from cagewrap.keeper.message import GRACE_S, Message
from cagewrap.keeper.pause import end_younger_pause
from cagewrap.keeper.processes import is_ending
from cagewrap.keeper.request import parse_request
from cagewrap.keeper.running import Running
from cagewrap.keeper.succession import Succession, thaw

_STARTED_ANEW = (
    "another version of cagewrap is used now, and the cage was started anew for it: what ran in "
    "the background was ended, all else is kept"
)
_REST_S = 1.0
"""So long after its start a keeper reads in what it has not needed yet: its files may go."""
RUN_ONCE_CONNECT_S = 10.0
"""How long a `--rm` cage waits for the one command it was made for."""
_EMPTY_WAIT_S = 1.0
"""How long killed processes may take to leave a cgroup."""


class Keeper:
    """One running cage."""

    def __init__(
        self,
        begun: Begun,
        listener: socket.socket,
        lock: int,
        left: Inheritance | None = None,
    ) -> None:
        """Owns the listener. lock: the keeper's, held. left: by the build that this process was."""
        self.paths = begun.paths
        self.record = begun.record
        self.state = begun.state
        self.loop = begun.loop
        self.container = begun.container
        self.work_dir = begun.work_dir
        self._our_cgroup = begun.our_cgroup
        socket_file = self.paths.socket_file(self.record.name)
        self.succession = Succession(self.loop, self._may_hand_on, self._hand_on, self._stay, log)
        self.door = Door(
            self.loop, listener, socket_file, self._dispatch, self._finished, self._must_wait
        )
        self.messages: set[Message] = set()
        self.lingering: list[str] = []
        self.running: Running | None = None
        self._arrival = Arrival(begun, log, lambda: self.succession.program)
        self._keeper_lock, self._left = lock, left
        self._notes: list[str] = list(left.notes) if left else []
        self._early_commands: list[tuple[Message, Mapping[str, object]]] = []
        self._waiters: list[socket.socket] = []
        self._is_leaving = False
        self._must_leave = False
        self._stopped_at = 0.0
        self._idle: Timer | None = None
        self._polling: Timer | None = None

    # -- start ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until the cage stops."""
        self.container.tell(self._container_runs, self._fail_all, self._note_to_all)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: self.loop.later(0, self._told_to_stop))
        if self._left is not None:
            self._meet_waiting(self._left)
        if not self.container.is_adopted:
            self._arrival.prepare()  # while podman is at work
        self.loop.run()

    def _container_runs(self) -> None:
        try:
            self._take_over()
        except Exception as error:  # noqa: BLE001 - or the shims would wait for ever
            log(f"bug: {error!r}")
            self._fail_all(InternalError(f"A bug in the keeper: {error!r}.", "cagewrap logs"))

    def _take_over(self) -> None:
        """The container is ours, and can take messages."""
        refuse = self._mounts_differ
        try:
            self._arrival.enter()
            refuse = self._cannot_be_entered
            self._enter()
        except (OSError, CagewrapError) as error:
            if not self._has_ended_again():
                refuse(error)
            return
        for message in list(self.messages):
            self._launch(message)
        for message, command in self._early_commands:
            self._command(message, command)
        self._early_commands.clear()
        self._arm_idle()
        self.loop.later(_REST_S, _import_rest)

    def _has_ended_again(self) -> bool:
        """A container that was killed while it was looked at has not failed: whether it was, and
        who waits was sent to start it."""
        if not is_ending(self.container.init_pid):
            return False
        log("the container ended while it was looked at")
        self._is_leaving = True
        self.door.close()
        for message in list(self.messages):
            message.retry()
        self._exit()
        return True

    def _mounts_differ(self, error: OSError | CagewrapError) -> None:
        """A container that has run for long may see directories that the host has replaced since:
        it is started anew. One that was started now must not be used."""
        if isinstance(error, CagewrapError) and not isinstance(error, MountRefusedError):
            self._fail_all(error)
            return
        log(f"mounts: {error}")
        if self.container.is_adopted:
            self.container.restart()
            return
        refusal = (
            error
            if isinstance(error, MountRefusedError)
            else KeeperError(
                f"The mounts of {self.record.name} cannot be looked at: {error}.",
                f"cagewrap recreate {self.record.name}",
            )
        )
        self.container.stop(lambda: self._fail_all(refusal))

    def _cannot_be_entered(self, error: OSError | CagewrapError) -> None:
        if isinstance(error, CagewrapError):
            self._fail_all(error)
        else:
            self._fail_all(self._arrival.failed(error))

    def _enter(self) -> None:
        self.running = Running(
            self.loop,
            self.record,
            self.paths,
            self.container,
            self._arrival.cares,
            self._our_cgroup,
            self._is_alone,
            log,
        )
        if self._our_cgroup and self.running.launcher.inside.own_cgroup:
            cgroups.remove(self._our_cgroup)
            self._our_cgroup = ""
        self.loop.watch(self.running.init_fd, 1, self._container_ended)
        if self._left is not None:
            self._go_on(self._left, self.running)
            self._left = None
        self.running.open_ports(self._note_to_all)
        for care in self._arrival.cares:
            care.can_ask(self._ask_at_once)
        self._save(used_at=sessions.now())
        log(f"container {self.container.container_id[:12]} runs, init {self.container.init_pid}")

    def _save(self, **changes: float) -> None:
        self.state = self.state._replace(
            container_id=self.container.container_id,
            boot_id=sessions.boot_id(),
            keeper_pid=os.getpid(),
            keeper_start=sessions.start_time(os.getpid()),
            init_pid=self.container.init_pid,
            init_start=sessions.start_time(self.container.init_pid),
            cgroup=self.running.message_parent if self.running else "",
            bundle=self.running.bundle if self.running else "",
            **changes,  # type: ignore[arg-type]
        )
        try:
            sessions.write_state(self.paths, self.record.name, self.state)
        except (OSError, CagewrapError) as error:
            log(f"state not written: {error}")

    # -- going on as another build -------------------------------------------------------------

    def _must_wait(self, packet: bytes) -> bool:
        """Whether who asks is to be heard by the build that this keeper goes on as."""
        try:
            _, _, build = protocol.unpack_request(packet[1:])
        except ValueError:
            return False
        return packet[:1] == protocol.REQUEST and self.succession.asked_by(Build(*build))

    def _may_hand_on(self) -> bool:
        """Whether nothing is under way that would be lost. The cage of one command ends with it."""
        return (
            self.running is not None
            and not self.record.rm
            and not (self.messages or self._early_commands or self._waiters)
            and not (self._is_leaving or self._must_leave or self.container.is_at_work)
            and not (self._must_restart() or self.running.astray())
        )

    def _hand_on(self) -> Inheritance:
        """What the other build is left."""
        assert self.running is not None  # noqa: S101 - _may_hand_on() came first
        self._forget_ended()
        listener, connections = self.door.hand_on()
        kept = [self._keeper_lock, listener, *connections]

        def keep(fd: int) -> int:
            kept.append(fd)
            return fd

        return Inheritance(
            name=self.record.name,
            version=self.succession.build.version,
            lock=self._keeper_lock,
            listener=listener,
            connections=connections,
            expected=self.container.expected,
            lingering=self.lingering,
            notes=self._notes,
            running=self.running.hand_on(),
            cares={care.name: care.hand_on(keep) for care in self._arrival.cares},
            descriptors=kept,
        )

    def _hand_on_if_wanted(self) -> None:
        """The last message has ended, and nobody waits."""
        self.succession.begin()

    def _stay(self) -> None:
        """Who waited is heard after all."""
        self.door.release()

    def _meet_waiting(self, left: Inheritance) -> None:
        """Take what came to the build before."""
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        for fd in left.connections:
            self.door.let_in(socket.socket(fileno=fd))
        self.loop.later(0, self.loop.reap)  # who ended in between

    def _go_on(self, left: Inheritance, running: Running) -> None:
        """Take over what the build before looked after, then let what it held up go on."""
        self.lingering = list(left.lingering)
        try:
            running.go_on(left.running)
            self.container.refuse_new()
            for care in self._arrival.cares:
                care.go_on(left.cares.get(care.name, {}))
        except Exception as error:  # noqa: BLE001 - whatever it was: nothing runs unguarded
            log(f"cannot go on from version {left.version}: {error!r}")
            for path in self.lingering:
                cgroups.kill(path)
            self._must_leave = True
            for message in list(self.messages):  # nothing of it has begun
                message.note(_STARTED_ANEW)
                message.retry()
            self.loop.later(0, self.leave)
            return
        thaw(self.lingering)
        if self.lingering:
            self._arm_poll()
        log(f"went on from version {left.version} with {len(self.lingering)} in the background")

    # -- messages ------------------------------------------------------------------------------

    def _dispatch(self, message: Message, kind: bytes, text: bytes, fds: list[int]) -> None:
        if kind == protocol.REQUEST and message.request is None:
            self._take(message, text, fds)
        elif kind and kind[0] < protocol.FIRST_KIND and not text:
            message.deliver(kind[0])
        elif kind == protocol.SIGNAL:
            message.deliver(int(text))
        elif kind == protocol.GROUP_SIGNAL:
            message.deliver_to_group(int(text))
        elif kind == protocol.SUSPEND:
            message.suspend()
        elif kind == protocol.SEEN:
            message.seen()
        elif kind == protocol.COMMAND:
            self._command(message, json.loads(text))
        elif message.request is None:
            _close(fds)
            self.door.drop(message)
        else:
            _close(fds)
            self.loop.unwatch(message.connection.fileno())
            message.hang_up()

    def _take(self, message: Message, text: bytes, fds: list[int]) -> None:
        try:
            version, oldest, _ = protocol.unpack_request(text)
        except ValueError as error:
            _close(fds)
            raise KeeperError(
                f"The cage {self.record.name} was started by another version of cagewrap, and the "
                f"keeper cannot read what is asked: {error}.",
                f"cagewrap stop {self.record.name}",
            ) from error
        if not protocol.OLDEST <= version <= protocol.NEWEST:
            self._send_away(message, protocol.common_version(oldest, version))
            _close(fds)
            return
        if self._must_restart() or self._cut_off():
            self.leave()
            self._must_leave = True
        if self._is_leaving or self._must_leave or not fds:
            _close(fds)
            message.reply(protocol.RETRY)
            self.door.drop(message)
            return
        try:
            with open(fds[0], "rb") as file:
                file.seek(0)
                request = parse_request(file.read())
        except CagewrapError:
            _close(fds[1:])
            raise
        self.messages.add(message)
        message.take(request, fds[1:])
        for note in self._notes:
            message.note(note)
        self._notes.clear()
        if self._idle is not None:
            self._idle.cancel()
        self._launch(message)

    def _send_away(self, message: Message, common: int) -> None:
        """A shim speaks what we do not, and we did not go on as its build. It asks again in a
        version that both speak. With none we leave, once no agent is at work, and its own keeper
        starts the cage anew."""
        is_idle = self.running is not None and not self.messages and not self.record.rm
        if common or not is_idle:
            message.reply(protocol.UNSPOKEN + b"%d %d" % (protocol.OLDEST, protocol.NEWEST))
            return
        self.leave()
        self._must_leave = True
        message.note(_STARTED_ANEW)
        message.reply(protocol.RETRY)
        self.door.drop(message)

    def _must_restart(self) -> bool:
        """Whether the project is another directory now, and nobody uses the old one."""
        running = self.running
        return running is not None and not self.messages and running.upkeep.is_project_replaced()

    def _ask_at_once(self) -> None:
        """Something happened that cannot wait for a poll."""
        if self._cut_off():
            self.leave()

    def _cut_off(self) -> bool:
        """Kill everything at once if the cage must not go on; whether it must not."""
        why = self.running.astray() if self.running is not None and not self._is_leaving else ""
        if self.running is None or not why:
            return False
        for message in self.messages:
            message.kill()
        for path in self.lingering:
            cgroups.kill(path)
        killed = [*(message.cgroup for message in self.messages), *self.lingering]
        cgroups.wait_until_empty(killed, _EMPTY_WAIT_S)
        self.running.mend()
        self._note_to_all(why)
        return True

    def _launch(self, message: Message) -> None:
        """Start a message's process, once the container runs."""
        if self.running is not None:
            self._arm_poll()
            self.running.launch(message)

    def _is_alone(self) -> bool:
        return len(self.messages) <= 1 and not self.lingering

    def _finished(self, message: Message) -> None:
        self.messages.discard(message)
        if message.cgroup and not cgroups.remove(message.cgroup):
            self.lingering.append(message.cgroup)
        self._forget_ended()
        if self.running is not None and not self._is_leaving:
            self._save(used_at=sessions.now())
        if not self.messages:
            self._arm_idle()
            self.loop.later(0, self._hand_on_if_wanted)

    def _forget_ended(self) -> None:
        """Let go of messages whose background processes have ended."""
        self.lingering = [path for path in self.lingering if not cgroups.remove(path)]

    def _arm_poll(self) -> None:
        if self._polling is None:
            self._polling = self.loop.later(POLL_S, self._poll)

    def _poll(self) -> None:
        self._polling = None
        self._forget_ended()
        if self.running is None or self._is_leaving:
            return
        if self._cut_off():
            self.leave()
            return
        self.running.poll()  # once more after the last process has ended
        if self.messages or self.lingering:
            self._arm_poll()
        else:
            self.running.idle()

    # -- commands ------------------------------------------------------------------------------

    def _command(self, message: Message, command: Mapping[str, object]) -> None:
        what = command.get("do")
        if what == "status":
            self._answer(message, self._status())
        elif what == "stop":
            self.loop.unwatch(message.connection.fileno())
            self._waiters.append(message.connection)
            self.leave()
        elif self.running is None:
            self._early_commands.append((message, command))
        elif what == "port":
            self.running.ports.publish(int(str(command["host"])), int(str(command["cage"])))
            self._answer(message, {"host": command["host"], "cage": command["cage"]})
        else:
            raise KeeperError(f"The keeper does not know {what!r}.", "cagewrap --version")

    def _status(self) -> dict[str, object]:
        return {
            "messages": len(self.messages),
            "lingering": len(self.lingering),
            "keeper_pid": os.getpid(),
            "ports": sorted(self.running.ports.published.items()) if self.running else [],
            "kill": "cgroup" if self.running and self.running.message_parent else "best effort",
            "version": self.succession.build.version,
            "build": self.succession.build.text,
        }

    def _answer(self, message: Message, value: Mapping[str, object]) -> None:
        message.reply(protocol.REPLY + json.dumps(value).encode())
        self.door.drop(message)

    # -- the end -------------------------------------------------------------------------------

    def _note_to_all(self, text: str) -> None:
        """Tell everyone who waits, or the first who comes."""
        log(text)
        if not self.messages:
            self._notes.append(text)
        for message in self.messages:
            message.note(text)

    def _fail_all(self, error: CagewrapError) -> None:
        """The container cannot be had: tell everyone, serve those who already knock, leave."""
        log(f"{error.id}: {error.message}")
        self.door.read_pending()
        for message, _ in self._early_commands:
            message.reply_error(error)
        for message in list(self.messages):
            message.abandon(error)
        self._exit()

    def _arm_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        if self._is_leaving or self.running is None or self.messages:
            return
        if self.record.rm:
            wait_s = 0.0 if self.running.launched else RUN_ONCE_CONNECT_S
        else:
            wait_s = self.record.idle_stop_s
        if wait_s != float("inf"):
            self._idle = self.loop.later(wait_s, self._leave_if_idle)

    def _leave_if_idle(self) -> None:
        if not self.messages:
            self._leave_once_unlocked(self._leave_if_idle)

    def leave(self) -> None:
        """Stop the container and go. Nobody new is served; who comes is sent to try again."""
        self._leave_once_unlocked(self.leave)

    def _told_to_stop(self) -> None:
        if not self._stopped_at:
            self._stopped_at = time.clock_gettime(time.CLOCK_BOOTTIME)
        self.leave()

    def _leave_once_unlocked(self, again: Callable[[], None]) -> None:
        if self._is_leaving:
            return
        lock = sessions.try_lock(sessions.cage_lock(self.paths, self.record.name))
        if lock is None:  # a shim is looking for us at this moment
            self.loop.later(0.05, again)
            return
        self._lock = lock
        self._is_leaving = True
        self.door.close()
        for message in list(self.messages):
            message.hang_up()
        self.loop.later(0, lambda: self._stop_container(time.monotonic() + GRACE_S + 1.0))

    def _stop_container(self, deadline: float) -> None:
        if self.messages and time.monotonic() < deadline:
            self.loop.later(0.02, lambda: self._stop_container(deadline))
            return
        self._forget_init()
        self.container.cancel()
        if self.record.rm:
            self._exit()
        else:
            self.container.stop(self._exit)

    def _container_ended(self, _mask: int) -> None:
        """The container's init is gone: the kernel has killed everything in it."""
        self._forget_init()
        if self._is_leaving:
            return
        log("the container ended")
        self._is_leaving = True
        self.door.close()
        for message in self.messages:
            message.note("the cage was stopped from outside")
        self.loop.later(0, lambda: self._exit_when_empty(time.monotonic() + 2.0))

    def _forget_init(self) -> None:
        if self.running is not None:
            self.loop.unwatch(self.running.init_fd)

    def _exit_when_empty(self, deadline: float) -> None:
        if self.messages and time.monotonic() < deadline:
            self.loop.later(0.02, lambda: self._exit_when_empty(deadline))
        else:
            self._exit()

    def _exit(self) -> None:
        """Leave nothing of ours behind; a `--rm` cage goes with all it had."""
        self._is_leaving = True
        for path in self.lingering:  # in a `--rm` cage they still run
            cgroups.kill(path)
        if self.running is not None:
            self.running.close()
        self._arrival.close()
        if self.record.rm:
            self.container.remove(self.paths.cage_dir(self.record.name), self._gone)
        else:
            self._gone()

    def _gone(self) -> None:
        self.door.close()
        if self._stopped_at:
            end_younger_pause(self._stopped_at)
        if self._our_cgroup:
            # conmon's `podman container cleanup`, perhaps podman's pause process: not ours to end.
            cgroups.move_all(self._our_cgroup + "/container", os.path.dirname(self._our_cgroup))
            cgroups.remove(self._our_cgroup, wait_s=_EMPTY_WAIT_S)
        _remove_tree(self.work_dir)
        for waiter in self._waiters:
            try:
                waiter.send(protocol.REPLY + b"{}")
            except OSError:
                continue
        log("leaves")
        self.loop.stop()


def _import_rest() -> None:
    """All that is imported where it is needed, of cagewrap: a test compares."""
    import cagewrap.egress.gate  # noqa: F401


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _remove_tree(path: str) -> None:
    try:
        for entry in os.scandir(path):
            os.unlink(entry.path)
        os.rmdir(path)
    except OSError:
        return
