"""Sessions to kill things in: starting messages, finding the processes behind them, looking for
what is left. Every process that is killed was started, directly or not, by the test."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

IMAGE = "localhost/cagewrap-test:latest"
CAGEWRAP = shutil.which("cagewrap") or str(Path(sys.prefix) / "bin" / "cagewrap")
RUNTIME_DIR = Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}")
CGROUPS = Path("/sys/fs/cgroup")
END_S = 30.0
"""How long a message that must come to its end may take on a busy machine."""


@dataclass
class Message:
    """One `cagewrap -- …` on pipes. mark: what only the processes it starts have in their argv."""

    session: str
    mark: str
    shim: subprocess.Popen[bytes]
    seen: bytes = b""

    def has_said(self, word: bytes) -> bool:
        assert self.shim.stdout is not None
        with contextlib.suppress(BlockingIOError):
            self.seen += os.read(self.shim.stdout.fileno(), 4096)
        return word in self.seen

    def answer(self, text: bytes) -> tuple[int, bytes]:
        """Write a line, and return how it ended and all it said."""
        assert self.shim.stdin is not None
        assert self.shim.stdout is not None
        os.set_blocking(self.shim.stdout.fileno(), True)
        with contextlib.suppress(BrokenPipeError), self.shim.stdin as stdin:
            stdin.write(text)
        self.shim.stdin = None
        out, _ = self.shim.communicate(timeout=END_S)
        return self.shim.returncode, self.seen + out

    def end(self) -> int:
        """Wait for it, and close the pipes."""
        with self.shim:
            return self.shim.wait(END_S)


MADE: list[Arena] = []
"""Those of the test that runs: what a failed one leaves must not fail the next."""


@dataclass
class Arena:
    """A project with several sessions, whose records are kept apart from the user's own."""

    root: Path
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.project = self.root / "project"
        self.project.mkdir()
        self.errors = self.root / "stderr"
        clean = {k: v for k, v in os.environ.items() if not k.startswith("CAGEWRAP_")}
        self.env = clean | {
            "CAGEWRAP_IMAGE": IMAGE,
            "CAGEWRAP_NETWORK": "none",
            "XDG_STATE_HOME": str(self.root / "state"),
        }
        MADE.append(self)

    def start(self, session: str, script: str, mark: str = "-", *words: str) -> Message:
        """Start a shell script in a session; `$1` in it is the mark, then come the words."""
        argv = [CAGEWRAP, "--session", session, "--", "sh", "-c", script, "sh", mark, *words]
        with self.errors.open("ab") as errors:
            shim = subprocess.Popen(
                argv, cwd=self.project, env=self.env, bufsize=0,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            )  # fmt: skip
        assert shim.stdout is not None
        os.set_blocking(shim.stdout.fileno(), False)
        return Message(session, mark, shim)

    def verb(self, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [CAGEWRAP, *words]
        return subprocess.run(
            argv, cwd=self.project, env=self.env, capture_output=True, text=True, timeout=120,
            check=False,
        )  # fmt: skip

    # -- who is who --------------------------------------------------------------------------

    def name(self, session: str) -> str:
        """The container's name; "" as long as the session is not written down."""
        for path in (self.root / "state/cagewrap/cages").glob("*/record.json"):
            with contextlib.suppress(OSError, ValueError):
                record = json.loads(path.read_text())
                if record["session"] == session:
                    return str(record["name"])
        return ""

    def keeper(self, name: str) -> int:
        keepers = (pid for pid in pids() if arguments(pid)[-2:-1] == ["keeper"])
        return next((pid for pid in keepers if has_open(pid, f"/{name}/keeper.lock")), 0)

    def podman(self, name: str) -> int:
        """The command that makes or starts the container; found below the keeper."""
        return first(lambda words: words[:1] == ["podman"] and name in words, self.keeper(name))

    def conmon(self, name: str) -> int:
        return first(lambda words: words[0].endswith("conmon") and name in words)

    def init(self, name: str) -> int:
        """Process 1 of the container, as conmon wrote it down."""
        try:
            pid = int((RUNTIME_DIR / f"cagewrap/{name}.d/init.pid").read_text())
        except (OSError, ValueError):
            return 0
        return pid if arguments(pid)[:1] == ["/dev/cagewrap-init"] else 0

    def pause(self) -> int:
        """podman's own process that keeps the user namespace."""
        for path in (RUNTIME_DIR / "libpod/tmp/pause.pid", RUNTIME_DIR / "libpod/pause.pid"):
            with contextlib.suppress(OSError, ValueError):
                pid = int(path.read_text())
                return pid if arguments(pid)[-1:] in (["-P"], ["pause"]) else 0
        return 0

    # -- what is left ------------------------------------------------------------------------

    def log(self, session: str) -> str:
        found = (self.root / "state/cagewrap/cages").glob(f"{self.name(session) or '-'}/keeper.log")
        return "".join(path.read_text() for path in found)[-3000:]

    def leftovers(self, before: set[int]) -> list[str]:
        """Everything that should be gone once the sessions are removed."""
        found = [f"process {pid}: {arguments(pid)}" for pid in sorted(ours() - before)]
        found = [one for one in found if "catatonit', '-P'" not in one and "'podman'" not in one]
        listed = podman("ps", "--all", "--format", "{{.Names}}", "--filter", "label=cagewrap.name")
        found += [f"container {name}" for name in listed.split()]
        found += [f"cgroup {path}" for path in own_cgroup().glob("cagewrap-*")]
        runtime = RUNTIME_DIR / "cagewrap"
        kept = ("tickets", "session-variables")
        found += [str(path) for path in runtime.glob("*") if path.name not in kept]
        found += [str(path) for path in (self.root / "state/cagewrap/cages").glob("*")]
        with (self.root / "state/cagewrap/registry.lock").open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                found.append("registry.lock is held")
        return found


def podman(*words: str) -> str:
    done = subprocess.run(["podman", *words], capture_output=True, text=True, check=True)
    return done.stdout


def own_cgroup() -> Path:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        if line.startswith("0::"):
            return CGROUPS / line[4:]
    return CGROUPS


def pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def ours() -> set[int]:
    """Every process of this user, and of the users of its containers, that is not a zombie."""
    own_uids = (0, os.getuid()) if os.getuid() == 0 else (os.getuid(),)
    found = set()
    for pid in pids():
        with contextlib.suppress(OSError):
            uid = os.stat(f"/proc/{pid}").st_uid
            if (uid in own_uids or uid >= 100000) and arguments(pid):
                found.add(pid)
    return found


def arguments(pid: int) -> list[str]:
    """A process's argv; empty when it is gone or a zombie."""
    try:
        data = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return data.decode(errors="replace").split("\0")[:-1]


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError):
        return 0


def has_open(pid: int, end: str) -> bool:
    """Whether a process has a file open whose path ends so."""
    for fd in Path(f"/proc/{pid}/fd").glob("*"):
        with contextlib.suppress(OSError):
            if str(fd.readlink()).endswith(end):
                return True
    return False


def first(fits: Callable[[list[str]], bool], below: int = 0) -> int:
    """The pid of a process whose argv fits, a child of `below` if that is given; 0 for none."""
    for pid in pids():
        words = arguments(pid)
        if words and fits(words) and (not below or parent(pid) == below):
            return pid
    return 0


def marked(mark: str) -> list[int]:
    """Processes that a message started, wherever they are now: never a shim."""
    return [
        pid
        for pid in pids()
        if (words := arguments(pid)) and words[-1] == mark and "sleep" in words[0]
    ]


def kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def until(condition: Callable[[], bool], within_s: float) -> bool:
    """Whether it came true in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
