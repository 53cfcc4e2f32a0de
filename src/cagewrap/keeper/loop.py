"""The keeper's event loop: descriptors, timers and children, in one thread.

A child's end may be reported before its pid is known (the runtime writes the pid file, exits, and
the process it started may be gone by then), so statuses that nobody claims are kept as long as a
launch is under way. Everything is always reaped: a zombie in a container's pid namespace keeps the
namespace alive and blocks `podman rm`.
"""

from __future__ import annotations

import functools
import heapq
import os
import selectors
import signal
import time
from collections.abc import Callable

from cagewrap.keeper.processes import never_executed

_WAITED = os.WEXITED | os.WSTOPPED | os.WCONTINUED | os.WNOHANG | os.WNOWAIT

Ready = Callable[[int], None]
"""Called with the event mask (selectors.EVENT_READ, EVENT_WRITE)."""
Ended = Callable[[int], None]
"""Called with the wait status (os.WIFEXITED and friends)."""


class Timer:
    """A call due at a time of the monotonic clock."""

    __slots__ = ("callback", "due")

    def __init__(self, due: float, callback: Callable[[], None]) -> None:
        """Due in seconds of time.monotonic()."""
        self.due = due
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Never call it."""
        self.callback = None

    def __lt__(self, other: Timer) -> bool:
        """Heap order."""
        return self.due < other.due


class Loop:
    """Waits for descriptors, timers and children."""

    def __init__(self, on_bug: Callable[[Exception], None]) -> None:
        """Take over SIGCHLD of this process. on_bug: told what a callback raised."""
        self.on_bug = on_bug
        self.pending_launches = 0
        self._selector = selectors.DefaultSelector()
        self._timers: list[Timer] = []
        self._children: dict[int, Ended] = {}
        self._changes: dict[int, Ended] = {}
        self._unclaimed: dict[int, int] = {}
        self.never_executed: set[int] = set()
        """Children that ended before they executed their program, until somebody takes them out."""
        self._running = True
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        self.watch(self._wake_read, selectors.EVENT_READ, self._woken)

    def watch(self, fd: int, events: int, ready: Ready) -> None:
        """Call `ready` whenever `fd` has one of the events; replaces an earlier watch of it.

        Raises PermissionError for a descriptor that cannot be waited for (a regular file).
        """
        try:
            self._selector.modify(fd, events, ready)
        except KeyError:
            self._selector.register(fd, events, ready)

    def unwatch(self, fd: int) -> None:
        """Stop watching; no error when it was not watched."""
        try:
            self._selector.unregister(fd)
        except (KeyError, ValueError):
            return

    def later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call once, after that time."""
        timer = Timer(time.monotonic() + seconds, callback)
        heapq.heappush(self._timers, timer)
        return timer

    def on_end(self, pid: int, ended: Ended, changed: Ended | None = None) -> None:
        """Call `ended` when the child ends, even if it has already; `changed` when it is stopped
        or continued."""
        self._children[pid] = ended
        if changed is not None:
            self._changes[pid] = changed
        status = self._unclaimed.pop(pid, None)
        if status is not None:
            self.later(0, lambda: self._deliver(pid, status))

    def stop(self) -> None:
        """Let run() return."""
        self._running = False

    def run(self) -> None:
        """Serve until stop()."""
        while self._running:
            for key, mask in self._selector.select(self._wait_s()):
                current = self._selector.get_map().get(key.fd)
                if current is not None:  # an earlier callback of this round may have closed it
                    self._guarded(functools.partial(current.data, mask))
            self._run_due()

    def _wait_s(self) -> float | None:
        while self._timers and self._timers[0].callback is None:
            heapq.heappop(self._timers)
        if not self._timers:
            return None
        return max(0.0, self._timers[0].due - time.monotonic())

    def _run_due(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0].due <= now:
            callback = heapq.heappop(self._timers).callback
            if callback is not None:
                self._guarded(callback)

    def _guarded(self, callback: Callable[[], None]) -> None:
        """A bug in one callback must not end the others' messages."""
        try:
            callback()
        except Exception as error:  # noqa: BLE001
            self.on_bug(error)

    def _woken(self, _mask: int) -> None:
        try:
            os.read(self._wake_read, 4096)
        except BlockingIOError:
            return
        self.reap()

    def reap(self) -> None:
        """Collect every child that ended or stopped."""
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, _WAITED)
            except ChildProcessError:
                break
            if found is None:
                break
            if found.si_code == os.CLD_EXITED and found.si_status != 0:
                self._look_at_zombie(found.si_pid)
            pid, status = os.waitpid(found.si_pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if pid:
                self._deliver(pid, status)
        if not self.pending_launches:
            self.never_executed -= self._unclaimed.keys()
            self._unclaimed.clear()

    def _look_at_zombie(self, pid: int) -> None:
        """A runtime says that a process runs when it is about to execute the program; whether
        it could is only seen on what is left of it."""
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                is_unexecuted = never_executed(file.read())
        except OSError:
            return
        if is_unexecuted:
            self.never_executed.add(pid)

    def _deliver(self, pid: int, status: int) -> None:
        if pid not in self._children:
            self._unclaimed[pid] = status
        elif os.WIFSTOPPED(status) or os.WIFCONTINUED(status):
            if pid in self._changes:
                self._changes[pid](status)
        else:
            self._changes.pop(pid, None)
            self._children.pop(pid)(status)
