"""git's index, as git writes it and as an agent may."""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
from pathlib import Path

import pytest

from cagewrap.gitsync.index import (
    IndexRefusedError,
    clean,
    digest,
    entries,
    gitlinks,
    has_gitlinks,
    with_owner,
)

ENV = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_NOSYSTEM": "1",
    "HOME": "/nonexistent",
    **{f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}
PATHS = ["a", "b c", "d/e", "d/é", "d/f/" + "g" * 200, "x" * 4000]


def git(work: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=work, env=ENV, check=True, capture_output=True, text=True
    )
    return done.stdout


@pytest.fixture(params=[2, 3, 4])
def work(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    git(tmp_path, "init", "-q")
    git(tmp_path, "config", "index.version", str(request.param))
    for path in PATHS:
        if len(path) < 250:
            (tmp_path / path).parent.mkdir(exist_ok=True, parents=True)
            (tmp_path / path).write_text(path)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "x")
    if request.param == 3:
        (tmp_path / "later").touch()
        git(tmp_path, "add", "-N", "later")
    git(tmp_path, "update-index", f"--index-version={request.param}")
    return tmp_path


LATER = 1 << 33
"""No file of a test is as new."""


def read(work: Path) -> bytes:
    return (work / ".git/index").read_bytes()


def test_entries_are_those_that_git_lists(work: Path) -> None:
    listed = git(work, "ls-files", "-z").encode().split(b"\0")[:-1]
    assert [entry.path for entry in entries(read(work), 20)] == listed


def test_a_clean_index_says_the_same_to_git(work: Path) -> None:
    before = git(work, "ls-files", "-s", "-z")
    content = read(work)
    found = clean(content, 20, b"", 0)
    assert found.left_out == ()
    (work / ".git/index").write_bytes(found.content)
    assert git(work, "ls-files", "-s", "-z") == before
    assert digest(found.content, 20) == digest(content, 20)
    assert b"TREE" not in found.content
    git(work, "fsck")


def test_what_an_agent_says_of_files_is_not_believed(work: Path) -> None:
    """Neither the times of a changed file nor a flag hides it."""
    host, written = read(work), int((work / ".git/index").stat().st_mtime)
    (work / "a").write_text("?")
    git(work, "update-index", "--assume-unchanged", "b c")
    git(work, "update-index", "--skip-worktree", "d/e")
    (work / "b c").write_text("changed")
    (work / "d/e").write_text("changed")
    mine = bytearray(read(work))
    at = next(entry.begin for entry in entries(bytes(mine), 20) if entry.path == b"a")
    found = (work / "a").stat()
    struct.pack_into(">II", mine, at + 8, int(found.st_mtime), found.st_mtime_ns % 10**9)
    struct.pack_into(">I", mine, at + 36, found.st_size)
    (work / ".git/index").write_bytes(clean(bytes(mine), 20, host, written).content)
    changed = git(work, "diff-files", "--name-only").splitlines()
    assert {"a", "b c", "d/e"} <= set(changed)


def test_a_file_that_changed_as_the_index_was_written_is_looked_at(work: Path) -> None:
    index, file = work / ".git/index", work / "a"
    for path in (file, index):
        os.utime(path, (1_600_000_000, 1_600_000_000))
    git(work, "add", "--renormalize", "a")
    os.utime(index, (1_600_000_000, 1_600_000_000))
    host = read(work)
    file.write_text("?")
    os.utime(file, (1_600_000_000, 1_600_000_000))
    for written, wanted in ((1_600_000_000, [" M a"]), (LATER, [])):
        index.write_bytes(clean(host, 20, host, written).content)
        git(work, "config", "core.trustctime", "false")
        changed = git(work, "status", "--porcelain", "--untracked-files=no").splitlines()
        assert [line for line in changed if line.endswith(" a")] == wanted


def test_what_the_host_need_not_look_at_stays_so(work: Path) -> None:
    git(work, "update-index", "--assume-unchanged", "b c")
    git(work, "update-index", "--skip-worktree", "d/e")
    host = read(work)
    git(
        work,
        "update-index",
        "--cacheinfo",
        "100755," + git(work, "hash-object", "a").strip() + ",a",
    )
    (work / ".git/index").write_bytes(clean(read(work), 20, host, LATER).content)
    assert {"h b c", "S d/e"} <= set(git(work, "ls-files", "-v").splitlines())


def test_what_the_host_knows_of_unchanged_files_stays(work: Path) -> None:
    host = read(work)
    (work / "a").write_text("new")
    git(work, "add", "a")
    found = clean(read(work), 20, host, LATER).content
    old = {entry.path: host[entry.begin : entry.begin + 40] for entry in entries(host, 20)}
    new = {entry.path: found[entry.begin : entry.begin + 40] for entry in entries(found, 20)}
    assert new[b"d/e"] == old[b"d/e"]
    assert new[b"a"][:24] == bytes(24)
    assert digest(found, 20) != digest(host, 20)


def test_owners_are_translated_and_all_else_kept(work: Path) -> None:
    ids = (os.getuid(), os.getgid())
    found = with_owner(read(work), 20, ids, (4711, 4712))
    at = next(entry.begin for entry in entries(found, 20) if entry.path == b"a")
    assert struct.unpack_from(">II", found, at + 28) == (4711, 4712)
    assert with_owner(found, 20, (4711, 4712), ids)[:-20] == read(work)[:-20]
    (work / ".git/index").write_bytes(found)
    git(work, "status")


@pytest.mark.parametrize("version", [2, 4])
def test_new_submodules_are_left_out(work: Path, version: int) -> None:
    head = git(work, "rev-parse", "HEAD").strip()
    git(work, "update-index", f"--index-version={version}")
    before = read(work)
    git(work, "update-index", "--add", "--cacheinfo", f"160000,{head},c/sub")
    content = read(work)
    assert has_gitlinks(content)
    assert gitlinks(content, 20) == {b"c/sub"}
    assert clean(content, 20, content, LATER).left_out == ()
    if version == 4:
        with pytest.raises(IndexRefusedError, match="c/sub"):
            clean(content, 20, before, LATER)
        return
    found = clean(content, 20, before, LATER)
    assert found.left_out == (b"c/sub",)
    (work / ".git/index").write_bytes(found.content)
    assert "c/sub" not in git(work, "ls-files")


def planted(*paths: bytes, version: int = 2) -> bytes:
    """An index with these paths, as nobody's git would write it."""
    body = struct.pack(">4sII", b"DIRC", version, len(paths))
    for path in paths:
        entry = bytes(24) + struct.pack(">I", 0o100755) + bytes(12) + bytes(20)
        entry += struct.pack(">H", min(len(path), 0xFFF)) + path
        body += entry + bytes(8 - len(entry) % 8)
    return body + hashlib.sha1(body).digest()


def test_a_planted_index_is_read(tmp_path: Path) -> None:
    assert clean(planted(b"a", b"b"), 20, b"", 0).left_out == ()


@pytest.mark.parametrize(
    "path",
    [
        b".git/hooks/post-checkout", b".GIT/config", b"a/.git/config", b"a/.git", b"../x",
        b"a/../b", b"/etc/passwd", b"a//b", b"./a", b"a/", b"", b"a/..", b".git", b"git~1/x",
    ],
)  # fmt: skip
def test_refuses_paths_that_lead_elsewhere(path: bytes) -> None:
    with pytest.raises(IndexRefusedError):
        clean(planted(path), 20, b"", 0)


@pytest.mark.parametrize(
    "content",
    [
        b"DIRC",
        b"X" * 100,
        planted(b"a", version=9),
        planted(b"b", b"a"),
        planted(b"a", b"a"),
        planted(b"a")[:50],
        planted(b"a").replace(b"\0\0\0\2\0\0\0\1", b"\0\0\0\2\xff\xff\xff\xff"),
        planted(b"a")[:-20] + b"link\0\0\0\0" + bytes(20),
        planted(b"a")[:-20] + b"sdir\0\0\0\0" + bytes(20),
    ],
)
def test_refuses_what_is_no_index(content: bytes) -> None:
    with pytest.raises(IndexRefusedError):
        clean(content, 20, b"", 0)


@pytest.mark.parametrize("cut", range(0, 200, 7))
def test_a_cut_index_is_refused_or_empty(work: Path, cut: int) -> None:
    content = read(work)
    with pytest.raises(IndexRefusedError):
        clean(content[: len(content) // 2 - cut], 20, b"", 0)
