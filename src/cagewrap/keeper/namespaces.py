"""Entering a container's namespaces from the host, as the owner of podman's user namespace."""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import fcntl
import os
import select
import signal
import socket
import stat
import time
from collections.abc import Callable

from cagewrap.keeper import rights

_NS_GET_PARENT = 0xB702  # include/uapi/linux/nsfs.h, _IO(0xb7, 0x2)
_PR_SET_CHILD_SUBREAPER = 36  # include/uapi/linux/prctl.h
_PR_SET_PDEATHSIG = 1
_JOIN_SESSION_KEYRING = 1  # include/uapi/linux/keyctl.h
# arch/*/include/asm/unistd*.h
_KEYCTL = {
    "x86_64": 250, "aarch64": 219, "riscv64": 219, "loongarch64": 219, "armv7l": 311, "i686": 288,
    "ppc64le": 271, "s390x": 280,
}  # fmt: skip
_INSIDE_S = 5.0
"""How long a helper may take inside a container, where an agent may have put a FIFO in its way."""
_ANSWER_BYTES = 1 << 20
_QUESTION_BYTES = 1 << 16

_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Make this process the parent of orphans among its descendants."""
    _call(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))


def leave_session_keyring() -> None:
    """Join a new session keyring: the login's holds keys (kerberos, fscrypt, cifs) that root in
    a cage, being the owner, could read and change. Raises OSError."""
    number = _KEYCTL.get(os.uname().machine)
    if number is None:
        raise OSError(errno.ENOSYS, f"keyctl is not known on {os.uname().machine}")
    if (
        _libc.syscall(number, _JOIN_SESSION_KEYRING, None) < 0
        and ctypes.get_errno() != errno.ENOSYS
    ):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def podman_user_namespace(init_pid: int) -> int:
    """A descriptor of podman's user namespace: the ancestor, one below ours, of the container's.

    Right for the default mapping (the container is in it) and for keep-id (one level further
    down), and independent of podman's pause process. Raises OSError.
    """
    ours = os.stat("/proc/self/ns/user")
    current = os.open(f"/proc/{init_pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    while True:
        parent = fcntl.ioctl(current, _NS_GET_PARENT)
        found = os.fstat(parent)
        if (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino):
            os.close(parent)
            return current
        os.close(current)
        current = parent


def enter(namespace: int) -> None:
    """Enter a namespace by its descriptor. Raises OSError."""
    _call(_libc.setns(namespace, 0))


def run_inside(init_pid: int, kinds: tuple[str, ...], work: Callable[[], bytes]) -> bytes:
    """Do `work` in a child process inside the container's namespaces and return what it returned.

    kinds: names below `/proc/PID/ns` to enter beside the user namespace, such as ("mnt",).
    Raises OSError with the child's text when it failed.
    """

    def inside() -> bytes:
        _enter(init_pid, kinds)
        return work()

    return run_in_child(inside)


def run_in_child(work: Callable[[], bytes]) -> bytes:
    """Do `work` in a child process, which may enter namespaces, and return what it returned.

    Raises OSError with the child's text when it failed.
    """
    return Waiting(lambda _: work()).ask(b"")


class Waiting:
    """A child process that waits for its question, and ends with its answer. Made beforehand, the
    fork costs nothing when it matters. It ends with this process."""

    def __init__(self, work: Callable[[bytes], bytes]) -> None:
        """work: makes the answer, in the child, which may enter namespaces."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._reader, writer = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            ours.close()
            _answer(work, theirs, writer)
        self._process = os.pidfd_open(pid)
        theirs.close()
        os.close(writer)
        self._questions = ours

    def ask(self, question: bytes) -> bytes:
        """The answer to the one question there is. Raises OSError with the child's text when it
        failed, or took too long."""
        with self._questions:
            with contextlib.suppress(OSError):
                self._questions.send(b"?" + question)
            answer = _read_answer(self._reader, time.monotonic() + _INSIDE_S)
        self._end()
        if not answer.startswith(b"+"):
            raise OSError(answer[1:].decode(errors="replace") or "the helper process died")
        return answer[1:]

    def close(self) -> None:
        """There is nothing to ask."""
        self._questions.close()
        os.close(self._reader)
        self._end()

    def _end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._process, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):  # the loop was told of its end
            os.waitid(os.P_PIDFD, self._process, os.WEXITED)
        os.close(self._process)


def _answer(work: Callable[[bytes], bytes], questions: socket.socket, writer: int) -> None:
    try:
        question = questions.recv(_QUESTION_BYTES)
        answer = b"+" + work(question[1:]) if question else b""
    except BaseException as error:  # noqa: BLE001 - nothing may escape into the parent's code
        answer = b"-" + str(error).encode()
    with contextlib.suppress(OSError):
        os.write(writer, answer)
    os._exit(0)


def listen_inside(init_pid: int, port: int) -> socket.socket:
    """A TCP socket listening on 127.0.0.1:`port` of the container's network namespace.

    Nothing is added to the container; the caller stays where it is. Raises OSError.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def work() -> bytes:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
        rights = array.array("i", [listener.fileno()])
        theirs.sendmsg([b"+"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        return b""

    with ours, theirs:
        run_inside(init_pid, ("net",), work)
        _, fds = rights.receive(ours, 1, 1)
    return socket.socket(fileno=fds[0])


def spawn_inside(
    init_pid: int, kinds: tuple[str, ...], kept_fd: int, serve: Callable[[], None]
) -> int:
    """Fork a child that serves inside the container's namespaces for as long as we live.

    It keeps `kept_fd` alone: a copy of a message's descriptors would hide from a harness that
    the agent closed its own. Returns its pid. The child is killed when this process dies.
    """
    pid = os.fork()
    if pid == 0:
        try:
            if kinds:
                _enter(init_pid, kinds)
            os.closerange(3, kept_fd)
            os.closerange(kept_fd + 1, os.sysconf("SC_OPEN_MAX"))
            _call(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
            signal.set_wakeup_fd(-1)
            serve()
        finally:
            os._exit(1)
    return pid


def _read_answer(reader: int, deadline: float) -> bytes:
    """What a helper writes, up to a limit of size and time."""
    answer = b""
    with open(reader, "rb", buffering=0) as file:
        while len(answer) <= _ANSWER_BYTES:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([file], [], [], left)[0]:
                return b"-it took too long"
            chunk = file.read(65536)
            if not chunk:
                break
            answer += chunk
    return answer


def read_regular(path: str) -> bytes:
    """A regular file's content, up to 1 MiB, whatever an agent has put in its place.

    Raises OSError for anything else: a FIFO would block, a device never end.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _ANSWER_BYTES:
            raise OSError(errno.EINVAL, f"{path} is not a file of ordinary size")
        return file.read(_ANSWER_BYTES)


def _enter(init_pid: int, kinds: tuple[str, ...]) -> None:
    """Join the container's user namespace (where it is another one) and the kinds asked for."""
    fds = [os.open(f"/proc/{init_pid}/ns/{kind}", os.O_RDONLY) for kind in kinds]
    user = os.open(f"/proc/{init_pid}/ns/user", os.O_RDONLY)
    if os.fstat(user).st_ino != os.stat("/proc/self/ns/user").st_ino:
        _call(_libc.setns(user, 0))
    for fd in fds:
        _call(_libc.setns(fd, 0))


def _call(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
