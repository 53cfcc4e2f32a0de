"""PAGE [STEP]: types a tutorial's commands, from a step on, word for word into a new shell, and
compares what comes back.

A block marked `sh` is typed line by line; one with a title (it needs a login) is not. A block
marked `text` is what the block before it prints: `…` stands for any text, alone on a line for any
lines, and spaces between columns may differ in number. A question that ends with `[y/N] ` is
answered y, as the tutorial says. Runs on a machine that has nothing but Python.
"""

from __future__ import annotations

import os
import pty
import re
import select
import sys
import time
from pathlib import Path

PROMPT = "\x01ready %d\x02"
READY = re.compile(rb"\x01ready (\d+)\x02")
TIMEOUT_S = 900.0
Block = tuple[str, str, list[str]]


def blocks(page: str) -> list[Block]:
    """Of each code block: its language, its title, its lines."""
    found = re.findall(
        r"^```(\w+)(?: title=\"([^\"]*)\")?\n(.*?)^```$", page, re.MULTILINE | re.DOTALL
    )
    return [(language, title, text.splitlines()) for language, title, text in found]


def line_pattern(line: str, substitutes: dict[str, str]) -> str:
    for written, meant in substitutes.items():
        line = re.sub(written, meant, line)
    parts = [re.escape(part) for part in line.rstrip().split("…")]
    return re.sub(r"(\\ )+", r"\\s+", ".*".join(parts)) + r"\s*"


def pattern(lines: list[str], substitutes: dict[str, str]) -> re.Pattern[str]:
    """What the whole output has to match."""
    rows = (
        r"(?:.*\n)*?" if line.strip() == "…" else line_pattern(line, substitutes) + "\n"
        for line in lines
    )
    return re.compile("".join(rows))


class Shell:
    """An interactive bash on a terminal of its own."""

    def __init__(self, directory: Path) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(directory)
            os.environ.update(PS1=r"\001ready $?\002", PS2="", TERM="dumb", PROMPT_COMMAND="")
            os.execvp("bash", ["bash", "--norc", "--noprofile", "--noediting", "-i"])
        self.read()

    def read(self) -> tuple[str, int]:
        """What comes until the next prompt, and the last status."""
        got, deadline, answered = b"", time.monotonic() + TIMEOUT_S, 0
        while not (ready := READY.search(got)):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.fd], [], [], left)[0]:
                raise SystemExit(f"FAILED: no prompt after {TIMEOUT_S:.0f} s; so far:\n{got!r}")
            piece = os.read(self.fd, 65536)
            sys.stdout.buffer.write(piece)
            sys.stdout.flush()
            got += piece
            if got.rstrip(b" ").endswith(b"[y/N]") and len(got) > answered:
                os.write(self.fd, b"y\n")
                answered = len(got) + 8
        text = got[: ready.start()].decode(errors="replace").replace("\r", "")
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text), int(ready[1])

    def type(self, line: str) -> tuple[str, int]:
        os.write(self.fd, line.encode() + b"\n")
        text, status = self.read()
        return text.partition("\n")[2], status  # without the echo


def follow(page: str, directory: Path) -> list[str]:
    user, home = os.environ["USER"], os.environ["HOME"]
    substitutes = {r"/home/you\b": home, r"\byou\b": user}
    failures: list[str] = []
    shell = Shell(directory)
    output, typed = "", ""
    for language, title, lines in blocks(page):
        if language == "sh" and not title:
            output, typed = "", "; ".join(lines)
            for line in lines:
                print(f"\n$ {line}", flush=True)
                text, status = shell.type(line)
                output += text
                if status in range(109, 124):
                    failures.append(f"{line}: exit status {status}")
        elif language == "text" and not pattern(lines, substitutes).fullmatch(output):
            shown = "\n".join(lines)
            failures.append(f"{typed}\n--- the tutorial:\n{shown}\n--- here:\n{output}")
    os.write(shell.fd, b"exit\n")
    os.waitpid(shell.pid, 0)
    return failures


def main(path: str, step: str = "1") -> int:
    began = time.monotonic()
    page = Path(path).read_text()
    failures = follow(page[page.index(f"## {step}. ") :], Path.cwd())
    print(f"\nthe tutorial took {(time.monotonic() - began) / 60:.1f} minutes")
    for failure in failures:
        print(f"FAILED: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
