"""Objects of an agent's on their way to the host, and whether the host has one."""

from __future__ import annotations

import os
import subprocess
import zlib
from pathlib import Path

import pytest

from cagewrap.gitcarry import index_pack
from cagewrap.gitsync.objects import bring_objects
from cagewrap.gitsync.pair import opened
from cagewrap.gitsync.store import Store

ENV = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_NOSYSTEM": "1",
    "HOME": "/nonexistent",
    **{f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}


def git(directory: Path, *words: str, stdin: str = "") -> str:
    done = subprocess.run(
        ["git", *words], cwd=directory, env=ENV, input=stdin, check=True, capture_output=True,
        text=True,
    )  # fmt: skip
    return done.stdout


@pytest.fixture(params=["sha1", "sha256"])
def both(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Path, Path]:
    """Two bare repositories: the cage's and the host's."""
    for name in ("cage", "host"):
        git(tmp_path, "init", "-q", "--bare", f"--object-format={request.param}", name)
    return tmp_path / "cage", tmp_path / "host"


def bring(cage: Path, host: Path) -> int:
    with opened(str(cage)) as source, opened(str(host)) as target:
        return bring_objects(source, target, str(host), index_pack)


def files(directory: Path) -> set[str]:
    return {
        str(path.relative_to(directory)) for path in directory.rglob("*") if not path.is_dir()
    } - {"info/packs"}


def test_loose_objects_are_moved(both: tuple[Path, Path]) -> None:
    cage, host = both
    oids = [
        git(cage, "hash-object", "-w", "--stdin", stdin=text).strip() for text in ("a", "", "é")
    ]
    assert bring(cage, host) == 3
    assert files(cage / "objects") == set()
    for oid in oids:
        git(host, "cat-file", "-e", oid)
    git(host, "fsck", "--strict")
    assert bring(cage, host) == 0


def test_a_large_object(both: tuple[Path, Path]) -> None:
    cage, host = both
    oid = git(cage, "hash-object", "-w", "--stdin", stdin="0123456789" * 1_000_000).strip()
    assert bring(cage, host) == 1
    assert len(git(host, "cat-file", "-p", oid)) == 10_000_000


def test_packs_are_moved(both: tuple[Path, Path]) -> None:
    cage, host = both
    tree = git(cage, "mktree").strip()
    commit = git(cage, "commit-tree", "-m", "x", tree).strip()
    git(cage, "update-ref", "refs/heads/main", commit)
    git(cage, "repack", "-adq")
    git(cage, "prune-packed")
    assert bring(cage, host) == 1
    assert not [name for name in files(cage / "objects") if name.startswith("pack/")]
    git(host, "cat-file", "-e", commit)
    git(host, "fsck", "--strict")


def plant(cage: Path, oid: str, content: bytes) -> None:
    path = cage / "objects" / oid[:2] / oid[2:]
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"nothing packed",
        zlib.compress(b"blob 1\0a"),
        zlib.compress(b"blob 2\0a"),
        zlib.compress(b"x" * 100),
        zlib.compress(b"evil 1\0a"),
        zlib.compress(b"blob 1\0a")[:-2],
        zlib.compress(b"blob 1\0a") + b"more",
        zlib.compress(b"\0" * 50_000_000),
    ],
)
def test_what_is_not_what_it_is_named_stays(both: tuple[Path, Path], content: bytes) -> None:
    cage, host = both
    oid = git(cage, "hash-object", "--stdin", stdin="other").strip()
    plant(cage, oid, content)
    assert bring(cage, host) == 0
    assert files(host / "objects") == set()


def test_what_is_no_file_is_left_alone(both: tuple[Path, Path], tmp_path: Path) -> None:
    cage, host = both
    oid = git(host, "hash-object", "--stdin", stdin="a").strip()
    directory = cage / "objects" / oid[:2]
    directory.mkdir()
    os.mkfifo(directory / oid[2:])
    (cage / "objects/ff").symlink_to(tmp_path)
    (cage / "objects/fe").mkdir()
    (cage / "objects/fe" / oid[2:]).symlink_to("/etc/passwd")
    (cage / "objects/fd").mkdir()
    (cage / "objects/fd/name").write_text("x")
    assert bring(cage, host) == 0
    assert files(host / "objects") == set()


def test_a_broken_pack_stays(both: tuple[Path, Path]) -> None:
    cage, host = both
    git(cage, "hash-object", "-w", "--stdin", stdin="a" * 1000)
    tree = git(cage, "mktree").strip()
    git(cage, "update-ref", "refs/heads/main", git(cage, "commit-tree", "-m", "x", tree).strip())
    git(cage, "repack", "-adq")
    git(cage, "prune-packed")
    (pack,) = (cage / "objects/pack").glob("*.pack")
    pack.chmod(0o644)
    content = bytearray(pack.read_bytes())
    content[len(content) // 2] ^= 0xFF
    pack.write_bytes(content)
    for path in (cage / "objects").glob("??/*"):
        path.unlink()
    assert bring(cage, host) == 0
    assert not [name for name in files(host / "objects") if name.startswith("pack/")]


def test_whether_the_host_has_an_object(both: tuple[Path, Path]) -> None:
    _, host = both
    loose = git(host, "hash-object", "-w", "--stdin", stdin="loose").strip()
    packed = [git(host, "hash-object", "-w", "--stdin", stdin=str(n)).strip() for n in range(500)]
    git(host, "pack-objects", "-q", str(host / "objects/pack/pack"), stdin="\n".join(packed) + "\n")
    git(host, "prune-packed")
    missing = git(host, "hash-object", "--stdin", stdin="missing").strip()
    with opened(str(host)) as side:
        store = Store(side)
        assert store.has(loose)
        assert all(store.has(oid) for oid in packed)
        assert not store.has(missing)
        assert not store.has("0" * len(loose))
        assert not store.has("f" * len(loose))
        store.close()
