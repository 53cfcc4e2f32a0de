"""How fast cagewrap is, as ratios within one run; docs/reference/benchmark.md says what.

Run by `./check bench` as the unprivileged user of a test host, with the image below.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import measure
from measure import Figure

IMAGE = "localhost/cagewrap-test:latest"
PEERS = Path(__file__).resolve().parents[1] / "peers"
TRANSFER_BYTES = 256 << 20
IDLE_S = 5.0
FROZEN = Path("/opt/cagewrap/frozen")
"""Where a test host has the frozen program (tests/host/enter --frozen)."""
WARM_AIMS = {"source": 0.20, "directory": 0.25, "single": 0.30}
"""Of `podman exec -i`, by kind of the program."""


class Bench:
    """The places and the programs. Sessions are kept apart from the user's own, and removed."""

    def __init__(self, root: Path, cagewrap: str, kind: str, *, quick: bool, runs: int) -> None:
        self.root = root
        self.kind = kind
        self.quick = quick
        self.runs = runs
        self.env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("CAGEWRAP_", "ANTHROPIC_", "CLAUDE"))
        }
        self.env |= {"CAGEWRAP_IMAGE": IMAGE, "XDG_STATE_HOME": str(root / "state")}
        self.cagewrap = cagewrap or self._program()
        self.project = root / "project"
        self.project.mkdir()
        self._count = 0

    def _program(self) -> str:
        """A build of the frozen program, or the program as ./install writes it, for the venv that
        runs this file."""
        if self.kind == "directory":
            return str(FROZEN / "program/cagewrap")
        if self.kind == "single":
            [found] = (FROZEN / "out").glob("cagewrap-*-linux-" + platform.machine())
            return str(found)
        target = str(self.root / "cagewrap")
        subprocess.run([sys.executable, "-m", "cagewrap.launcher", target], check=True)
        return target

    def rounds(self, normal: int, quick: int) -> int:
        return self.runs or (quick if self.quick else normal)

    def cage(self, *words: str, cwd: Path | None = None) -> measure.Run:
        return measure.run([self.cagewrap, "--", *words], cwd or self.project, self.env)

    def verb(self, *words: str) -> str:
        """Run a verb; returns what it prints."""
        argv = [self.cagewrap, *words]
        done = subprocess.run(
            argv, cwd=self.project, env=self.env, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(argv)}: {done.stderr}")
        return done.stdout

    def new_project(self) -> Path:
        self._count += 1
        path = self.root / f"project-{self._count}"
        path.mkdir()
        return path

    def records(self, kind: str) -> list[dict[str, object]]:
        """What is written down: kind is "record" (what a session is) or "state" (its keeper)."""
        found = (self.root / "state/cagewrap/cages").glob(f"*/{kind}.json")
        return [json.loads(path.read_text()) for path in found]

    def record(self, project: Path) -> dict[str, object]:
        return next(one for one in self.records("record") if one["project"] == str(project))

    def container(self) -> str:
        """The name of the project's container, running."""
        self.cage("true")
        return str(self.record(self.project)["name"])

    @contextmanager
    def started(self, argv: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
        """A command on two pipes; ends when its stdin does."""
        with subprocess.Popen(
            argv, cwd=self.project, env=self.env, bufsize=0,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        ) as child:  # fmt: skip
            yield child
        if child.returncode:
            raise SystemExit(f"{' '.join(argv)}: exit code {child.returncode}")


# --- the figures ----------------------------------------------------------------------------------


def warm(bench: Bench) -> list[Figure]:
    """The cage runs; how long one message takes."""
    name = bench.container()
    ours: list[measure.Run] = []

    def message() -> float:
        ours.append(bench.cage("true"))
        return ours[-1].wall_ms

    def podman() -> float:
        argv = ["podman", "exec", "-i", name, "true"]
        return measure.run(argv, bench.project, bench.env).wall_ms

    message(), podman()
    ours.clear()
    caged, direct = measure.in_turns(bench.rounds(40, 12), message, podman, pause_s=0.03)
    return [
        Figure("warm message", "podman exec -i", "ms", caged, direct, aim=WARM_AIMS[bench.kind]),
        Figure("  CPU of the shim", "", "ms", [one.cpu_ms for one in ours], kind="plain"),
    ]


def cold(bench: Bench) -> list[Figure]:
    """No container yet: how long the first message takes."""
    rounds = bench.rounds(10, 4)
    projects = [bench.new_project() for _ in range(rounds + 1)]
    bench.cage("true", cwd=projects[0])
    argv = _podman_run(bench.record(projects[0]))
    measure.run(argv, bench.project, bench.env)
    fresh = iter(projects[1:])
    caged, direct = measure.in_turns(
        rounds,
        lambda: bench.cage("true", cwd=next(fresh)).wall_ms,
        lambda: measure.run(argv, bench.project, bench.env).wall_ms,
        pause_s=0.1,
    )
    names = [str(bench.record(project)["name"]) for project in projects]
    bench.verb("rm", *names)
    return [Figure("cold message", "podman run --rm -i", "ms", caged, direct, aim=1.3, slack=1.3)]


def _podman_run(record: dict[str, object]) -> list[str]:
    """`podman run --rm -i … true` as the container of that session is made, with the same init."""
    given = list(map(str, record["run_args"]))  # type: ignore[call-overload]
    argv: list[str] = []
    at = 0
    while at < len(given):
        word = given[at]
        if word in ("--name", "--pidfile", "--cidfile"):
            at += 2
            continue
        if word == "--detach":
            argv += ["--rm", "--interactive"]
        elif word == "--entrypoint":
            init = json.loads(given[at + 1])[0]
            argv += ["--entrypoint", json.dumps([init, "--"])]
            at += 1
        else:
            argv.append(word)
        at += 1
    return [*argv, "true"]


def transfer(bench: Bench) -> list[Figure]:
    """256 MiB out of the cage and into it, from the first byte to the last."""
    bench.cage("true")
    count = TRANSFER_BYTES >> 16
    source = ["dd", "if=/dev/zero", "bs=64k", f"count={count}", "status=none"]
    sink = ["sh", "-c", "echo ready; exec dd of=/dev/null bs=64k status=none"]
    rounds = bench.rounds(21, 7)

    def out(prefix: Sequence[str]) -> float:
        with bench.started([*prefix, *source]) as child:
            assert child.stdout is not None
            return measure.receive_rate(child.stdout.fileno())

    def into(prefix: Sequence[str]) -> float:
        with bench.started([*prefix, *sink]) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdout.read(6)
            started = time.perf_counter()
            measure.send_all(child.stdin.fileno(), TRANSFER_BYTES)
            child.stdin.close()
            child.stdout.read()
            return (TRANSFER_BYTES >> 20) / (time.perf_counter() - started)

    caged = [bench.cagewrap, "--"]
    figures = []
    for name, work in (("256 MiB out", out), ("256 MiB in", into)):
        ours, native = measure.in_turns(
            rounds, lambda work=work: work(caged), lambda work=work: work([])
        )
        figures.append(
            Figure(
                name,
                "native pipe",
                "MiB/s",
                ours,
                native,
                aim=0.9,
                slack=1.4,
                higher_is_better=True,
            )
        )
    return [*figures, _same_pipe(bench)]


def _same_pipe(bench: Bench) -> Figure:
    """Whether the agent's descriptors are the harness's own pipes: how many of three."""
    pipes = [os.pipe() for _ in range(3)]
    theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
    argv = [bench.cagewrap, "--", "sh", "-c", "readlink /proc/$$/fd/0 /proc/$$/fd/1 /proc/$$/fd/2"]
    wanted = [f"pipe:[{os.fstat(fd).st_ino}]" for fd in theirs]
    subprocess.run(
        argv, cwd=bench.project, env=bench.env, check=True,
        stdin=theirs[0], stdout=theirs[1], stderr=theirs[2],
    )  # fmt: skip
    found = os.read(pipes[1][0], 4096).decode().split()
    for fd in (fd for pair in pipes for fd in pair):
        os.close(fd)
    same = sum(one == other for one, other in zip(found, wanted, strict=True))
    return Figure(
        "same pipes inside", "", "of 3", [same], kind="plain", aim=3, slack=1, higher_is_better=True
    )


def ping_pong(bench: Bench) -> list[Figure]:
    """A line of 200 bytes to `cat` and back."""
    name = bench.container()
    lines = bench.rounds(2000, 500)

    def round_trip(argv: Sequence[str]) -> float:
        with bench.started(argv) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            to, back = child.stdin.fileno(), child.stdout.fileno()
            measure.ping_pong_us(to, back, 50)
            return measure.ping_pong_us(to, back, lines)

    ours, native, podman = measure.in_turns(
        9 if not bench.quick else 5,
        lambda: round_trip([bench.cagewrap, "--", "cat"]),
        lambda: round_trip(["cat"]),
        lambda: round_trip(["podman", "exec", "-i", name, "cat"]),
    )
    return [
        Figure("line ping-pong", "native pipe", "us", ours, native, aim=1.3),
        Figure("  for comparison", "podman exec -i", "us", ours, podman),
    ]


def initialize(bench: Bench) -> list[Figure]:
    """Claude Code from its start to its first answer."""
    sys.path.insert(0, str(PEERS))
    try:
        import claude_agent_sdk
        import initialize as peer
    except ImportError as error:
        print(f"initialize: skipped, {error}", file=sys.stderr)
        return []
    claude = Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude"
    home = bench.root / "home"
    home.mkdir()
    owner = Path.home()
    env = bench.env | {
        "HOME": str(home),
        "XDG_CONFIG_HOME": os.environ.get("XDG_CONFIG_HOME") or str(owner / ".config"),
        "XDG_DATA_HOME": os.environ.get("XDG_DATA_HOME") or str(owner / ".local/share"),
        "ANTHROPIC_API_KEY": "sk-test-dummy",
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:9",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    flags = ["--session", "initialize", "--network", "none", "--mount", str(claude.parent)]
    caged = [bench.cagewrap, *flags, "--", str(claude)]
    latency = peer.compare([claude], caged, bench.project, env, bench.rounds(9, 3))
    bench.verb("rm", "initialize")
    ours, direct = (
        [one * 1000 for one in side] for side in (latency.measured_s, latency.baseline_s)
    )
    return [
        Figure("initialize", "claude itself", "ms", ours, direct, "added", aim=60, slack=2.5),
    ]


def kept(bench: Bench) -> list[Figure]:
    """Many cages kept and stopped, one running."""
    count = 10 if bench.quick else 50
    bench.cage("true")
    for number in range(count):
        flags = ["--session", f"kept-{number}"]
        argv = [bench.cagewrap, *flags, "--", "true"]
        measure.run(argv, bench.project, bench.env)
        bench.verb("stop", f"kept-{number}")
    running = [state for state in bench.records("state") if _is_alive(int(str(state["init_pid"])))]
    assert len(running) == 1, running
    keeper, init = (int(str(running[0][name])) for name in ("keeper_pid", "init_pid"))
    time.sleep(1)
    watched = [keeper, init, _parent(init)]
    before = [measure.ticks(pid) for pid in watched]
    time.sleep(IDLE_S)
    used = [measure.ticks(pid) - old for pid, old in zip(watched, before, strict=True)]
    rss, pss = measure.memory_mb(keeper)
    ls, ps = measure.in_turns(
        bench.rounds(15, 5),
        lambda: measure.run([bench.cagewrap, "ls"], bench.project, bench.env).wall_ms,
        lambda: measure.run(["podman", "ps", "--all"], bench.project, bench.env).wall_ms,
    )
    bench.verb("rm", "--all")
    return [
        Figure("idle CPU in 5 s", "", "ticks", [sum(used)], kind="plain", aim=0, slack=1),
        Figure("keeper RSS", "", "MB", [rss], kind="plain", aim=25, slack=1.1),
        Figure("  PSS", "", "MB", [pss], kind="plain"),
        Figure(f"cagewrap ls, {count + 1} cages", "podman ps -a", "ms", ls, ps, aim=1.5),
    ]


def _is_alive(pid: int) -> bool:
    return pid > 0 and Path(f"/proc/{pid}").exists()


def _parent(pid: int) -> int:
    """conmon, of a container's init."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


FIGURES: dict[str, Callable[[Bench], list[Figure]]] = {
    "warm": warm,
    "cold": cold,
    "transfer": transfer,
    "ping-pong": ping_pong,
    "initialize": initialize,
    "kept": kept,
}


def machine() -> dict[str, object]:
    """What it was measured on."""

    def version(*argv: str) -> str:
        try:
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            return done.stdout.splitlines()[0]
        except (OSError, IndexError):
            return ""

    return {
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "podman": version("podman", "--version"),
        "runtime": version("crun", "--version"),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="figures and all samples as JSON")
    parser.add_argument("--quick", action="store_true", help="fewer runs and fewer cages")
    parser.add_argument("--only", choices=FIGURES, action="append", help="only these; repeatable")
    parser.add_argument("--runs", type=int, default=0, help="how many pairs of each")
    parser.add_argument(
        "--cagewrap", default="", help="the program (default: as ./install does it)"
    )
    parser.add_argument(
        "--kind", choices=WARM_AIMS, default="source",
        help="which aims hold, and which program is taken without --cagewrap",
    )  # fmt: skip
    parser.add_argument(
        "--assert", dest="asserts", action="store_true",
        help="exit status 1 if an aim is missed by more than its slack",
    )  # fmt: skip
    args = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="bench-", dir=Path.home()))
    bench = Bench(root, args.cagewrap, args.kind, quick=args.quick, runs=args.runs)
    found: list[Figure] = []
    try:
        for name in args.only or FIGURES:
            figures = FIGURES[name](bench)
            found += figures
            if not args.json:
                print(measure.table(figures), flush=True)
    finally:
        if bench.records("record"):
            bench.verb("rm", "--all", "--force")
        shutil.rmtree(root)
    if args.json:
        figures_json = [figure.as_json() for figure in found]
        print(json.dumps({"machine": machine(), "figures": figures_json}, indent=1))
    else:
        print(f"\n{machine()}\n\n{measure.table(found)}")
    missed = [figure for figure in found if not figure.meets(figure.slack)]
    for figure in missed:
        print(f"missed by more than its slack: {figure.name}", file=sys.stderr)
    return 1 if args.asserts and missed else 0


if __name__ == "__main__":
    sys.exit(main())
