"""How long an agent takes to its first answer: what a harness waits for before every message.

No API and no SDK in it: the agent is started, asked to initialize, and its answer awaited.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

STREAM_JSON = ("--output-format", "stream-json", "--verbose", "--input-format", "stream-json")
INITIALIZE = {
    "type": "control_request",
    "request_id": "first",
    "request": {"subtype": "initialize", "hooks": None},
}
EXIT_S = 30


@dataclass(frozen=True)
class Latency:
    """Seconds to the answer, in pairs taken one after the other."""

    baseline_s: tuple[float, ...]
    measured_s: tuple[float, ...]

    @property
    def added_s(self) -> float:
        """The median of the pairs' differences."""
        pairs = zip(self.baseline_s, self.measured_s, strict=True)
        return statistics.median(measured - baseline for baseline, measured in pairs)

    @property
    def least_added_s(self) -> float:
        """The difference of the quickest: what is left when the machine does nothing else."""
        return min(self.measured_s) - min(self.baseline_s)

    def __str__(self) -> str:
        baseline, measured = (
            statistics.median(side) * 1000 for side in (self.baseline_s, self.measured_s)
        )
        added, least = (seconds * 1000 for seconds in (self.added_s, self.least_added_s))
        return (
            f"initialize: {baseline:.0f} ms, {measured:.0f} ms; "
            f"added {added:+.0f} ms (median of pairs), {least:+.0f} ms (of the quickest)"
        )


def initialize_s(command: Sequence[str | Path], cwd: Path, env: Mapping[str, str]) -> float:
    """Start the agent (its command without arguments), and time its answer."""
    started = time.perf_counter()
    agent = subprocess.Popen(
        [*command, *STREAM_JSON], cwd=cwd, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )  # fmt: skip
    with agent:
        assert agent.stdin is not None
        assert agent.stdout is not None
        agent.stdin.write(json.dumps(INITIALIZE).encode() + b"\n")
        agent.stdin.flush()
        for line in agent.stdout:
            if json.loads(line).get("type") == "control_response":
                break
        else:
            raise AssertionError(f"no answer; exit code {agent.wait()}")
        answered = time.perf_counter()
        agent.stdin.close()
        agent.stdout.read()
        assert agent.wait(EXIT_S) == 0
    return answered - started


def compare(
    baseline: Sequence[str | Path],
    measured: Sequence[str | Path],
    cwd: Path,
    env: Mapping[str, str],
    rounds: int = 9,
) -> Latency:
    """Both once to warm up, then in turns, so that what else the machine does falls on both."""
    for command in (baseline, measured):
        initialize_s(command, cwd, env)
    pairs = [
        (initialize_s(baseline, cwd, env), initialize_s(measured, cwd, env)) for _ in range(rounds)
    ]
    return Latency(tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs))
