"""Claude's own lock, and its files when an agent has been at them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from cagewrap import beneath, claudefiles
from cagewrap.claudefiles import locked_state, read_object, read_theirs


def test_the_lock_is_a_directory_while_it_is_held(tmp_path: Path) -> None:
    home = beneath.open_root(str(tmp_path))
    with locked_state(home):
        assert (tmp_path / ".claude.json.lock").is_dir()
        with pytest.raises(BlockingIOError), locked_state(home):
            pytest.fail("taken twice")
    assert os.listdir(tmp_path) == []
    os.close(home)


def test_a_lock_of_claudes_is_respected_and_one_it_left_is_taken(tmp_path: Path) -> None:
    home = beneath.open_root(str(tmp_path))
    lock = tmp_path / ".claude.json.lock"
    lock.mkdir()
    started = time.monotonic()
    with pytest.raises(BlockingIOError), locked_state(home):
        pytest.fail("it is claude's")
    assert time.monotonic() - started < 1
    assert lock.is_dir()
    os.utime(lock, (time.time() - 60, time.time() - 60))
    with locked_state(home):
        pass
    assert not lock.exists()
    os.close(home)


@pytest.mark.parametrize("planted", ["file", "full", "symlink"])
def test_a_planted_lock_does_not_hold_a_message_up(tmp_path: Path, planted: str) -> None:
    home = beneath.open_root(str(tmp_path))
    lock = tmp_path / ".claude.json.lock"
    if planted == "file":
        lock.write_text("x")
    elif planted == "full":
        (lock / "x").mkdir(parents=True)
    else:
        lock.symlink_to("/etc")
    os.utime(lock, (1, 1), follow_symlinks=False)
    with pytest.raises(OSError), locked_state(home):
        pytest.fail("taken")
    os.close(home)


@pytest.mark.parametrize("content", ["{", "[]", "null", '"x"', "[" * 100_000, "\0"])
def test_what_is_no_object_of_the_agents_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "f").write_text(content)
    home = beneath.open_root(str(tmp_path))
    with pytest.raises((ValueError, TypeError, RecursionError)):
        read_theirs(home, "f")
    os.close(home)


def test_what_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claudefiles, "JSON_BYTES", 10)
    (tmp_path / "f").write_text("{}" + " " * 20)
    home = beneath.open_root(str(tmp_path))
    with pytest.raises(OSError, match="larger"):
        read_theirs(home, "f")
    os.close(home)


def test_an_owners_file_is_missing_or_whole(tmp_path: Path) -> None:
    assert read_object(str(tmp_path / "none")) == {}
    (tmp_path / "f").write_text("{")
    with pytest.raises(ValueError, match="line 1"):
        read_object(str(tmp_path / "f"))
