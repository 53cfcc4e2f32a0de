"""A run that is killed at any step: the next one carries all, and nothing is left of the first."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
import signal
import sys
from pathlib import Path

import pytest
from test_gitsync import Twin

from cagewrap.gitcarry import carry_once
from cagewrap.gitsync.killed import clear_away, clear_locks
from cagewrap.gitsync.pair import opened

CHANGES = {
    "os.chmod", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink",
    "os.truncate", "os.utime",
}  # fmt: skip
"""Python's audit events for what changes a file system, beside opening to write."""
EVERY = 4
"""Of all steps, every one takes a minute: so many runs do, each with others."""
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def killed_at(step: int, twin: Twin) -> bool:
    """Carry in a child that is killed before its `step`th change; False if it came to its end."""
    pid = os.fork()
    if pid == 0:
        count = 0

        def look(event: str, args: tuple[object, ...]) -> None:
            nonlocal count
            if event in CHANGES or (event == "open" and int(str(args[2])) & WRITES):
                count += 1
                if count == step:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(look)
        try:
            carry_once(twin.pair(), may_refill=False)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def left_in(git_dir: Path) -> list[str]:
    """Locks and temporary files."""
    names = (name for _, _, names in os.walk(git_dir) for name in names)
    return [
        name for name in names if name.endswith(".lock") or name.startswith((".cagewrap-", "tmp_"))
    ]


@pytest.fixture
def made(tmp_path: Path) -> Twin:
    """Work of every kind by the agent, and some by the owner; carried before that."""
    (tmp_path / "made").mkdir()
    twin = Twin(tmp_path / "made")
    for name in ("old", "gone"):
        twin.host("branch", name)
    twin.host("pack-refs", "--all")
    carry_once(twin.pair(), may_refill=False)
    twin.commit("cage", "packed")
    twin.cage("repack", "-d", "-q")
    twin.commit("cage", "second")
    twin.cage("branch", "topic")
    twin.cage("tag", "-a", "-m", "v1", "v1")
    twin.cage("branch", "-D", "gone")
    twin.cage("config", "user.name", "Agent")
    (twin.work / "second").write_text("stashed\n")
    twin.cage("stash")
    (twin.work / "second").write_text("staged\n")
    twin.cage("add", "second")
    twin.host("branch", "owners")
    twin.host("config", "user.email", "me@example.com")
    return twin


def another(made: Twin, root: Path) -> Twin:
    """A copy of both sides, in the state they are in."""
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(made.root, root, symlinks=True)
    twin = copy.copy(made)
    twin.root, twin.work, twin.git_dir = root, root / "work", root / "work/.git"
    twin.copy = root / "state/copy"
    (twin.copy / "cagewrap/objects").unlink()
    (twin.copy / "cagewrap/objects").symlink_to(twin.git_dir / "objects")
    base_file = root / "state/base.json"
    base = json.loads(base_file.read_text())
    found = twin.git_dir.stat()
    base["host"] = [found.st_dev, found.st_ino]
    base_file.write_text(json.dumps(base))
    return twin


def test_killed_at_every_step(made: Twin, tmp_path: Path) -> None:
    wanted = set(made.cage("rev-list", "--all").split())
    step = random.randrange(EVERY)
    is_over = False
    while not is_over:
        step += EVERY
        twin = another(made, tmp_path / "tried")
        was_killed = killed_at(step, twin)
        for _ in range(3):
            outcome = carry_once(twin.pair(), may_refill=True)
        where = f"killed at step {step}: {outcome}"
        assert outcome.states == [], where
        assert left_in(twin.git_dir) + left_in(twin.copy) == [], where
        assert wanted <= set(twin.host("rev-list", "--all").split()), where
        is_over = not was_killed
        if random.randrange(3) and was_killed:
            continue
        refs = twin.host("for-each-ref", "--format=%(refname)").split()
        assert {"refs/heads/topic", "refs/heads/owners", "refs/tags/v1", "refs/stash"} <= {*refs}
        assert "refs/heads/gone" not in refs, where
        assert twin.host("rev-parse", "HEAD") == twin.cage("rev-parse", "HEAD"), where
        assert twin.host("status", "--porcelain") == "M  second\n", where
        assert twin.host("config", "user.name") == "Agent\n", where
        assert "second" in twin.host("stash", "list"), where
        twin.host("fsck", "--strict")
    assert step > 50


def test_only_what_has_the_mark_is_cleared_away(tmp_path: Path) -> None:
    twin = Twin(tmp_path)
    (twin.git_dir / "index.lock").write_text("git's own")
    (twin.git_dir / ".cagewrap-fefefefefefe").write_text("another session's")
    (twin.git_dir / "HEAD.lock").write_text("ours")
    pair = twin.pair()
    os.link(twin.git_dir / "HEAD.lock", twin.git_dir / f".cagewrap-{pair.mark}ab")
    before = set(os.listdir(twin.git_dir))
    with opened(pair.host, pair.mark) as side:
        assert clear_away(side) == 2
        assert clear_away(side) == 0
    with opened(pair.host) as side:
        assert clear_away(side) == 0
    assert before - set(os.listdir(twin.git_dir)) == {"HEAD.lock", f".cagewrap-{pair.mark}ab"}


def test_locks_of_dead_agents_are_cleared_from_a_copy(tmp_path: Path) -> None:
    twin = Twin(tmp_path)
    for name in ("index.lock", "refs/heads/main.lock", "HEAD.lock"):
        (twin.git_dir / name).touch()
    with opened(str(twin.git_dir)) as side:
        assert clear_locks(side) == 3
    twin.commit("host", "b")
