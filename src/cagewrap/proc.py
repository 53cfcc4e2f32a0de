"""The only module that runs commands of the host (`ahead` starts keepers, keepers what they need).

Every child gets /dev/null as stdin unless it is told otherwise, and an environment without the
variables of a frozen cagewrap (a bundle's LD_LIBRARY_PATH breaks podman). No program is looked for
in the current directory: that is the project, where an agent may put one of any name.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from cagewrap.childenv import child_environment
from cagewrap.errors import PodmanMissingError

Child = subprocess.Popen[bytes]
"""A command that runs."""


class Outcome(NamedTuple):
    """What a finished command left. `returncode` is -N when signal N killed it; 124 on time-out."""

    argv: tuple[str, ...]
    returncode: int
    stdout: bytes
    stderr: str


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


def run(
    argv: Sequence[str], *, env: Mapping[str, str], line: Callable[[str], None], cwd: str = "/"
) -> int:
    """Run a command to its end; `line` is called with each line that it prints, as it comes.

    When we are interrupted it is asked to stop, and has ten seconds to clean up after itself.
    """
    try:
        child = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=child_environment(env),
        )
    except FileNotFoundError as error:
        raise missing_program(argv[0]) from error
    with child:
        try:
            for text in child.stdout or ():
                line(text.decode(errors="replace").rstrip())
            return child.wait()
        except BaseException:
            child.terminate()
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
            raise


def start(argv: Sequence[str], *, env: Mapping[str, str], cwd: str, stdin: int) -> Child:
    """Start a command in a session of its own and let it run. What it prints is thrown away."""
    try:
        return subprocess.Popen(
            list(argv),
            stdin=stdin,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=cwd,
            env=child_environment(env),
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise missing_program(argv[0]) from error


def replace(argv: Sequence[str], *, env: Mapping[str, str], cwd: str = "") -> None:
    """Become another program, in `cwd` if one is given, with the signals as a shell leaves them.
    Raises OSError."""
    if cwd:
        os.chdir(cwd)
    ignored = (signal.SIGPIPE, signal.SIGXFSZ)  # by Python
    before = [signal.signal(number, signal.SIG_DFL) for number in ignored]
    try:
        os.execvpe(argv[0], list(argv), child_environment(env))  # noqa: S606
    finally:  # it could not be executed
        for number, handler in zip(ignored, before, strict=True):
            signal.signal(number, handler)


def missing_program(name: str) -> PodmanMissingError:
    """The error for a program that is not on PATH."""
    package = {"nsenter": "util-linux", "newuidmap": "uidmap"}.get(name, name)
    return PodmanMissingError(
        f"{name} is not on PATH, and a cage cannot be made without it.",
        f"sudo apt-get install {package}",
    )
