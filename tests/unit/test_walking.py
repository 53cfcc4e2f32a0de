"""Looking through a project, and being told of what is made in it."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from cagewrap.holding import walk
from cagewrap.holding.sentry import Sentry
from cagewrap.holding.walk import Findings, Walk
from cagewrap.keeper.insistence import Insistence


def write(path: Path, text: str = "x\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    path.mkdir()
    return path


def test_a_list_that_is_full_means_another_walk(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walk, "FINDINGS", 3)
    for number in range(7):
        write(project / f"{number}/.git/hooks/x")
        write(project / f"{number}/mise.toml")
        write(project / f"{number}/.mcp.json")
    found = Walk(str(project), 0, (), str(tmp_path / "files")).run()
    assert (len(found.new), len(found.tamed), found.has_more) == (3, 3, True)
    rounds = 1
    while Walk(str(project), 0, (), str(tmp_path / "files")).run().tamed:
        rounds += 1
    assert rounds == 3
    assert not list(project.rglob("hooks/x"))


@pytest.mark.parametrize(
    ("git_dir", "value", "is_kept"),
    [
        ("a/.git", "..", True),
        ("a/.git", "../below", True),
        ("a/.git", "../link", False),
        ("a/.git", "../missing", False),
        ("a/.git", "../..", False),
        ("a/.git", "/home/me", False),
        ("a/.git", ".", False),
        ("a/.git/modules/below", "../../../below", True),
        ("a/.git/modules/below", "../../../../b", False),
        ("b", "..", False),
        ("a/bare", "../below", True),
    ],
)
def test_where_a_work_tree_may_lie(
    project: Path, tmp_path: Path, git_dir: str, value: str, is_kept: bool
) -> None:
    (project / "a/below").mkdir(parents=True)
    (project / "a/link").symlink_to(tmp_path)
    for name in ("objects", "refs"):
        (project / git_dir / name).mkdir(parents=True)
    config = write(project / git_dir / "config", f"[core]\n\tworktree = {value}\n")
    Walk(str(project), 0, (), str(tmp_path / "files")).run()
    assert (value in config.read_text()) == is_kept


def test_a_remote_in_the_project_stays(project: Path, tmp_path: Path) -> None:
    (project / "a/.git").mkdir(parents=True)
    (project / "b").mkdir()
    (project / "out").symlink_to(tmp_path)
    text = "".join(
        f'[remote "{name}"]\n\turl = {url}\n'
        for name, url in (
            ("in", f"{project}/b"), ("rel", "../b"), ("up", "../.."), ("elsewhere", f"{tmp_path}"),
            ("link", "../out"), ("ext", "ext::x"), ("file", f"file://{project}/b"),
            ("own", "../../project/.git/x"),
        )
    )  # fmt: skip
    config = write(project / "a/.git/config", text + '[branch "x"]\n\tremote = in\n')
    Walk(str(project), 0, (), str(tmp_path / "files")).run()
    kept = config.read_text()
    assert kept.count("[remote") == 2
    assert f"url = {project}/b" in kept
    assert "url = ../b" in kept
    assert "remote = in" in kept


def test_a_work_trees_own_part_is_kept(project: Path, tmp_path: Path) -> None:
    part = project / "a/.git/worktrees/x"
    write(part / "HEAD", "ref: refs/heads/x\n")
    write(part / "commondir", "../..\n")
    write(part / "config.worktree", "[core]\n\tfsmonitor = evil\n")
    evil = write(project / "b/.git/commondir", "../..\n")
    Walk(str(project), 0, (), str(tmp_path / "files")).run()
    assert (part / "commondir").read_text() == "../..\n"
    assert (part / "config.worktree").read_text() == ""
    assert not evil.exists()


# --- the sentry -----------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [3, 100])
def test_a_sentry_without_enough_watches_says_so(project: Path, tmp_path: Path, most: int) -> None:
    for number in range(10):
        (project / f"{number}").mkdir()
    told: list[Findings] = []
    one = Sentry(Walk(str(project), 0, (), str(tmp_path / "files")), told.append, most)
    reader, writer = os.pipe()
    os.close(writer)
    one.run(reader)
    os.close(reader)
    assert [found.is_whole for found in told] == ([] if most == 100 else [False])


def test_a_sentry_that_is_told_too_little_looks_at_everything(
    project: Path, tmp_path: Path
) -> None:
    (project / "d").mkdir()
    told: list[Findings] = []
    one = Sentry(Walk(str(project), 0, (), str(tmp_path / "files")), told.append, 100)
    reader, writer = os.pipe()
    thread = threading.Thread(target=one.run, args=(reader,))
    thread.start()
    time.sleep(0.2)
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    for number in range(limit + 1000):
        (project / f"d/{number}").touch()
    write(project / "d/x/.mcp.json")
    deadline = time.monotonic() + 20
    while not told and time.monotonic() < deadline:
        time.sleep(0.01)
    os.close(writer)
    thread.join()
    os.close(reader)
    assert told[0].new == ["d/x/.mcp.json"]


def test_how_often_is_insisting() -> None:
    for times, is_near, names in ((8, False, 1), (24, True, 5)):
        one = Insistence()
        for number in range(times):
            assert one.why == ""
            one.put_back(f"path{number % names}", is_near=is_near)
        assert one.why
    far = Insistence()
    for number in range(1000):
        far.put_back(f"path{number}", is_near=False)
    assert far.why == ""
    made = Insistence()
    for _ in range(60):
        assert made.why == ""
        made.made()
    assert made.why
