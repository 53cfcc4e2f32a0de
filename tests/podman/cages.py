"""One owner's cages in a test: commands run in them, looked at from the host, and nothing left."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

IMAGE = "localhost/cagewrap-test:latest"
PROGRAMS = Path(__file__).resolve().parent.parent / "programs"
CAGEWRAP = shutil.which("cagewrap") or str(Path(sys.prefix) / "bin/cagewrap")
RUNTIME_DIR = Path(os.environ.get("XDG_RUNTIME_DIR", "/nowhere"))
TIMEOUT_S = 30.0
IDENTITIES = ("root", "owner")
RUNTIMES = ("crun", "runc")
GONE_S = 2.0
"""Within this, all that a message started is gone."""

Word = str | bytes | Path


@dataclass(frozen=True)
class Done:
    """How a command ended: its code (-N: by signal N) and what it wrote."""

    code: int
    out: bytes
    err: bytes


@dataclass(frozen=True)
class Place:
    """Directories of one test: state and configuration of its own, podman's storage shared."""

    root: Path

    def make(self) -> None:
        self.project.mkdir(parents=True)
        self.config_home.mkdir()
        containers = Path.home() / ".config/containers"
        if containers.is_dir():
            shutil.copytree(containers, self.config_home / "containers")

    @property
    def project(self) -> Path:
        return self.root / "project"

    @property
    def config_home(self) -> Path:
        return self.root / "config"

    @property
    def state_home(self) -> Path:
        return self.root / "state"


class Shim(subprocess.Popen[bytes]):
    """A command in a cage, as seen from outside; a test that fails does not wait for it."""

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None:
            self.kill()
            for stream in (self.stdin, self.stdout, self.stderr):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()
        super().__exit__(kind, *rest)


class Cage:
    """The cages of one place. Most tests make one only, in its project without a session name."""

    program = CAGEWRAP
    """What the commands are given to."""

    def __init__(self, root: Path, *flags: str) -> None:
        """flags: of every command, after those that make a cage cheap."""
        self.place = Place(root)
        self.place.make()
        self.project = self.place.project
        self.flags = ("--image", IMAGE, "--network", "none", "--mount", str(PROGRAMS), *flags)
        self.env = {
            "HOME": str(Path.home()),
            "USER": "tester",
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "XDG_RUNTIME_DIR": str(RUNTIME_DIR),
            "XDG_STATE_HOME": str(self.place.state_home),
            "XDG_CONFIG_HOME": str(self.place.config_home),
        }

    # -- commands ----------------------------------------------------------------------------------

    def command(self, *flags: str) -> list[Word]:
        """What stands before an agent's command."""
        return [self.program, *self.flags, *flags, "--"]

    def popen(
        self,
        *argv: Word,
        flags: tuple[str, ...] = (),
        env: Mapping[str | bytes, str | bytes] | None = None,
        cwd: Path | None = None,
        **options: Any,
    ) -> Shim:
        """Start a command in the cage. env: added to the place's own."""
        return Shim(
            [*self.command(*flags), *argv],
            cwd=cwd or self.project,
            env=self.env | dict(env or {}),  # type: ignore[operator]
            **options,
        )

    def run(
        self, *argv: Word, stdin: bytes | int = b"", timeout_s: float = TIMEOUT_S, **options: Any
    ) -> Done:
        """Run a command in the cage to its end. stdin: what it reads, or a descriptor."""
        is_bytes = isinstance(stdin, bytes)
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        source = subprocess.PIPE if is_bytes else stdin
        with self.popen(*argv, stdin=source, **options) as process:
            try:
                out, err = process.communicate(stdin if is_bytes else None, timeout=timeout_s)
            except BaseException:
                process.kill()
                raise
        return Done(process.returncode, out or b"", err or b"")

    def text(self, *argv: Word, **options: Any) -> str:
        """What a command that must end well writes to stdout."""
        done = self.run(*argv, **options)
        assert done.code == 0, (done.code, done.err.decode(errors="replace"), self.logs())
        return done.out.decode(errors="surrogateescape")

    def cagewrap(self, *words: str) -> Done:
        """One of cagewrap's own verbs."""
        done = subprocess.run(
            [self.program, *words],
            cwd=self.project, env=self.env, stdin=subprocess.DEVNULL, capture_output=True,
            timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
        return Done(done.returncode, done.stdout, done.stderr)

    # -- what there is -----------------------------------------------------------------------------

    @property
    def cages_dir(self) -> Path:
        return self.place.state_home / "cagewrap/cages"

    def names(self) -> list[str]:
        """The sessions of this place, by the names of their containers."""
        found = self.cages_dir.iterdir() if self.cages_dir.is_dir() else ()
        return sorted(path.name for path in found)

    def name(self) -> str:
        """The name of the one session."""
        [name] = self.names()
        return name

    def record(self, name: str = "") -> dict[str, Any]:
        found: dict[str, Any] = read_json(self.cages_dir / (name or self.name()) / "record.json")
        return found

    def state(self, name: str = "") -> dict[str, Any]:
        """What the keeper wrote down; empty when it never did."""
        return read_json(self.cages_dir / (name or self.name()) / "state.json")

    def private_home(self, name: str = "") -> Path:
        return self.cages_dir / (name or self.name()) / "home"

    def log(self, name: str = "") -> str:
        return (self.cages_dir / (name or self.name()) / "keeper.log").read_text()

    def logs(self) -> list[str]:
        """What the keepers of this place wrote, for a failure's text."""
        return [read_bytes(path).decode() for path in self.cages_dir.glob("*/keeper.log")]

    def keeper(self, name: str = "") -> int:
        """The pid of the keeper; 0 when there is none."""
        found = keepers(name or self.name())
        assert len(found) <= 1, f"more than one keeper: {found}"
        return found[0] if found else 0

    def init(self, name: str = "") -> int:
        """The host pid of the container's init; 0 when it does not run."""
        pid = int(self.state(name).get("init_pid", 0))
        return pid if pid and b"cagewrap-init" in read_bytes(f"/proc/{pid}/cmdline") else 0

    def container(self, name: str = "") -> dict[str, Any]:
        """What podman knows of the container; empty when there is none."""
        done = podman("container", "inspect", name or self.name())
        found: dict[str, Any] = json.loads(done.stdout)[0] if done.returncode == 0 else {}
        return found

    def inside_pids(self, name: str = "") -> list[int]:
        """Host pids of what runs in the cage, without its init."""
        init = self.init(name)
        return pids_of_namespace(init) if init else []

    def agents(self, name: str = "") -> list[int]:
        """Those that the keeper started: the agents of messages, without what they started."""
        keeper = self.keeper(name)
        return [pid for pid in self.inside_pids(name) if parent(pid) == keeper]

    def inside_programs(self, word: str, name: str = "") -> list[int]:
        """Those with `word` among their arguments."""
        wanted = word.encode()
        return [
            pid
            for pid in self.inside_pids(name)
            if wanted in read_bytes(f"/proc/{pid}/cmdline").split(b"\0")
        ]

    # -- the end -----------------------------------------------------------------------------------

    def stop(self, name: str = "") -> None:
        """Let the keeper stop its cage, and wait until it is gone."""
        pid = self.keeper(name)
        if pid:
            os.kill(pid, signal.SIGTERM)
            assert wait_until(lambda: not is_alive(pid), 15), f"keeper {pid} does not end"

    def stop_all(self) -> None:
        for name in self.names():
            self.stop(name)

    def remove(self) -> None:
        """Remove every cage of this place and see that nothing is left of any."""
        names = self.names()
        left: list[str] = []
        for name in names:
            inside = self.inside_pids(name)
            try:
                self.stop(name)
            finally:
                kill_keepers(name)
            left += [f"process {pid}: {command_line(pid)}" for pid in inside if is_alive(pid)]
            left += leftovers(name)
            podman("rm", "--force", "--volumes", "--time", "0", name)
            if podman("container", "exists", name).returncode == 0:
                left.append(f"container {name}")
        shutil.rmtree(self.place.state_home, ignore_errors=True)
        assert left == []


# --- what is left of a cage ---------------------------------------------------------------------


def leftovers(name: str) -> list[str]:
    """All of a cage that is not running and that should be gone then."""
    found = [f"keeper {pid}" for pid in keepers(name)]
    found += [f"cgroup {path}" for path in cgroups_of(name)]
    runtime = RUNTIME_DIR / "cagewrap"
    found += [
        str(path) for path in (runtime / f"{name}.sock", runtime / f"{name}.d") if path.exists()
    ]
    return found


def keepers(name: str) -> list[int]:
    """Pids of the keepers of a cage."""
    found = [
        pid
        for pid in all_pids()
        if read_bytes(f"/proc/{pid}/cmdline").split(b"\0")[-3:-2] == [b"keeper"]
        and has_open(pid, f"/{name}/keeper.lock")
    ]
    # Those that carry its ports are children of it.
    return [pid for pid in found if parent_of(pid) not in found]


def has_open(pid: int, end: str) -> bool:
    """Whether a process has a file open whose path ends so."""
    for fd in Path(f"/proc/{pid}/fd").glob("*"):
        with contextlib.suppress(OSError):
            if str(fd.readlink()).endswith(end):
                return True
    return False


def kill_keepers(name: str) -> None:
    for pid in keepers(name):
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda pid=pid: not is_alive(pid), 5)  # type: ignore[misc]


def own_cgroup() -> Path:
    line = Path("/proc/self/cgroup").read_text().splitlines()[-1]
    return Path("/sys/fs/cgroup") / line.removeprefix("0::").lstrip("/")


def cgroups_of(name: str) -> list[Path]:
    """A cage's cgroups below that of the test run."""
    return [path for path in own_cgroup().rglob(name) if path.is_dir()]


def podman(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["podman", *words], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


# --- processes ----------------------------------------------------------------------------------


def all_pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def pids_of_namespace(init: int) -> list[int]:
    """Every process in the pid namespace of `init` but itself, zombies left out."""
    wanted = link(init, "ns/pid")
    return [pid for pid in all_pids() if pid != init and link(pid, "ns/pid") == wanted != ""]


def link(pid: int, name: str) -> str:
    """What a link in /proc/PID points to; "" for one that is gone."""
    try:
        return os.readlink(f"/proc/{pid}/{name}")
    except OSError:
        return ""


def process_state(pid: int) -> str:
    """R, S, T, Z …; "" for one that is gone."""
    return read_bytes(f"/proc/{pid}/stat").rpartition(b")")[2][1:2].decode()


def parent(pid: int) -> int:
    fields = read_bytes(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return int(fields[1]) if fields else 0


def parent_of(pid: int) -> int:
    """The parent's pid; 0 for a process that is gone."""
    fields = read_bytes(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return int(fields[1]) if fields else 0


def is_alive(pid: int) -> bool:
    return process_state(pid) not in ("", "Z", "X")


def command_line(pid: int) -> str:
    return read_bytes(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode(errors="replace")


def read_bytes(path: str | Path) -> bytes:
    """A file's content; empty for one that cannot be read."""
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def read_json(path: Path) -> dict[str, Any]:
    content = read_bytes(path)
    found: dict[str, Any] = json.loads(content) if content else {}
    return found


def wait_until(condition: Callable[[], object], within_s: float) -> bool:
    """Whether it came true in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def seconds_until(condition: Callable[[], object], within_s: float) -> float:
    """How long it took to come true; fails when it did not in time."""
    began = time.monotonic()
    assert wait_until(condition, within_s), f"not within {within_s} s"
    return time.monotonic() - began
