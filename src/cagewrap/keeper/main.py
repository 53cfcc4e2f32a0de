"""The keeper's process: take over what the shim hands on, shed the rest, serve."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import stat
import time

from cagewrap import __version__, sessions
from cagewrap.errors import KeeperError
from cagewrap.keeper import rights
from cagewrap.keeper.begin import begin, begin_again
from cagewrap.keeper.inheritance import FORMATS, QUESTION, read_inheritance
from cagewrap.paths import Paths, paths_from_env

_PYTHONS_OWN = (signal.SIGPIPE, signal.SIGXFSZ)
"""Ignored by Python itself: a failed write is an OSError."""
_PACKET_BYTES = 1 << 20
"""More than the kernel takes as one packet."""
_LIFTED = (
    resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_DATA, resource.RLIMIT_FSIZE,
    resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC,
)  # fmt: skip


def main(fd: int) -> None:
    """Run a keeper. fd: a socket over which a shim says for which cage (`ahead.Ahead.take`), or a
    keeper asks what this build is good for (`keeper.succession`); or what the keeper that this
    process was until now has left.

    Returns when the cage has stopped, or when the shim has no use for a keeper.
    """
    if stat.S_ISREG(os.fstat(fd).st_mode):
        _go_on(fd)
        return
    _shed_harness()
    with socket.socket(fileno=fd) as shim:
        packet, fds = rights.receive(shim, _PACKET_BYTES, 2)
        if not packet:
            return
        if packet == QUESTION:
            shim.send(_answer())
            return
        name, *variables = map(os.fsdecode, packet.split(b"\0"))
        listener, log = fds
        shim.send(b"k")
    os.environ.clear()
    for variable in variables:
        key, _, value = variable.partition("=")
        os.environ[key] = value
    time.tzset()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    paths = paths_from_env(os.environ, os.getuid())
    lock = _own_lock(paths, name)
    try:
        begun = begin(paths, name)
        from cagewrap.keeper.service import Keeper  # while podman is at work

        Keeper(begun, socket.socket(fileno=listener), lock).run()
    finally:
        os.close(lock)


def _answer() -> bytes:
    """What a keeper may leave to this build, whose files are all there."""
    from cagewrap.keeper import service  # noqa: F401

    return json.dumps({"formats": FORMATS, "version": __version__}).encode()


def _go_on(fd: int) -> None:
    """As the keeper that this process was, which belonged to another build. Signals to stop are
    blocked until somebody listens to them."""
    left = read_inheritance(fd)
    begun = begin_again(paths_from_env(os.environ, os.getuid()), left)
    from cagewrap.keeper.service import Keeper

    Keeper(begun, socket.socket(fileno=left.listener), left.lock, left).run()


def _shed_harness() -> None:
    """Drop what the harness that came first had blocked, ignored or limited: it is not for the
    agents of those that come later, nor for podman."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in signal.valid_signals():
        if number not in _PYTHONS_OWN and signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    for limit in _LIFTED:
        hard = resource.getrlimit(limit)[1]
        resource.setrlimit(limit, (hard, hard))


def _own_lock(paths: Paths, name: str) -> int:
    """Hold the keeper's lock; an earlier keeper that is just leaving is waited for."""
    path = sessions.keeper_lock(paths, name)
    for _ in range(500):
        fd = sessions.try_lock(path)
        if fd is not None:
            return fd
        time.sleep(0.02)
    raise KeeperError(f"Another keeper of {name} does not go away.", f"cagewrap stop {name}")
