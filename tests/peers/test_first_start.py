"""A first start on a terminal: the prompt, and no question before it."""

from __future__ import annotations

import json
import os
import re
import select
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import places
import pytest
from mock_api import MockApi
from places import Caged, Direct, Place, wait_until
from ptyprocess import PtyProcess

WAIT_S = 15
CONTROL = re.compile(
    r"\x1b\[[0-9;?<>=]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b.|[\s\x00]+"
)
ENTER = b"\r"


class Screen:
    """A program on a terminal; what it has shown so far, without blanks and colours."""

    def __init__(self, argv: Sequence[str | Path], place: Place) -> None:
        env = os.environ | place.env | {"TERM": "xterm-256color"}
        self._process: Any = PtyProcess.spawn(
            [str(word) for word in argv], cwd=str(place.project), env=env, dimensions=(50, 120)
        )
        self._raw = b""
        self._place = place

    @property
    def text(self) -> str:
        return CONTROL.sub("", self._raw.decode(errors="replace"))

    def until(self, *texts: str) -> str:
        """Which of the texts is shown first."""

        def shown() -> str:
            return next((text for text in texts if text.replace(" ", "") in self.text), "")

        assert self.watch(shown, WAIT_S), f"none of {texts} in {self.text[-3000:]!r}"
        return shown()

    def watch(self, condition: Callable[[], object], within_s: float) -> bool:
        """Look on until something is so; whether it came to be."""
        deadline = time.monotonic() + within_s
        while not condition() and time.monotonic() < deadline:
            if select.select([self._process.fd], [], [], 0.05)[0]:
                try:
                    self._raw += os.read(self._process.fd, 65536)
                except OSError as error:
                    raise AssertionError(f"it ended: {self.text[-3000:]!r}") from error
        return bool(condition())

    def type(self, keys: bytes) -> None:
        """Not so fast that it looks like a paste."""
        os.write(self._process.fd, keys)
        self.watch(lambda: False, 0.5)

    def close(self) -> None:
        self._process.close(force=True)
        assert wait_until(lambda: not self._place.processes(), WAIT_S)


PROMPT = "(shift+tab to cycle)"
QUESTIONS = (
    "Choose the text style", "Do you trust", "trust this folder", "Yes, I accept",
    "Detected a custom API key", "Select login method", "Unable to connect to Anthropic",
)  # fmt: skip


@pytest.fixture
def screens() -> Iterator[list[Screen]]:
    opened: list[Screen] = []
    yield opened
    for screen in opened:
        screen.close()


def start(screens: list[Screen], place: Place, *args: str) -> Screen:
    screens.append(Screen([*place.prefix, places.CLAUDE, *args], place))
    return screens[-1]


def answers(screen: Screen, api: MockApi) -> None:
    """It shows the prompt, asks nothing first, and sends what is typed there."""
    assert screen.until(PROMPT, *QUESTIONS) == PROMPT
    screen.type(b"hello there")
    screen.type(ENTER)
    # It draws around its own moving picture, so the answer is not looked for on the screen.
    assert screen.watch(lambda: any(m.prompt.endswith("hello there") for m in api.messages), WAIT_S)


@pytest.fixture(params=[False, True], ids=["no-claude-on-the-host", "claude-on-the-host"])
def owner(request: pytest.FixtureRequest, env: dict[str, str]) -> Path:
    home = Path(env["HOME"])
    if request.param:
        (home / ".claude/agents").mkdir(parents=True)
        (home / ".claude/agents/keeper.md").write_text(
            "---\nname: birder\ndescription: knows birds\n---\nYou know birds.\n"
        )
    return home


def test_directly_there_are_questions(direct: Direct, screens: list[Screen]) -> None:
    """Which shows that the tests below are right."""
    assert start(screens, direct).until(PROMPT, *QUESTIONS) in QUESTIONS


def test_the_prompt_comes_at_once(
    caged: Caged, api: MockApi, owner: Path, screens: list[Screen]
) -> None:
    answers(start(screens, caged), api)
    assert api.messages[-1].api_key == caged.env["ANTHROPIC_API_KEY"]


def test_the_prompt_comes_at_once_without_permissions(
    caged: Caged, owner: Path, api: MockApi, screens: list[Screen]
) -> None:
    answers(start(screens, caged, "--dangerously-skip-permissions"), api)


@pytest.mark.parametrize("owner", [True], indirect=True)
def test_the_prompt_comes_at_once_with_an_agent_of_the_owners(
    caged: Caged, owner: Path, api: MockApi, screens: list[Screen]
) -> None:
    answers(start(screens, caged, "--agent", "birder"), api)
    assert "You know birds." in api.messages[-1].system


def test_the_prompt_comes_at_once_with_a_token(
    caged: Caged, owner: Path, api: MockApi, screens: list[Screen]
) -> None:
    del caged.env["ANTHROPIC_API_KEY"]
    caged.env["CLAUDE_CODE_OAUTH_TOKEN"] = "sk-ant-oat01-test"
    answers(start(screens, caged), api)
    assert api.messages[-1].authorization == "Bearer sk-ant-oat01-test"


def test_in_a_directory_below_the_project_too(
    caged: Caged, owner: Path, api: MockApi, screens: list[Screen]
) -> None:
    below = caged.project / "below"
    below.mkdir()
    prefix = (*caged.prefix[:-1], "--project", str(caged.project), "--")
    answers(start(screens, Caged(prefix, caged.shim, below, caged.env)), api)


def test_what_claude_wrote_is_kept(caged: Caged, owner: Path) -> None:
    """The next message adds what is missing and changes nothing."""
    assert caged.claude("-p", "--", "hello").returncode == 0
    script = "cat ~/.claude.json && rm -f ~/.claude.json.lock"
    before = json.loads(caged.run("sh", "-c", script).stdout)
    assert before["hasCompletedOnboarding"] is True
    assert before["userID"]
    caged.put_in_home(".claude.json", json.dumps(before | {"theme": "light", "x": 1}))
    caged.run("true")
    assert caged.claude("-p", "--", "hello").stderr == b""
    after = json.loads(caged.run("sh", "-c", script).stdout)
    assert after["theme"] == "light"
    assert after["x"] == 1


@pytest.mark.parametrize("owner", [True], indirect=True)
@pytest.mark.parametrize("content", ["{", "[]", "null", '"x"', "x" * 100])
def test_a_corrupt_state_is_left_alone(caged: Caged, owner: Path, content: str) -> None:
    assert caged.run("true").returncode == 0
    caged.put_in_home(".claude.json", content)
    caged.cagewrap("stop")
    done = caged.run("cat", Path(caged.env["HOME"]) / ".claude.json")
    assert done.stdout.decode() == content
    assert done.stderr == b""
