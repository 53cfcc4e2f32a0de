"""Objects of an agent's on their way to the host, and whether the host has one."""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
import zlib
from pathlib import Path

import pytest

from cagewrap import gitcarry
from cagewrap.gitcarry import index_pack
from cagewrap.gitsync import objects
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
        zlib.compress(b"blob 1\0" + b"\0" * 50_000_000),
        zlib.compress(b"blob 1\0a") + b"\0" * 50_000_000,
    ],
)
def test_what_is_not_what_it_is_named_stays(both: tuple[Path, Path], content: bytes) -> None:
    cage, host = both
    oid = git(cage, "hash-object", "--stdin", stdin="other").strip()
    plant(cage, oid, content)
    assert bring(cage, host) == 0
    assert files(host / "objects") == set()


def test_a_small_object_that_unpacks_to_more_than_it_says_is_not_unpacked(
    both: tuple[Path, Path],
) -> None:
    """A gigabyte of zeros in a megabyte."""
    cage, host = both
    oid = git(cage, "hash-object", "--stdin", stdin="other").strip()
    plant(cage, oid, zlib.compress(b"blob 9\0" + b"\0" * (1 << 30), 1))
    began = time.process_time()
    assert bring(cage, host) == 0
    assert time.process_time() - began < 0.5


def test_an_object_above_the_limit_is_not_unpacked(
    both: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "OBJECT_BYTES", 9)
    cage, host = both
    git(cage, "hash-object", "-w", "--stdin", stdin="0123456789")
    small = git(cage, "hash-object", "-w", "--stdin", stdin="012345678").strip()
    assert bring(cage, host) == 1
    assert git(host, "cat-file", "-p", small) == "012345678"


def costly_pack(path: Path) -> None:
    """A base of 300 MB and what differs from it in nothing, in 300 KB."""
    size = 300_000_000
    base = zlib.compress(b"\0" * size, 1)
    digest = hashlib.sha1(b"blob %d\0" % size + b"\0" * size).digest()
    length = varint(size)
    parts = [at.to_bytes(4, "little") for at in range(0, size, 0xFFFFFF)]
    copies = b"".join(
        b"\xff" + at + min(0xFFFFFF, size - n * 0xFFFFFF).to_bytes(3, "little")
        for n, at in enumerate(parts)
    )
    delta = length + varint(size + 1) + copies + b"\1x"
    head = b"PACK" + (2).to_bytes(4, "big") + (2).to_bytes(4, "big")
    body = head + entry(3, size) + base + entry(7, len(delta)) + digest + zlib.compress(delta)
    path.write_bytes(body + hashlib.sha1(body).digest())


def varint(number: int) -> bytes:
    found = b""
    while number >= 0x80:
        found += bytes([number & 0x7F | 0x80])
        number >>= 7
    return found + bytes([number])


def entry(kind: int, size: int) -> bytes:
    """The head of an object in a pack."""
    first, rest = kind << 4 | size & 15, size >> 4
    return bytes([first | 0x80]) + varint(rest) if rest else bytes([first])


@pytest.mark.parametrize(
    ("limit", "value", "is_sound"),
    [("_MEMORY_BYTES", 4 << 30, True), ("_MEMORY_BYTES", 256 << 20, False),
     ("PACK_CPU_S", (1, 0), False)],
)  # fmt: skip
def test_a_small_pack_does_not_take_all_memory_or_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: object, *, is_sound: bool
) -> None:
    costly_pack(tmp_path / "x.pack")
    monkeypatch.setattr(gitcarry, limit, value)
    assert index_pack(str(tmp_path / "x.pack"), False) == is_sound


def test_a_pack_above_the_limit_is_not_copied(
    both: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    cage, host = both
    name = cage / f"objects/pack/pack-{'a' * 40}"
    name.with_suffix(".idx").touch()
    name.with_suffix(".pack").write_bytes(b"PACK\0\0\0\2" + b"x" * 100)
    monkeypatch.setattr(objects, "PACK_BYTES", 100)
    asked: list[str] = []

    def ask(path: str, is_sha256: bool) -> bool:
        asked.append(f"{path} {is_sha256}")
        return False

    with opened(str(cage)) as source, opened(str(host)) as target:
        assert bring_objects(source, target, str(host), ask) == 0
    assert asked == []


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


def test_a_directory_that_git_has_just_made_stays(both: tuple[Path, Path]) -> None:
    """git makes it, and then a file in it: an agent's commit failed when it was gone by then."""
    cage, host = both
    (cage / "objects/ab").mkdir()
    bring(cage, host)
    assert (cage / "objects/ab").is_dir()
    os.utime(cage / "objects/ab", (0, 0))
    bring(cage, host)
    assert not (cage / "objects/ab").exists()
