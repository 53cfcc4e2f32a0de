"""The only module that starts processes (the keeper's launcher aside).

Every child gets /dev/null as stdin unless it is told otherwise, and an environment without the
variables of a frozen cagewrap (a bundle's LD_LIBRARY_PATH breaks podman). No program is looked for
in the current directory: that is the project, where an agent may put one of any name.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from cagewrap.errors import PodmanMissingError

_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a finished command left. `returncode` is -N when signal N killed it; 124 on time-out."""

    argv: tuple[str, ...]
    returncode: int
    stdout: bytes
    stderr: str


def child_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The environment for a child of ours: the owner's, less what belongs to a frozen bundle and
    less the entries of PATH that mean another directory wherever one stands."""
    kept = {name: value for name, value in env.items() if not name.startswith("_PYI_")}
    original = kept.pop("LD_LIBRARY_PATH_ORIG", None)
    if original is not None:
        kept["LD_LIBRARY_PATH"] = original
    elif "_PYI_APPLICATION_HOME_DIR" in env:
        kept.pop("LD_LIBRARY_PATH", None)
    return kept | {"PATH": search_path(env)}


def search_path(env: Mapping[str, str], projects: Collection[str] = ()) -> str:
    """The owner's PATH without what an agent can write to.

    An empty or relative entry (`.`, `bin`) would find what an agent has put into the project; so
    would one that lies in a project (`node_modules/.bin`, `.venv/bin`). projects: real paths.
    """
    entries = (entry for entry in env.get("PATH", "").split(":") if entry.startswith("/"))
    kept = [
        entry
        for entry in entries
        if not any(_lies_in(os.path.realpath(entry), project) for project in projects)
    ]
    return ":".join(kept) or _DEFAULT_PATH


def _lies_in(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def capture(
    argv: Sequence[str],
    *,
    timeout_s: float,
    env: Mapping[str, str],
    stdin: bytes = b"",
    cwd: str = "/",
) -> Outcome:
    """Run a command to its end and keep what it printed.

    Raises PodmanMissingError when the program is not there. A command that takes longer than
    `timeout_s` seconds is killed and reported with return code 124.
    """
    try:
        done = subprocess.run(  # noqa: PLW1510 - the caller reads the return code
            list(argv),
            input=stdin,
            capture_output=True,
            timeout=timeout_s,
            cwd=cwd,
            env=child_environment(env),
        )
    except FileNotFoundError as error:
        raise missing_program(argv[0]) from error
    except subprocess.TimeoutExpired as error:
        stderr = (error.stderr or b"").decode(errors="replace")
        return Outcome(tuple(argv), 124, error.stdout or b"", stderr)
    return Outcome(tuple(argv), done.returncode, done.stdout, done.stderr.decode(errors="replace"))


def run(argv: Sequence[str], *, env: Mapping[str, str], cwd: str = "/") -> int:
    """Run a command whose progress a person should see: its stdout goes to our stderr.

    When we are interrupted it is asked to stop, and has ten seconds to clean up after itself.
    """
    try:
        child = subprocess.Popen(
            list(argv), stdin=subprocess.DEVNULL, stdout=2, cwd=cwd, env=child_environment(env)
        )
    except FileNotFoundError as error:
        raise missing_program(argv[0]) from error
    with child:
        try:
            return child.wait()
        except BaseException:
            child.terminate()
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
            raise


def start_detached(
    argv: Sequence[str], *, env: Mapping[str, str], log_fd: int, kept_fds: Sequence[int]
) -> None:
    """Start a process that outlives us: own session, cwd `/`, stdio on /dev/null and `log_fd`.

    `kept_fds` stay open in it under the same numbers. It is not a child of ours: harnesses count
    the children of what they started as work in the background, or end them with it.
    """
    between = os.fork()
    if between == 0:
        try:
            _child = subprocess.Popen(  # kept: one that is let go of while it runs is warned of
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=log_fd,
                stderr=log_fd,
                cwd="/",
                env=child_environment(env),
                start_new_session=True,
                pass_fds=tuple(kept_fds),
                umask=0o077,
            )
        except BaseException as error:  # noqa: BLE001 - nothing may escape into the parent's code
            os.write(log_fd, f"{argv[0]} cannot be started: {error}\n".encode())
        finally:
            os._exit(0)
    os.waitpid(between, 0)


def self_command(*words: str) -> list[str]:
    """The command that runs this cagewrap's own hidden verb, without reading site-packages."""
    if getattr(sys, "frozen", False):
        return [sys.executable, "--cagewrap-internal", *words]
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    code = (
        f"import sys; sys.path.insert(0, {root!r}); from cagewrap.entry import internal; internal()"
    )
    return [sys.executable, "-I", "-S", "-c", code, *words]


def replace(argv: Sequence[str], *, env: Mapping[str, str]) -> None:
    """Become another program."""
    os.execvpe(argv[0], list(argv), child_environment(env))  # noqa: S606


def missing_program(name: str) -> PodmanMissingError:
    """The error for a program that is not on PATH."""
    package = {"nsenter": "util-linux", "newuidmap": "uidmap"}.get(name, name)
    return PodmanMissingError(
        f"{name} is not on PATH, and a cage cannot be made without it.",
        f"sudo apt-get install {package}",
    )
