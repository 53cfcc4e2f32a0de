"""A person at a terminal whose first command builds the image."""

from __future__ import annotations

import signal
import time

import ptyprocess
import pytest

from podman.cages import CAGEWRAP, podman, wait_until

from .benches import NAME, Bench, building, image_id


class Terminal:
    """cagewrap on a terminal of 80 columns."""

    def __init__(self, bench: Bench, *argv: str) -> None:
        self.process = ptyprocess.PtyProcess.spawn(
            [CAGEWRAP, "--network", "none", "--", *argv],
            cwd=str(bench.root / "project"),
            env=bench.env | {"TERM": "xterm"},
            dimensions=(24, 80),
        )
        self.shown = b""

    def read_until(self, text: bytes, within_s: float = 60.0) -> None:
        deadline = time.monotonic() + within_s
        while text not in self.shown:
            assert time.monotonic() < deadline, (text, self.shown)
            self.shown += self.process.read()

    def end(self) -> tuple[int | None, int | None]:
        try:
            while True:
                self.shown += self.process.read()
        except EOFError:
            self.process.wait()
        return self.process.exitstatus, self.process.signalstatus


@pytest.fixture
def no_image(bench: Bench) -> Bench:
    podman("untag", NAME, NAME)
    assert image_id() == ""
    return bench


def test_progress_and_then_the_agent_on_the_terminal(no_image: Bench) -> None:
    no_image.settings('run = ["echo first; sleep 1; echo second"]')
    terminal = Terminal(no_image, "sh", "-c", "test -t 0 && test -t 1 && echo on a terminal")
    assert terminal.end() == (0, None), terminal.shown
    shown = terminal.shown.decode()
    assert "\rcagewrap: [3/3] adding your packages and commands\r\n" in shown.replace("\x1b[K", "")
    assert "s  first" in shown
    assert f"cagewrap: made the image {NAME} (7" in shown
    assert shown.endswith("on a terminal\r\n")
    assert all(len(line) < 80 for part in shown.split("\r\n") for line in part.split("\r\x1b[K"))


def test_ctrl_c_of_the_last_who_waits_ends_the_build(no_image: Bench) -> None:
    no_image.settings('run = ["echo slow; sleep 1234"]')
    one = Terminal(no_image, "true")
    one.read_until(b"slow")
    two = Terminal(no_image, "true")
    two.read_until(b"[3/3]")
    one.process.write(b"\x03")
    assert one.end()[1] == signal.SIGINT
    time.sleep(1)
    assert building()
    two.process.write(b"\x03")
    assert two.end()[1] == signal.SIGINT
    assert wait_until(lambda: not building(), 10)
    assert wait_until(lambda: no_image.left() == [], 10)
