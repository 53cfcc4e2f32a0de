"""One message: one process started in the cage for one shim, from hand-over to the last process.

The shim's connection is the message's life: when it closes before the agent has ended, for
whatever reason, the agent's whole tree is ended (TERM, one second, KILL).
"""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Callable

from cagewrap import protocol
from cagewrap.errors import CagewrapError
from cagewrap.keeper import hangup
from cagewrap.keeper.launcher import Launch, Launcher, PassingError
from cagewrap.keeper.loop import Loop, Timer
from cagewrap.keeper.processes import is_ending
from cagewrap.keeper.request import Request, shim_limits, shim_umask
from cagewrap.keeper.streams import Streams
from cagewrap.runtimes.failures import explain_never_executed

GRACE_S = 1.0
"""Between TERM and KILL for the tree of a message whose shim is gone."""
POLL_S = 0.02
"""How often a dying tree is looked at."""
LAUNCH_S = 30.0
"""How long the runtime may take to start a process; an agent can stop what starts beside it."""
MAX_NOTES = 20
NOTE_BYTES = 4096
"""All lines of a message's fit into its socket (200 KiB) even if the shim cannot read them: its
stderr may be full. What comes after them must."""
HANGUP_S = 0.5
"""How often the far ends of the agent's pipes are looked at."""

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Message:
    """One agent process and everything it starts."""

    def __init__(
        self,
        loop: Loop,
        connection: socket.socket,
        finished: Callable[[Message], None],
        log: Callable[[str], None],
    ) -> None:
        """Owns the connection. `finished` is called once, when the agent is gone."""
        self.loop = loop
        self.connection = connection
        self.finished = finished
        self.log = log
        self.peer_pid = _peer_pid(connection)
        self.request: Request | None = None
        self.streams = Streams(loop, [], self._relay_failed)
        self.pid = 0
        self.cgroup = ""
        self.launcher: Launcher | None = None
        self._queued: list[Callable[[], None]] = []
        self._continued = 0
        self._is_over = False
        self._doomed = False
        self._closed = False
        self._watch: hangup.Watch | None = None
        self._timer: Timer | None = None
        self._oom_before = 0
        self._runtime_pid = 0  # not 0 while a launch is under way: later the pid is another's
        self._has_told_stop = False
        self._delivered: set[int] = set()
        self._is_suspect = False
        self._notes = 0
        self._ending: Callable[[Message], None] = lambda _message: None

    # -- hand-over -----------------------------------------------------------------------------

    def take(self, request: Request, fds: list[int]) -> None:
        """Keep the request; from here on the message is ours."""
        self.request = request
        self.streams = Streams(self.loop, fds, self._relay_failed)
        self.reply(protocol.ACCEPTED)

    @property
    def is_closed(self) -> bool:
        """Whether it is over, and its shim has been let go."""
        return self._closed

    def launch(
        self,
        launcher: Launcher,
        argv: tuple[bytes, ...],
        env: dict[bytes, bytes],
        cgroup: str,
        ending: Callable[[Message], None],
    ) -> None:
        """Start the agent's process. ending: called when it has ended, before its shim is told."""
        assert self.request is not None  # noqa: S101 - take() came first
        self._ending = ending
        self.launcher, self.cgroup = launcher, cgroup
        if self._doomed:
            self._close()
            return
        self._oom_before = launcher.oom_kills()
        stdio = self.streams.open()
        launch = Launch(
            argv=argv,
            env=tuple(name + b"=" + value for name, value in env.items()),
            cwd=self.request.cwd,
            umask=shim_umask(self.peer_pid),
            limits=shim_limits(self.peer_pid),
            terminal=self.request.terminal,
            stdio=stdio,
            cgroup=cgroup,
        )
        try:
            self._runtime_pid = launcher.start(launch, self._started, self._failed, self._terminal)
            self.loop.later(LAUNCH_S, self._abort_launch)
        except CagewrapError as error:
            self._failed(error)
        finally:
            self._watch = hangup.Watch(self.streams.fds, self.peer_pid)
            self.streams.release()

    def _relay_failed(self, error: OSError) -> None:
        self.note(f"what the agent writes cannot be stored: {error.strerror}")

    def _started(self, pid: int) -> None:
        self.pid, self._runtime_pid = pid, 0
        self.reply(protocol.STARTED + b"%d" % pid)
        self.loop.on_end(pid, self._ended, self._changed)
        for deliver in self._queued:
            deliver()
        self._queued.clear()
        if self._doomed:
            self._end_tree()
        else:
            self._look_for_hangup()

    def _failed(self, error: CagewrapError) -> None:
        self._runtime_pid = 0
        if isinstance(error, PassingError):
            self.log(error.message)
            self.reply(protocol.RETRY)
        elif self.launcher is not None and is_ending(self.launcher.inside.init_pid):
            self.reply(protocol.RETRY)  # the container ended a moment ago, and is started again
        else:
            self.reply_error(error)
        self._close()

    def _terminal(self, master: int) -> None:
        """Pass the pty's master on; the shim relays it."""
        try:
            socket.send_fds(self.connection, [protocol.TERMINAL], [master])
        except OSError:
            self.hang_up()
        finally:
            os.close(master)

    # -- while it runs -------------------------------------------------------------------------

    def deliver(self, number: int) -> None:
        """Signal the agent. Before it runs, the signal waits."""
        if not self.pid:
            if self.launcher is None and number in _ENDING:
                self.reply(protocol.KILLED + b"%d" % number)  # nothing has begun: end at once
                self._close()
            else:
                self._queued.append(lambda: self.deliver(number))
            return
        self._has_told_stop &= number != signal.SIGCONT
        self._continued += number == signal.SIGCONT
        self._delivered.add(number)
        _kill(self.pid, number)
        if number == signal.SIGTSTP and _has_default_action(self.pid, number):
            # In an orphaned process group the kernel drops a default TSTP; natively it would stop.
            _kill(self.pid, signal.SIGSTOP)

    def deliver_to_group(self, number: int) -> None:
        """Signal the agent's process group, as a terminal would. Before it runs, the signal
        waits."""
        if not self.pid:
            self._queued.append(lambda: self.deliver_to_group(number))
            return
        self._has_told_stop &= number != signal.SIGCONT
        self._continued += number == signal.SIGCONT
        _kill_group(self.pid, number)
        if number == signal.SIGTSTP:
            self.suspend()

    def suspend(self) -> None:
        """Stop the agent's process group, which has had its TSTP, unless the agent handles that.

        The kernel drops the default stop: the group is orphaned, its parent in another session.
        """
        if self.pid and _has_default_action(self.pid, signal.SIGTSTP):
            _kill_group(self.pid, signal.SIGSTOP)

    def hang_up(self) -> None:
        """The shim is gone: so is the reason for everything this message started."""
        if self._doomed:
            return
        self._doomed = True
        if (self.pid and not self._closed) or self._is_over:
            self._end_tree()
        elif not self.pid and self.launcher is None:
            self._close()
        elif not self.pid:
            self.loop.later(GRACE_S, self._abort_launch)

    def kill(self) -> None:
        """Kill the whole tree, without grace."""
        if self.launcher is not None:
            self.launcher.kill_tree(self.cgroup, self.pid)
        if self._runtime_pid:
            _kill(self._runtime_pid, signal.SIGKILL)

    def _abort_launch(self) -> None:
        """End a launch that hangs: an agent of the same cage may have stopped it."""
        if self._runtime_pid:
            self.kill()

    def seen(self) -> None:
        """A shim that relays has heard of the agent's end before its own."""
        if self._is_over and not self._doomed:
            self._close()

    def abandon(self, error: CagewrapError) -> None:
        """Tell the shim why its command does not start, and forget the message."""
        self._failed(error)

    def retry(self) -> None:
        """Nothing was begun, and this keeper is going away."""
        self.reply(protocol.RETRY)
        self._close()

    def note(self, text: str) -> None:
        """A line for the shim's stderr."""
        self.reply(protocol.NOTE + text.encode(errors="replace")[:NOTE_BYTES])

    def note_care(self, text: str) -> None:
        """One of perhaps many, which are in the log too: the first ones are shown."""
        self._notes += 1
        if self._notes < MAX_NOTES:
            self.note(text)
        elif self._notes == MAX_NOTES:
            self.note("there is more of this kind: cagewrap logs")

    def reply(self, packet: bytes) -> None:
        """Send to the shim, never waiting for it; one that is gone is noticed by its closed
        connection. Packets are few (a stop is told once), so a full socket is a broken shim."""
        try:
            self.connection.send(packet, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
        except OSError:
            return

    def reply_error(self, error: CagewrapError) -> None:
        """Tell the shim why its command did not start."""
        parts = (str(error.exit_code), error.message, error.hint)
        packed = [  # podman's texts can hold NUL, and a command's name has any length
            part.replace("\0", "").encode(errors="replace")[: protocol.LINE_BYTES] for part in parts
        ]
        self.reply(protocol.ERROR + b"\0".join(packed))

    def _look_for_hangup(self) -> None:
        if self._closed or self._doomed or self._watch is None:
            return
        if self._watch.is_hung_up() and not self._is_suspect:
            # A writer dies of it by itself, by SIGPIPE: not to be overtaken by our TERM.
            self._is_suspect = True
            self._timer = self.loop.later(POLL_S, self._look_for_hangup)
        elif self._watch.is_hung_up():
            self.log(f"message of pid {self.peer_pid}: the harness hung up")
            self._doomed = True
            self._end_tree()
        elif self._watch.is_needed:
            soon = POLL_S if self._watch.is_unsure else HANGUP_S
            self._timer = self.loop.later(soon, self._look_for_hangup)

    # -- the end -------------------------------------------------------------------------------

    def _changed(self, status: int) -> None:
        """The agent was stopped or goes on: so does the shim, whoever did it."""
        if os.WIFSTOPPED(status):
            if not self._has_told_stop:
                self._has_told_stop = True
                self.reply(protocol.STOPPED + b"%d" % self._continued)
        elif self._has_told_stop:
            self._has_told_stop = False
            _kill(self.peer_pid, signal.SIGCONT)

    def _ended(self, status: int) -> None:
        self.streams.drain()  # before the shim is let go: who reads the file next goes on there
        self._ending(self)
        shim_was_gone = self._shim_is_gone()  # asked before it is told, and ends of it
        self._report_end(status)
        if self._has_told_stop:  # it went on and ended at once: the shim must hear of it
            _kill(self.peer_pid, signal.SIGCONT)
        self.pid = 0
        is_over = shim_was_gone or self._ended_with_its_harness(status) or self._was_ended(status)
        if not self._doomed and is_over:
            self._doomed = True
            self._end_tree()
        elif not self._doomed and self.request is not None and self.request.is_relayed:
            # The agent may have died of the shim's end, which is told in a moment; or `seen` is.
            self._is_over = True
        elif not self._doomed:
            self._close()

    def _report_end(self, status: int) -> None:
        """Tell the shim how the agent ended."""
        if self.pid in self.loop.never_executed:
            self.loop.never_executed.discard(self.pid)
            assert self.request is not None  # noqa: S101
            self.reply_error(explain_never_executed(os.fsdecode(self.request.argv[0])))
        elif os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            if number == signal.SIGKILL and self._was_out_of_memory():
                self.note("the agent was killed because the cage ran out of memory (see --memory)")
            elif number == signal.SIGKILL and not self._doomed and self._container_is_ending():
                self.note("the cage was stopped from outside")
            self.reply(protocol.KILLED + b"%d" % number)
        else:
            self.reply(protocol.EXITED + b"%d" % os.WEXITSTATUS(status))

    def _shim_is_gone(self) -> bool:
        """Whether the shim ended first, and the loop has only not told us yet: a terminal that
        hangs up is the end of both."""
        poll = select.poll()
        poll.register(self.connection, select.POLLIN)
        return any(mask & select.POLLHUP for _, mask in poll.poll(0))

    def _was_ended(self, status: int) -> bool:
        """Whether the agent died of a signal that its shim was ended with: what it started is not
        wanted any more either, and it could not see to that."""
        return os.WIFSIGNALED(status) and os.WTERMSIG(status) in self._delivered & {*_ENDING}

    def _ended_with_its_harness(self, status: int) -> bool:
        """Whether the agent ended because nobody reads it any more: so must what it started.

        Not after `cagewrap -- start-server | head -1`, which ends well, and whose shell lives.
        """
        watch = self._watch
        return watch is not None and watch.is_hung_up() and (status != 0 or watch.parent_is_gone())

    def _was_out_of_memory(self) -> bool:
        return self.launcher is not None and self.launcher.oom_kills() > self._oom_before

    def _container_is_ending(self) -> bool:
        return self.launcher is not None and self.launcher.container_is_ending()

    def _end_tree(self) -> None:
        """TERM to all of the tree, then KILL when the grace is over."""
        assert self.launcher is not None  # noqa: S101 - only after launch()
        self.launcher.signal_tree(self.cgroup, self.pid, signal.SIGTERM)
        self.launcher.signal_tree(self.cgroup, self.pid, signal.SIGCONT)
        self._wait_for_tree(round(GRACE_S / POLL_S))

    def _wait_for_tree(self, polls: int) -> None:
        assert self.launcher is not None  # noqa: S101
        lives = self.launcher.tree_lives(self.cgroup, self.pid)
        if not lives and not self.pid:
            self._close()
        elif not lives:  # its end is known in a moment, and the shim waits for it
            self.loop.later(POLL_S, lambda: self._wait_for_tree(polls))
        elif polls <= 0:
            self.launcher.kill_tree(self.cgroup, self.pid)
            self.loop.later(POLL_S, lambda: self._wait_for_tree(0))
        else:
            self.loop.later(POLL_S, lambda: self._wait_for_tree(polls - 1))

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._watch is not None:
            self._watch.close()
        self.streams.close_input()
        self.streams.release()
        self.loop.unwatch(self.connection.fileno())
        self.connection.close()
        self.finished(self)


def _peer_pid(connection: socket.socket) -> int:
    """The pid of the shim (struct ucred: pid, uid, gid)."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(credentials[:4], "little")


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        return


def _kill_group(pid: int, number: int) -> None:
    try:
        os.killpg(os.getpgid(pid), number)
    except OSError:
        return


def _has_default_action(pid: int, number: int) -> bool:
    """Whether a process neither catches nor ignores a signal."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            masks = {line[:7]: int(line[7:], 16) for line in file if line[:7] in _MASK_LINES}
    except (OSError, ValueError):
        return False
    return not any(mask >> (number - 1) & 1 for mask in masks.values())


_MASK_LINES = ("SigIgn:", "SigCgt:")
