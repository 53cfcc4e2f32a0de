"""Carrying between a session's git directory and the host's, once."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from cagewrap import proc
from cagewrap.diskspace import full_disks, is_full
from cagewrap.errors import PodmanMissingError
from cagewrap.gitlayout import find_layout, git_store, pair_of
from cagewrap.gitsync.killed import clear_away
from cagewrap.gitsync.pair import Pair, ReplacedError, opened
from cagewrap.gitsync.sync import Outcome, carry, start_anew
from cagewrap.paths import Paths
from cagewrap.sessions import Record

ALONE_S = 3.0
LAST_S = 5.0
"""How long a session that is to be deleted waits for somebody who is at work on the same."""
_LAST_PAUSE_S = 0.1
PACK_S = 3600.0
"""How long git may take to check a pack."""
PACK_CPU_S = (60, 1)
"""The same in processor time: so much, and so much for each MiB of it. A small pack can make long
work; of honest ones a MiB takes less than half a second."""
_MEMORY_BYTES = 4 << 30
"""More than git needs for a pack without a delta of gigabytes."""
_THREADS = 2


def carry_once(pair: Pair, *, may_refill: bool) -> Outcome:
    """One run. What goes wrong is among the states."""
    try:
        with _alone(pair):
            try:
                outcome = carry(pair, index_pack, may_refill=may_refill)
            except ReplacedError:
                start_anew(pair)
                outcome = carry(pair, index_pack)
    except OSError as error:
        outcome = Outcome(states=[f"git's state cannot be carried: {error.strerror or error}"])
        outcome.is_full = is_full(error)
    full = full_disks((pair.host, os.path.dirname(pair.base_file))) if outcome.is_full else ""
    if full:
        outcome.states.append(f"no space is left for git in {full}: it is carried once there is")
    return outcome


def clear_after(pair: Pair) -> None:
    """Clear away what a run that was killed has left, where no other one follows."""
    with contextlib.suppress(OSError), _alone(pair):
        pass


def carry_last(paths: Paths, record: Record) -> str:
    """What a killed keeper has not carried, before a session's directory is deleted. Why it could
    not be, "" if there is nothing left that the owner's repository could take."""
    store = git_store(paths, record.name)
    pair = pair_of(record, find_layout(record.project), store)
    if not pair.host or not os.path.exists(pair.base_file):
        return ""
    deadline = time.monotonic() + LAST_S
    while True:
        try:
            with _alone(pair):
                outcome = carry(pair, index_pack)
        except BlockingIOError:
            outcome = Outcome(states=["it is being carried"], is_busy=True)
        except ReplacedError:
            return ""
        except OSError as error:
            return str(error.strerror) if is_full(error) else ""
        if not outcome.is_busy:
            return ""
        if outcome.is_full or time.monotonic() > deadline:
            return "; ".join(outcome.states) or f"a git is at work in {pair.host}"
        time.sleep(_LAST_PAUSE_S)


@contextmanager
def _alone(pair: Pair) -> Iterator[None]:
    """One run at a time: that of a keeper that has left may be at work on a large pack. What one
    that was killed has left is cleared away. Raises OSError when one still is at work after a
    while."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    fd = os.open(pair.base_file + ".lock", flags, 0o600)
    try:
        deadline = time.monotonic() + ALONE_S
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        if os.fstat(fd).st_size:
            _clear_away(pair)
        with contextlib.suppress(OSError):  # no space is left: there is no harm in going on
            os.pwrite(fd, b"at work", 0)
        yield
        os.ftruncate(fd, 0)
    finally:
        os.close(fd)


def _clear_away(pair: Pair) -> None:
    for path in (pair.host, pair.copy):
        with contextlib.suppress(OSError), opened(path, pair.mark) as side:
            clear_away(side)


def index_pack(path: str, is_sha256: bool) -> bool:  # noqa: FBT001
    """Let the host's git check and index a pack of an agent's, as it does with a fetched one."""
    env = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CEILING_DIRECTORIES": "/",
    }
    kind = "sha256" if is_sha256 else "sha1"
    try:
        size = os.stat(path, follow_symlinks=False).st_size
    except OSError:
        return False
    cpu_s = PACK_CPU_S[0] + PACK_CPU_S[1] * (size >> 20)
    argv = (
        *("prlimit", f"--as={_MEMORY_BYTES}", f"--cpu={cpu_s}", "--core=0"),
        *("git", "index-pack", f"--object-format={kind}", f"--threads={_THREADS}"),
        *(f"--max-input-size={size}", path),
    )
    left_s = signal.alarm(0)  # a large pack takes longer than all else may
    try:
        return proc.capture(argv, timeout_s=PACK_S, env=env).returncode == 0
    except PodmanMissingError:
        return False
    finally:
        signal.alarm(left_s)
