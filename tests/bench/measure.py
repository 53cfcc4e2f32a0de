"""Timing commands, and figures that compare two of them."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Run:
    """One command from start to end, in milliseconds. cpu: of the process started, and waited for
    by it; noise of the machine hardly reaches it."""

    wall_ms: float
    cpu_ms: float


def run(argv: Sequence[str], cwd: Path, env: Mapping[str, str]) -> Run:
    """Run a command on pipes, as a harness does; its stdin is at its end, its stdout not read."""
    source, unused = os.pipe()
    os.close(unused)
    reader, sink = os.pipe()
    previous = Path.cwd()
    os.chdir(cwd)
    started = time.perf_counter()
    pid = os.posix_spawnp(
        argv[0],
        argv,
        env,
        file_actions=[(os.POSIX_SPAWN_DUP2, source, 0), (os.POSIX_SPAWN_DUP2, sink, 1)],
    )
    _, status, usage = os.wait4(pid, 0)
    wall = time.perf_counter() - started
    os.chdir(previous)
    for fd in (source, reader, sink):
        os.close(fd)
    code = os.waitstatus_to_exitcode(status)
    if code:
        raise SystemExit(f"{' '.join(argv)}: exit code {code}")
    return Run(wall * 1000, (usage.ru_utime + usage.ru_stime) * 1000)


def in_turns(rounds: int, *works: Callable[[], float], pause_s: float = 0.0) -> list[list[float]]:
    """Each of them once per round, A B A B, so that what else the machine does falls on both."""
    taken: list[list[float]] = [[] for _ in works]
    for _ in range(rounds):
        for work, results in zip(works, taken, strict=True):
            time.sleep(pause_s)
            results.append(work())
    return taken


@dataclass(frozen=True)
class Figure:
    """What was measured, against what, and what it should be.

    kind: "ratio" (ours / theirs), "added" (ours - theirs) or "plain" (ours alone); the value is
    the median over the pairs. aim: at most this, or at least it when `higher_is_better`.
    slack: by which factor a busy CI machine may miss the aim. None as aim: for information.
    """

    name: str
    against: str
    unit: str
    ours: list[float]
    theirs: list[float] = field(default_factory=list)
    kind: str = "ratio"
    aim: float | None = None
    slack: float = 1.5
    higher_is_better: bool = False

    @property
    def value(self) -> float:
        if self.kind == "plain":
            return statistics.median(self.ours)
        pairs = zip(self.ours, self.theirs, strict=True)
        if self.kind == "added":
            return statistics.median(ours - theirs for ours, theirs in pairs)
        return statistics.median(ours / theirs for ours, theirs in pairs)

    def meets(self, slack: float = 1.0) -> bool:
        if self.aim is None:
            return True
        if self.higher_is_better:
            return self.value >= self.aim / slack
        return self.value <= self.aim * slack

    @property
    def row(self) -> tuple[str, ...]:
        sign = ">=" if self.higher_is_better else "<="
        value = f"{self.value:.3f}" if self.kind == "ratio" else f"{self.value:+.1f} {self.unit}"
        if self.kind == "plain":
            value = f"{self.value:.1f} {self.unit}"
        aim = "" if self.aim is None else f"{sign} {self.aim:g}"
        verdict = "" if self.aim is None else "met" if self.meets() else "missed"
        return (
            self.name,
            _spread(self.ours),
            self.against,
            _spread(self.theirs),
            value,
            aim,
            verdict,
        )

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "against": self.against,
            "kind": self.kind,
            "unit": self.unit,
            "value": round(self.value, 4),
            "aim": self.aim,
            "higher_is_better": self.higher_is_better,
            "met": self.meets(),
            "met_with_slack": self.meets(self.slack),
            "ours": [round(one, 3) for one in self.ours],
            "theirs": [round(one, 3) for one in self.theirs],
        }


def _spread(samples: Sequence[float]) -> str:
    """Median and, in brackets, the least."""
    if not samples:
        return ""
    return f"{statistics.median(samples):.1f} [{min(samples):.1f}]"


def table(figures: Sequence[Figure]) -> str:
    head = ("", "cagewrap", "against", "", "value", "aim", "")
    rows = [head, *(figure.row for figure in figures)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(head))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


# --- processes of this machine --------------------------------------------------------------------


def ticks(pid: int) -> int:
    """CPU time a process has used, in clock ticks."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def memory_mb(pid: int) -> tuple[float, float]:
    """RSS and PSS, in MB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    sizes = {line.split(":")[0]: int(line.split()[1]) / 1000 for line in lines}
    return sizes["Rss"], sizes["Pss"]


# --- bytes ----------------------------------------------------------------------------------------


def receive_rate(fd: int) -> float:
    """MiB a second from the first byte to the end."""
    buffer = bytearray(1 << 20)
    total = os.readv(fd, [buffer])
    started = time.perf_counter()
    while count := os.readv(fd, [buffer]):
        total += count
    return total / (1 << 20) / (time.perf_counter() - started)


def send_all(fd: int, size: int) -> None:
    chunk = memoryview(bytes(1 << 16))
    while size:
        size -= os.write(fd, chunk[: min(size, len(chunk))])


def ping_pong_us(to: int, back: int, rounds: int) -> float:
    """Median time of one line of 200 bytes there and back."""
    line = b"x" * 199 + b"\n"
    taken = []
    for _ in range(rounds):
        started = time.perf_counter()
        os.write(to, line)
        got = 0
        while got < len(line):
            got += len(os.read(back, 4096))
        taken.append(time.perf_counter() - started)
    return statistics.median(taken) * 1e6
