"""Drives agents as `shrooms-agent` does (github.com/vpavlin/shrooms, internal/agent/proc.go).

One program per harness, started without a shell for each session in the session's directory, with
the daemon's environment and the session's name; three pipes; one process as long as it is in use.
An idle one has its stdin closed, and the next message starts another that resumes by id or file.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from json_lines import Json, JsonLines
from places import arguments

GRACE_S = 10.0
"""How long a process may take after its stdin was closed, before it is killed."""
STDERR_LINE = 64 << 10
"""A line of stderr that is as long ends its reading: the limit of Go's bufio.Scanner."""
STDOUT_LINE = 64 << 20
NOTE = 'You are the agent of session "%s" on the machine here, run by shrooms-agent.'


class Process(JsonLines):
    """A session's process. `noise`: lines of its stdout that are no JSON, which Shrooms drops."""

    def __init__(self, argv: Sequence[str | Path], cwd: Path, env: dict[str, str], log: Path):
        self.noise: list[bytes] = []
        self.stderr_lines: list[bytes] = []
        self.is_deaf = False
        super().__init__(argv, cwd, env, log, stderr=subprocess.PIPE)
        threading.Thread(target=self._scan_stderr, daemon=True).start()

    def stop(self, grace_s: float = GRACE_S) -> int:
        """Ask it to finish, and kill that one pid if it does not; how it ended."""
        try:
            return self.end(grace_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def busy_children(self) -> list[list[str]]:
        """What the watchdog takes for work in the background: children but MCP servers."""
        found: list[list[str]] = []
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                words = arguments(int(child))
                if "mcp" not in " ".join(words):
                    found.append(words)
        return found

    def parse(self, line: str) -> Json | None:
        assert len(line) < STDOUT_LINE
        try:
            value: Json = json.loads(line)
        except ValueError:
            self.noise.append(line.encode())
            return None
        return value

    def _scan_stderr(self) -> None:
        """Line by line; after one that is too long nothing reads on, and the pipe fills."""
        assert self.process.stderr is not None
        stderr = self.process.stderr.buffer  # type: ignore[attr-defined]
        while line := stderr.readline(STDERR_LINE):
            if len(line) == STDERR_LINE:
                self.is_deaf = True
                return
            self.stderr_lines.append(line)
            with self.log.open("ab") as log:
                log.write(line)


@dataclass
class Session:
    """A name, a directory and a harness, and the id that its conversation is resumed by.

    program: what `--claude` or `--pi` names. extra: of `--pi-args`.
    """

    name: str
    directory: Path
    program: Path
    env: dict[str, str]
    log: Path
    auto_approve: bool = True
    mcp: Path | None = None
    extra: Sequence[str] = ()
    resume: str = ""
    running: Process | None = field(default=None, repr=False)

    def arguments(self) -> list[str]:
        raise NotImplementedError

    def start(self) -> Process:
        """The running process; a new one if there is none."""
        if self.running is None:
            env = self.env | {"SHROOMS_AGENT_SESSION": self.name}
            argv = [self.program, *self.arguments()]
            self.running = Process(argv, self.directory, env, self.log)
            self.started(self.running)
        return self.running

    def started(self, process: Process) -> None:
        """What is sent as soon as it runs."""

    def ask(self, text: str) -> str:
        """A turn to its end: what is answered last."""
        raise NotImplementedError

    def become_idle(self) -> int:
        """What happens after half an hour without a message."""
        process, self.running = self.start(), None
        with process:
            return process.end()

    def stop(self, grace_s: float = GRACE_S) -> int:
        """What happens when a person stops, deletes or restarts the session."""
        process, self.running = self.start(), None
        with process:
            return process.stop(grace_s)

    def close(self) -> None:
        """Leave nothing running."""
        if self.running is not None:
            self.stop(grace_s=1)


class Claude(Session):
    def arguments(self) -> list[str]:
        words = ["-p", "--input-format", "stream-json", "--output-format", "stream-json"]
        words += ["--verbose", "--include-partial-messages", "--permission-prompt-tool", "stdio"]
        if self.auto_approve:
            words += ["--dangerously-skip-permissions"]
        if self.resume:
            words += ["--resume", self.resume]
        if self.mcp:
            server = {"command": str(self.mcp), "args": ["mcp"]}
            words += ["--mcp-config", json.dumps({"mcpServers": {"shrooms": server}})]
            words += ["--allowedTools", "mcp__shrooms__list_agents,mcp__shrooms__task_status"]
        return [*words, "--append-system-prompt", NOTE % self.name]

    def begin(self, text: str) -> Process:
        process = self.start()
        process.received.clear()
        process.send({"type": "user", "message": {"role": "user", "content": text}})
        return process

    def ask(self, text: str) -> str:
        process = self.begin(text)
        end = process.expect(type="result")
        assert end["subtype"] == "success", end
        self.resume = process.expect(type="system", subtype="init")["session_id"]
        answer: str = end["result"]
        return answer


class Pi(Session):
    """Resumed by the conversation's file if the daemon finds it, else by its id."""

    def arguments(self) -> list[str]:
        words = ["--mode", "rpc", *self.extra]
        return [*words, "--session", self._file() or self.resume] if self.resume else words

    def started(self, process: Process) -> None:
        process.send({"id": "shrooms-state", "type": "get_state"})
        state = process.expect(type="response", command="get_state")
        self.resume = state["data"]["sessionId"]

    def begin(self, text: str) -> Process:
        process = self.start()
        process.received.clear()
        process.send({"type": "prompt", "message": text})
        return process

    def ask(self, text: str) -> str:
        end: dict[str, Any] = self.begin(text).expect(type="agent_end")
        return "".join(block.get("text", "") for block in end["messages"][-1]["content"])

    def _file(self) -> str:
        found = Path(self.env["HOME"]).glob(f".pi/agent/sessions/*/*_{self.resume}.jsonl")
        return os.fspath(next(found, ""))
