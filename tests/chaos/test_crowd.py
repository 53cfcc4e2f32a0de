"""Many first messages at once: one container, and every one gets its own answer."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from arena import Arena, ours, podman, until

from conftest import KILLS

SHIMS = 20
ROUNDS = max(1, KILLS // 2)


def test_twenty_shims_for_a_session_that_does_not_exist_yet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = ours()
    arena = Arena(tmp_path)
    slowest = 0.0
    for number in range(ROUNDS):
        session = f"crowd-{number}"
        began = time.monotonic()
        crowd = [arena.start(session, 'read -r a; echo "$((a * a))"') for _ in range(SHIMS)]
        for at, message in enumerate(crowd):
            answer = message.answer(b"%d\n" % at)
            message.end()
            assert answer == (0, b"%d\n" % at**2), (
                f"round {number}, shim {at}: {arena.errors.read_text()[-2000:]}{arena.log(session)}"
            )
        slowest = max(slowest, time.monotonic() - began)
        listed = podman("ps", "--all", "--quiet", "--filter", f"label=cagewrap.session={session}")
        assert len(listed.split()) == 1
        removed = arena.verb("rm", session)
        assert removed.returncode == 0, removed.stderr
    with capsys.disabled():
        print(f"\n{ROUNDS} rounds of {SHIMS} shims; the slowest took {slowest:.1f} s")
    until(lambda: not arena.leftovers(before), 5)
    assert arena.leftovers(before) == []
