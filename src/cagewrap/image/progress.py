"""How far a build is: written down for everyone who waits for it, and shown to each.

A build writes one JSON object a line into a file of the runtime directory. Whoever waits (the
command that builds, and every message that needs the image) follows that file.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

from cagewrap.errors import CagewrapError

Event = dict[str, Any]
"""event: `waiting` (for another build), `step` (with `step`, `steps`, `what`), `output` (with
`line`), `made` (with `image`, `id`, `size_bytes`), or `failed` (with `id`, `message`, `hint`,
`exit_code`); always `elapsed_s`."""
Show = Callable[[Event], None]

_STILL_S = 15.0
"""How often a harness is told that a build goes on."""
_TEXT = 600
"""The characters of a text that a harness is told: escaped, two of them fit into one line of
`protocol.LINE_BYTES`."""


class Progress:
    """Of one build, in the process that builds."""

    def __init__(self, path: str, log: str, show: Show) -> None:
        """path: the file that others follow. log: the build's own words, for a person, kept."""
        self._began = time.monotonic()
        temporary = f"{path}.{os.getpid()}"
        self._events = open(temporary, "w", encoding="utf-8", buffering=1)  # noqa: SIM115
        os.replace(temporary, path)  # who follows an earlier build's sees that it is another
        self._log = open(log, "w", encoding="utf-8", errors="replace", buffering=1)  # noqa: SIM115
        self._show = show
        self.what = ""
        self.tail: list[str] = []
        """The last lines that the running step printed."""

    def close(self) -> None:
        """No more is written."""
        self._events.close()
        self._log.close()

    def step(self, step: int, steps: int, what: str) -> None:
        """A step begins."""
        self.what = what
        self.tail.clear()
        self._write({"event": "step", "step": step, "steps": steps, "what": what})
        self._log.write(f"--- {what}\n")

    def line(self, text: str) -> None:
        """A line that a step's program printed."""
        self._log.write(text + "\n")
        if text.strip():
            self.tail = [*self.tail[-30:], text]
            self._write({"event": "output", "line": text})

    def end(self, **made: object) -> None:
        """The image is made."""
        self._write({"event": "made", **made})

    def fail(self, error: CagewrapError) -> None:
        """The build has failed."""
        self._write(
            {
                "event": "failed",
                "id": error.id,
                "message": error.message,
                "hint": error.hint,
                "exit_code": error.exit_code,
            }
        )

    def _write(self, event: Event) -> None:
        event["elapsed_s"] = round(time.monotonic() - self._began, 1)
        self._events.write(json.dumps(event) + "\n")
        self._show(event)


class Follower:
    """Reads what a build of another process writes."""

    def __init__(self, path: str, *, is_running: bool) -> None:
        """is_running: a build has begun, and the step that it is at is told. One that has ended
        already is not shown."""
        self._path = path
        self._inode = _inode(path)
        self._at = 0 if is_running else _size(path)
        self._is_late = is_running

    def read(self) -> list[Event]:
        """What is new since the last call."""
        inode = _inode(self._path)
        if inode != self._inode:
            self._inode, self._at = inode, 0
        try:
            with open(self._path, "rb") as file:
                file.seek(self._at)
                data = file.read()
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        events = [json.loads(line) for line in whole.splitlines()]
        if self._is_late:
            self._is_late = False
            steps = [at for at, event in enumerate(events) if event["event"] == "step"]
            return events[steps[-1] :] if steps else events
        return events


def for_person(width: Callable[[], int], write: Callable[[str], None]) -> Show:
    """On a terminal: a line for each step, and below it the last that was printed, in place."""

    def show(event: Event) -> None:
        if event["event"] == "output":
            text = f"    {event['elapsed_s']:.0f} s  {_printable(event['line'])}"
            write("\r\x1b[K" + text[: max(width() - 1, 1)])
        elif event["event"] != "failed":
            write(f"\r\x1b[Kcagewrap: {sentence(event)}\n")
        else:
            write("\r\x1b[K")

    return show


def for_log(write: Callable[[str], None]) -> Show:
    """Not on a terminal, for people all the same: a line for each step."""

    def show(event: Event) -> None:
        if event["event"] in ("step", "made", "waiting"):
            write(f"cagewrap: {sentence(event)}\n")

    return show


def for_harness(write: Callable[[str], None]) -> Show:
    """JSON: a line for each step and the end, and one now and then while a step goes on."""
    last = time.monotonic()

    def show(event: Event) -> None:
        nonlocal last
        if event["event"] == "output":
            if time.monotonic() - last < _STILL_S:
                return
            event = {"event": "still", "elapsed_s": event["elapsed_s"]}
        last = time.monotonic()
        short = {k: v[:_TEXT] if isinstance(v, str) else v for k, v in event.items()}
        write(json.dumps({"cagewrap": "image", **short}) + "\n")

    return show


def sentence(event: Event) -> str:
    """A step or the end in words."""
    if event["event"] == "waiting":
        return "another build runs; waiting for its end"
    if event["event"] == "step":
        return f"[{event['step']}/{event['steps']}] {event['what']}"
    size = f"{event['size_bytes'] / 1e6:.0f} MB, " if event.get("size_bytes") else ""
    return f"made the image {event['image']} ({size}{event['elapsed_s']:.0f} s)"


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
