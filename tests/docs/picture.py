"""ENTER AGENT OUT: the README's picture of a session that really runs on a test host.

ENTER is tests/host/enter, AGENT a directory with the program claude, OUT the SVG to write. Commands
are typed into a shell on a terminal, and what stands there in the end is drawn, text as text.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path

import ptyprocess
import pyte

COLUMNS, ROWS = 112, 60
PROMPT = "$ "
PREPARE = """
podman tag localhost/cagewrap-test:latest localhost/cagewrap:latest
mkdir -p -m 700 ~/.config ~/.ssh ~/shop
printf '[login]\\nmode = "none"\\n' >~/.config/cagewrap.toml
echo key >~/.ssh/id_ed25519
cd ~/shop
PS1='$ ' TIMEFORMAT='%3R seconds'
export PATH=$PATH:/agent
clear
"""
SESSION = (
    "cagewrap -- sh -c 'id -un; pwd; ls ~'",
    "cagewrap -- cat ~/.ssh/id_ed25519",
    "cagewrap -- touch made-inside; ls -l made-inside",
    "cagewrap -- claude --version",
    "cagewrap -- sh -c 'echo evil > .envrc; sleep 1'",
    "time cagewrap -- true",
    "time podman exec $(podman ps --quiet) true",
    "cagewrap ls",
)
CHARACTER, LINE, GAP, MARGIN = 7.8, 18, 6, 16
"""Pixels: width of a character, height of a line, space between commands, and around all."""
FONT = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"
STYLE = f"""
text {{ font: 13px {FONT}; fill: #c9d1d9; white-space: pre }}
.prompt {{ fill: #39c5bb }} .typed {{ fill: #ffffff; font-weight: bold }}
"""


class Terminal:
    """A shell of a test host, and what is on its screen."""

    def __init__(self, enter: str, agent: str) -> None:
        command = [enter, "--suite", "bookworm", "--fresh", "--home", "picture"]
        command += ["--bind", f"{agent}:/agent", "--", "bash", "--norc", "--noediting"]
        self.screen = pyte.Screen(COLUMNS, ROWS)
        self.stream = pyte.ByteStream(self.screen)
        self.process = ptyprocess.PtyProcess.spawn(command, dimensions=(ROWS, COLUMNS))
        self.wait("$ ")

    def wait(self, end: str) -> None:
        """Until the line that the cursor is in is the prompt."""
        while not self.line().endswith(end.rstrip()) or self.screen.cursor.x < len(end):
            self.stream.feed(self.process.read(65536))

    def line(self) -> str:
        return self.screen.display[self.screen.cursor.y].rstrip()

    def type(self, text: str) -> None:
        self.process.write(text.encode() + b"\n")
        began = self.screen.cursor.y
        while self.screen.cursor.y == began:
            self.stream.feed(self.process.read(65536))

    def run(self, command: str) -> tuple[int, int]:
        """Run it; the first and the last row of it and its output."""
        first = self.screen.cursor.y
        self.type(command)
        while self.line() != PROMPT.rstrip():
            self.stream.feed(self.process.read(65536))
        return first, self.screen.cursor.y - 1


def record(enter: str, agent: str) -> list[list[str]]:
    """For each command: its line, and those that it printed."""
    terminal = Terminal(enter, agent)
    for line in PREPARE.strip().splitlines():
        terminal.process.write(line.encode() + b"\n")
    while terminal.line() != PROMPT.rstrip() or terminal.screen.cursor.y:
        terminal.stream.feed(terminal.process.read(65536))
    spans = [terminal.run(command) for command in SESSION]
    rows = [line.rstrip() for line in terminal.screen.display]
    terminal.process.write(b"cagewrap rm\nexit\n")
    terminal.process.wait()
    return [rows[first : last + 1] for first, last in spans]


def draw(blocks: list[list[str]]) -> Iterator[str]:
    height = 2 * MARGIN + LINE * sum(map(len, blocks)) + GAP * (len(blocks) - 1)
    width = round(2 * MARGIN + CHARACTER * COLUMNS)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img">'
    )
    yield f"<title>A session in a terminal</title><style>{STYLE}</style>"
    yield f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117" stroke="#30363d"/>'
    y = MARGIN + 13
    for lines in blocks:
        for row, line in enumerate(lines):
            yield text(line, y, is_command=row == 0)
            y += LINE
        y += GAP
    yield "</svg>"


def text(line: str, y: int, *, is_command: bool) -> str:
    """One line. Its length is given, so that columns stand below each other in any font."""
    shown = escape(line, quote=False)
    if is_command:
        shown = f'<tspan class="prompt">$ </tspan><tspan class="typed">{shown[2:]}</tspan>'
    length = round(len(line) * CHARACTER, 1)
    return f'<text x="{MARGIN}" y="{y}" textLength="{length}" xml:space="preserve">{shown}</text>'


def main(enter: str, agent: str, out: str) -> int:
    blocks = record(enter, agent)
    for line in (line for lines in blocks for line in lines):
        print(line)
    Path(out).write_text("\n".join(draw(blocks)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
