"""Kills while agents commit, write settings and conversations: nothing is lost, nothing leaks."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from pathlib import Path

import pytest
from arena import Message, arguments, kill, ours, until
from workshop import Workshop

from conftest import KILLS

SESSIONS = ("one", "two", "three")
ACTORS = (
    "shim", "keeper", "conmon", "init", "podman", "shim and keeper", "carrier", "carrier",
    "carrier and keeper", "stop", "rm",
)  # fmt: skip
FEW = 50
ROUNDS = KILLS if KILLS > FEW else max(1, KILLS // 4)
QUIET_S = 4.0
"""Within this time after a message a keeper has let go of everything."""


class Round:
    """One kill."""

    def __init__(self, shop: Workshop, chance: random.Random, number: int) -> None:
        self.shop, self.arena, self.chance, self.number = shop, shop.arena, chance, number
        self.session, self.other = chance.sample(SESSIONS, 2)
        self.actor = chance.choice(ACTORS)
        self.start = chance.choice(("running", "running", "stopped", "new"))
        if self.actor == "podman" and self.start == "running":
            self.start = "new"
        self.delay_s = chance.uniform(0, 0.8)
        self.mark = f"{number}.{chance.randrange(10**6):06}"
        self.victims: list[str] = []

    def __str__(self) -> str:
        return (
            f"round {self.number}: {self.actor} of {self.session} ({self.start}) "
            f"after {self.delay_s * 1000:.0f} ms, killed {self.victims}"
        )

    def play(self) -> bool:
        """Whether the actor was there to be killed."""
        if self.start == "stopped":
            self.arena.verb("stop", self.session)
        elif self.start == "new":
            self.arena.verb("rm", "--force", self.session)
        with self.shop.owner_at_work():
            bystander = self.shop.start(self.other, self.mark + "9", 10)
            message = self.shop.start(self.session, self.mark)
            was_killed = self._kill(message)
            self._end(message)
            self._follow()
            code, said = bystander.answer(b"")
            bystander.end()
            self.shop.note(self.other, said)
            assert code == 0, f"another session's message ended with {code}"
        until(lambda: not self.shop.litter(), QUIET_S)
        assert self.shop.litter() == []
        # What a message's end did not wait for arrives a little later.
        until(lambda: not self.shop.missing(), QUIET_S)
        wrong = self.shop.wrong()
        assert wrong == [], wrong
        return was_killed

    def _kill(self, message: Message) -> bool:
        time.sleep(self.delay_s)
        if self.actor in ("stop", "rm"):
            words = ("rm", "--force") if self.actor == "rm" else ("stop",)
            return self.arena.verb(*words, self.session).returncode == 0
        if self.actor.startswith("carrier"):
            until(lambda: bool(self.arena.name(self.session)), 5)
            until(lambda: bool(self.arena.keeper(self.arena.name(self.session))), 5)
            name = self.arena.name(self.session)
            with_keeper = self.actor != "carrier"
            killed = self.shop.kill_carrier(name, 5, with_keeper=with_keeper)
            self.victims = [str(pid) for pid in killed]
            return bool(killed)
        until(lambda: bool(self._find(message)) or message.shim.poll() is not None, 1.0)
        victims = self._find(message)
        self.victims = [" ".join(arguments(victim))[:60] for victim in victims]
        killed = [kill(victim) for victim in victims]
        return bool(killed) and all(killed)

    def _find(self, message: Message) -> list[int]:
        name = self.arena.name(self.session)
        shim = [message.shim.pid] if message.shim.poll() is None else []
        if self.actor == "shim":
            return shim
        if not name:
            return []
        if self.actor == "shim and keeper":
            keeper = self.arena.keeper(name)
            return [keeper, *shim] if keeper and shim else []
        found = getattr(self.arena, self.actor)(name)
        return [found] if found else []

    def _end(self, message: Message) -> None:
        """It ends, or its shim is killed too."""
        ends = self.actor in ("carrier", "stop", "rm")
        until(lambda: message.shim.poll() is not None, 10 if ends else 0.3)
        kill(message.shim.pid)
        _, said = message.answer(b"")
        message.end()
        self.shop.note(self.session, said)

    def _follow(self) -> None:
        following = self.shop.follow(self.session, self.mark + ".next")
        code, said = following.answer(b"%d\n" % self.number)
        following.end()
        self.shop.note(self.session, said)
        assert code == 0, f"the next message ended with {code}"
        assert said.endswith(b"\n%d\n" % self.number**2), "the next message's answer is wrong"


def test_kills_while_agents_write_what_the_host_has_too(
    tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(seed)
    before = ours()
    shop = Workshop(tmp_path)
    arena = shop.arena
    kills: dict[str, int] = defaultdict(int)
    began = time.monotonic()
    with capsys.disabled():
        print(f"\n{ROUNDS} kills, --chaos-seed {seed}")
    for number in range(ROUNDS):
        one = Round(shop, chance, number)
        try:
            kills[one.actor] += one.play()
        except BaseException:
            with capsys.disabled():
                print(f"FAILED with --chaos-seed {seed}, {one}\n{dict(kills)}")
                print("\n".join(arena.errors.read_text().splitlines()[-20:]))
                print(arena.log(one.session))
            arena.verb("rm", "--all", "--force")
            raise
    removed = arena.verb("rm", "--all", "--force")
    assert removed.returncode == 0, removed.stderr
    until(lambda: not arena.leftovers(before), 5)
    with capsys.disabled():
        print(f"{dict(kills)}, {(time.monotonic() - began) / ROUNDS:.1f} s each")
    assert arena.leftovers(before) == []
    assert shop.litter() == []
    assert shop.wrong() == []
    names = {path.split("/")[0] for path in shop.git("ls-files").split()} | {".git"}
    names |= {f"file-{session}" for session in SESSIONS}
    assert {path.name for path in shop.project.iterdir()} <= names
    assert list((tmp_path / "state/cagewrap/projects").glob("*")) == []
    assert str(tmp_path) not in Path("/proc/mounts").read_text()
