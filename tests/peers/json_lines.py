"""A program that is spoken to in lines of JSON, driven as a harness drives it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

Json = dict[str, Any]

ANSWER_S = 60


class JsonLines:
    """The running program, and all that it said until now. It is killed at the end."""

    def __init__(
        self,
        argv: Sequence[str | Path],
        cwd: str | Path,
        env: Mapping[str, str],
        log: Path,
        stderr: int | None = None,
    ) -> None:
        """stderr: where it goes instead of into the log."""
        self.log = log
        self.received: list[Json] = []
        self.is_over = False
        self._news = threading.Condition()
        with log.open("ab") as kept:
            self.process = subprocess.Popen(
                argv,
                cwd=cwd,
                env=os.environ | dict(env),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=kept if stderr is None else stderr,
                text=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self._reader.join()
        with contextlib.suppress(BrokenPipeError), self.process:
            """Closes the pipes."""

    def send(self, message: Json) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def wait_for(self, condition: Callable[[], bool], within_s: float = ANSWER_S) -> bool:
        """Whether it comes true in time, looked at after each line."""
        with self._news:
            return self._news.wait_for(condition, within_s)

    def all(self, **fields: Any) -> list[Json]:
        """The messages with these fields."""
        return [message for message in self.received if fields.items() <= message.items()]

    def expect(self, within_s: float = ANSWER_S, **fields: Any) -> Json:
        """The first message with these fields."""
        self.wait_for(lambda: bool(self.all(**fields)) or self.is_over, within_s)
        found = self.all(**fields)
        assert found, f"no {fields}: {self}"
        return found[0]

    def end(self, within_s: float = 20) -> int:
        """Close its stdin: the status it then ends with."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(within_s)

    def keep(self, message: Json) -> None:
        """Take a message in."""
        self.received.append(message)

    def parse(self, line: str) -> Json | None:
        """What a line says; None for one to be passed over."""
        message: Json = json.loads(line)
        return message

    def __str__(self) -> str:
        return f"status {self.process.poll()}, stderr: {self.log.read_text()[-2000:]}"

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message = self.parse(line)
            if message is None:
                continue
            with self._news:
                self.keep(message)
                self._news.notify_all()
        with self._news:
            self.is_over = True
            self._news.notify_all()
