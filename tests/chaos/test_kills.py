"""Every actor is killed at random moments: nothing of the message stays, the next one is right."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from arena import Arena, Message, arguments, kill, marked, ours, until

from conftest import KILLS

SESSIONS = ("one", "two", "three")
ACTORS = ("shim", "keeper", "conmon", "pause", "init", "podman", "shim and keeper")
GONE_S = 2.0
"""Within this time nothing of a message runs any more."""
DAEMONS = (
    'setsid env -i /bin/sleep "$1" & setsid --fork env -i /bin/sleep "$1"; echo up; exec sleep "$1"'
)
BYSTANDER = (
    'setsid --fork env -i /bin/sleep "$1" </dev/null >/dev/null 2>&1; '
    'read -r word; echo "heard $word"'
)


@dataclass
class Tally:
    """How often each actor was killed, and how long the next answer took at worst."""

    kills: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    missed: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    slowest_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    gone_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def __str__(self) -> str:
        rows = [
            f"  {actor:16} killed {self.kills[actor]:4}   (not there {self.missed[actor]:3})   "
            f"all gone after {self.gone_s[actor]:5.2f} s at most   "
            f"next answer after {self.slowest_s[actor]:5.2f} s at most"
            for actor in ACTORS
        ]
        return "\n".join(rows)


@dataclass
class Round:
    """One kill."""

    arena: Arena
    chance: random.Random
    number: int
    tally: Tally

    def __post_init__(self) -> None:
        self.session = self.chance.choice(SESSIONS)
        self.actor = self.chance.choice(ACTORS)
        # Half of the kills meet a cage that is being made or started.
        self.start = self.chance.choice(("running", "running", "stopped", "new"))
        if self.actor == "podman" and self.start == "running":
            self.start = "new"
        self.delay_s = self.chance.uniform(0, 0.15 if self.start == "running" else 0.5)
        self.mark = f"{90000 + self.number}.{self.chance.randrange(10**6):06}"

        self.victims: dict[int, str] = {}

    def __str__(self) -> str:
        return (
            f"round {self.number}: {self.actor} of {self.session} ({self.start}) "
            f"after {self.delay_s * 1000:.0f} ms, killed {self.victims}"
        )

    def play(self) -> None:
        self._prepare()
        others = [name for name in SESSIONS if name != self.session]
        bystander = self.arena.start(self.chance.choice(others), BYSTANDER, self.mark + "9")
        message = self.arena.start(self.session, DAEMONS, self.mark)
        was_up, was_killed = self._kill(message)
        self._expect_gone(message, must_end=was_up and was_killed)
        began = time.monotonic()
        self._expect_answer()
        self.tally.slowest_s[self.actor] = max(
            self.tally.slowest_s[self.actor], time.monotonic() - began
        )
        assert until(lambda: not marked(self.mark), GONE_S), "the next start left something of it"
        code, said = bystander.answer(b"%d\n" % self.number)
        bystander.end()
        assert (code, said) == (0, b"heard %d\n" % self.number), "another session's message broke"

    def _prepare(self) -> None:
        if self.start == "stopped":
            self.arena.verb("stop", self.session)
        elif self.start == "new":
            self.arena.verb("rm", "--force", self.session)

    def _kill(self, message: Message) -> tuple[bool, bool]:
        """Whether the agent ran already, and whether the actor was there to be killed."""
        time.sleep(self.delay_s)
        victims = self._find(message)
        if not victims:  # not there yet: as soon as it is
            until(lambda: bool(self._find(message)) or message.shim.poll() is not None, 1.0)
            victims = self._find(message)
        was_up = message.has_said(b"up")
        self.victims = {victim: " ".join(arguments(victim))[:70] for victim in victims}
        killed = [kill(victim) for victim in victims]
        was_killed = bool(killed) and all(killed)
        (self.tally.kills if was_killed else self.tally.missed)[self.actor] += 1
        return was_up, was_killed

    def _find(self, message: Message) -> list[int]:
        name = self.arena.name(self.session)
        shim = [message.shim.pid] if message.shim.poll() is None else []
        if self.actor == "shim":
            return shim
        if self.actor == "pause":
            return [pid for pid in (self.arena.pause(),) if pid]
        if not name:
            return []
        if self.actor == "shim and keeper":
            keeper = self.arena.keeper(name)
            return [keeper, *shim] if keeper and shim else []
        found = getattr(self.arena, self.actor)(name)
        return [found] if found else []

    def _expect_gone(self, message: Message, *, must_end: bool) -> None:
        """Nothing of the message runs, at once or, where the kill does not concern it, once its
        shim is killed too."""
        began = time.monotonic()
        if must_end and self.actor in ("shim", "keeper", "init"):
            assert until(lambda: not marked(self.mark), GONE_S), (
                f"still running {GONE_S} s after the kill: {marked(self.mark)}"
            )
            self.tally.gone_s[self.actor] = max(
                self.tally.gone_s[self.actor], time.monotonic() - began
            )
            message.end()
            return
        if self.actor in ("podman", "keeper", "init", "shim and keeper"):
            # It ends with a reason, or the shim finds another keeper and the agent runs. (What it
            # says first can be the agent of the dead keeper, which the shim is about to end.)
            until(lambda: message.shim.poll() is not None, GONE_S)
            ended_or_up = lambda: message.shim.poll() is not None or message.has_said(b"up")  # noqa: E731
            assert until(ended_or_up, 30), "the shim neither ends nor begins"
        kill(message.shim.pid)
        message.end()
        if self.actor == "shim and keeper":
            return  # nobody is left to do it: the next start does
        assert until(lambda: not marked(self.mark), GONE_S), "still running after the shim is gone"

    def _expect_answer(self) -> None:
        following = self.arena.start(self.session, 'read -r a; echo "$((a * a))"')
        answer = following.answer(b"%d\n" % self.number)
        following.end()
        assert answer == (0, b"%d\n" % self.number**2), "the next message's answer is wrong"


def test_kills_at_random_moments(
    tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(seed)
    before = ours()
    arena = Arena(tmp_path)
    tally = Tally()
    with capsys.disabled():
        print(f"\n{KILLS} kills, --chaos-seed {seed}")
    for session in SESSIONS:
        message = arena.start(session, "true")
        message.answer(b"")
        assert message.end() == 0, arena.errors.read_text()
    for number in range(KILLS):
        one = Round(arena, chance, number, tally)
        try:
            one.play()
        except BaseException:
            with capsys.disabled():
                print(f"FAILED with --chaos-seed {seed}, {one}\n{tally}")
                print("\n".join(arena.errors.read_text().splitlines()[-20:]))
                print(arena.log(one.session))
            arena.verb("rm", "--all", "--force")
            raise
    for session in SESSIONS:  # podman itself may have lost its pause process in the last round
        message = arena.start(session, "echo well")
        assert message.answer(b"") == (0, b"well\n"), arena.errors.read_text()[-1000:]
    removed = arena.verb("rm", "--all", "--force")
    assert removed.returncode == 0, removed.stderr
    until(lambda: not arena.leftovers(before), 5)
    with capsys.disabled():
        print(tally)
    assert arena.leftovers(before) == []
