"""A keeper's process, started before it is known which cage it is for.

Its interpreter and imports take as long as finding out the project, the settings and the session,
so both go on side by side. The one place besides `proc` and the keeper's own launcher that starts
a process; it imports next to nothing, since it comes first.
"""

from __future__ import annotations

import _socket
import os
import sys
from collections.abc import Mapping

from cagewrap.builds import Build
from cagewrap.childenv import DEFAULT_PATH, child_environment
from cagewrap.errors import KeeperError

_FD = 3
"""Where the keeper finds its end of the socket."""
_MOST_FDS = 1 << 16
"""What a harness left open lies below this (and costs little to close without close_range)."""
_ANSWER_S = 30.0
"""How long a keeper may take to answer on a machine that is very busy."""
_STOP_S = 10
"""How long the user manager waits for a keeper's scope at logout. podman may start its pause
process anew there while all is being stopped, and that one ends by SIGKILL only (default 90 s)."""


class Ahead:
    """A keeper that waits to be told its cage. It ends by itself when this is closed."""

    def __init__(self) -> None:
        """Start it. It is not a child of ours: harnesses count the children of what they started
        as work in the background, or end them with it."""
        self._socket, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        self._output = open(os.memfd_create("keeper"), "rb", buffering=0)  # noqa: SIM115
        argv = [*_own_scope(), *self_command("keeper", str(_FD))]
        between = os.fork()
        if between == 0:
            _become(argv, theirs.fileno(), self._output.fileno())
        theirs.close()
        os.waitpid(between, 0)

    def __enter__(self) -> Ahead:  # noqa: PYI034 - typing is not for here
        """For `with`: it is closed at the end."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let it go, once or twice; a keeper that was told its cage lives on."""
        self._socket.close()
        self._output.close()

    def take(self, name: str, env: Mapping[str, str], listener: int, log: int) -> None:
        """Make it the keeper of a cage, on that listening socket. Raises KeeperError.

        env: all of its environment. log: where it writes from now on.
        """
        words = [name, *(f"{key}={value}" for key, value in env.items())]
        rights = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (listener, log))
        why = ""
        try:
            self._socket.settimeout(_ANSWER_S)
            self._socket.sendmsg(
                [b"\0".join(map(os.fsencode, words))],
                [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)],
            )
            if self._socket.recv(1):
                return
        except OSError as error:
            why = str(error)
        said = os.pread(self._output.fileno(), 4096, 0).decode(errors="replace").strip()
        os.write(log, f"{said or why}\n".encode())
        raise KeeperError(
            f"The keeper of {name} cannot be started: {said or why or 'it ended at once'}.",
            "cagewrap doctor",
        )


def self_command(*words: str, with_site: bool = False, build: Build | None = None) -> list[str]:
    """The command that runs a hidden verb of this cagewrap's own, or of another build.

    It is the same in every version: a keeper starts programs of builds that are younger than it.
    with_site: what it runs needs packages; without, site-packages is not even looked at.
    """
    is_frozen = getattr(sys, "frozen", False)
    root = "" if is_frozen else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    executable = sys.executable
    if build is not None:
        executable, root = os.fsdecode(build.executable), os.fsdecode(build.root)
    if not root:
        return [executable, "--cagewrap-internal", *words]
    code = (
        f"import sys; sys.path.insert(0, {root!r}); from cagewrap.entry import internal; internal()"
    )
    flags = ("-I",) if with_site else ("-I", "-S")
    return [executable, *flags, "-c", code, *words]


def _become(argv: list[str], connection: int, output: int) -> None:
    """In a fork of ours: go on as `argv` in a session of its own, cwd `/`, no file of ours open."""
    try:
        if os.fork():
            os._exit(0)
        os.setsid()
        os.chdir("/")
        os.umask(0o077)
        null = os.open(os.devnull, os.O_RDWR)
        for fd, place in ((null, 0), (output, 1), (output, 2), (connection, _FD)):
            os.dup2(fd, place)
        os.set_inheritable(_FD, True)  # noqa: FBT003 - it may have been in its place already
        os.closerange(_FD + 1, _MOST_FDS)
        os.execvpe(argv[0], argv, _environment())  # noqa: S606
    except BaseException as error:  # noqa: BLE001 - nothing may escape into the parent's code
        os.write(2, f"{argv[0]}: {error}".encode())
    finally:
        os._exit(127)


def _own_scope() -> tuple[str, ...]:
    """With a user systemd: a scope of the keeper's own, so that stopping the service of the
    harness that came first does not take other sessions' cages along."""
    if not os.path.exists(os.path.join(_runtime_dir(), "systemd", "private")):
        return ()
    return (
        "systemd-run", "--user", "--scope", "--quiet", "--collect",
        "--property", "Delegate=yes",
        "--property", f"TimeoutStopSec={_STOP_S}",
        "--description", "keeper of a cage",
        "--",
    )  # fmt: skip


def _environment() -> dict[str, str]:
    """What systemd-run and a frozen keeper need; the rest comes with the cage. PATH is not the
    owner's: which of its entries an agent can write to is not known yet."""
    bus = os.environ.get("DBUS_SESSION_BUS_ADDRESS")
    kept = {name: value for name, value in os.environ.items() if name.startswith(("_PYI_", "LD_"))}
    kept |= {"DBUS_SESSION_BUS_ADDRESS": bus} if bus else {}
    kept |= {"XDG_RUNTIME_DIR": _runtime_dir(), "LC_ALL": "C.UTF-8"}
    return child_environment(kept | {"PATH": DEFAULT_PATH})


def _runtime_dir() -> str:
    told = os.environ.get("XDG_RUNTIME_DIR", "")
    return told if told.startswith("/") else f"/run/user/{os.getuid()}"
