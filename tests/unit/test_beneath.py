"""Files below a directory that an agent may change at any moment."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cagewrap import beneath


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """What no call may reach."""
    path = tmp_path / "outside" / "secret"
    path.parent.mkdir()
    path.write_text("secret")
    return path


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    path = tmp_path / "tree"
    path.mkdir()
    return path


@pytest.fixture
def root(tree: Path) -> Iterator[int]:
    fd = beneath.open_root(str(tree))
    yield fd
    os.close(fd)


def write_below(root: int, parts: tuple[str, ...], name: str, data: bytes) -> None:
    fd = beneath.open_dir(root, parts, make=True)
    try:
        beneath.write_regular(fd, name, data)
    finally:
        os.close(fd)


def test_makes_directories_for_the_owner_alone_and_replaces_a_file(root: int, tree: Path) -> None:
    write_below(root, ("a", "b"), "f", b"one")
    write_below(root, ("a", "b"), "f", b"two")
    assert (tree / "a/b/f").read_bytes() == b"two"
    assert (tree / "a").stat().st_mode & 0o777 == 0o700
    assert (tree / "a/b/f").stat().st_mode & 0o777 == 0o600
    assert os.listdir(tree / "a/b") == ["f"]


def test_a_missing_directory_is_not_made_unasked(root: int) -> None:
    with pytest.raises(FileNotFoundError):
        beneath.open_dir(root, ("a",))


@pytest.mark.parametrize("parts", [("..",), ("a", ".."), ("",), ("a/b",), (".",), ("a\0",)])
def test_refuses_names_that_are_paths(root: int, tree: Path, parts: tuple[str, ...]) -> None:
    (tree / "a/b").mkdir(parents=True)
    with pytest.raises(OSError, match="is not a file name"):
        beneath.open_dir(root, parts, make=True)
    name = "/".join(parts)
    with pytest.raises(OSError, match="is not a file name"):
        beneath.open_regular(root, name)
    with pytest.raises(OSError, match="is not a file name"):
        beneath.write_regular(root, name, b"x")
    with pytest.raises(OSError, match="is not a file name"):
        beneath.link_regular(root, root, name)


def test_refuses_a_symlinked_directory_at_every_step(root: int, tree: Path, secret: Path) -> None:
    (tree / "a").mkdir()
    (tree / "link").symlink_to(secret.parent)
    (tree / "a/link").symlink_to(secret.parent)
    for parts in (("link",), ("a", "link"), ("link", "new"), ("a", "link", "new")):
        with pytest.raises(NotADirectoryError):
            beneath.open_dir(root, parts, make=True)
    assert os.listdir(secret.parent) == ["secret"]


def test_a_symlink_is_not_read_and_is_replaced_not_followed(
    root: int, tree: Path, secret: Path
) -> None:
    (tree / "f").symlink_to(secret)
    (tree / "dangling").symlink_to(secret.parent / "new")
    with pytest.raises(OSError, match="not a regular file"):
        beneath.read_regular(root, "f", 100)
    beneath.write_regular(root, "f", b"ours")
    beneath.write_regular(root, "dangling", b"ours")
    assert secret.read_text() == "secret"
    assert os.listdir(secret.parent) == ["secret"]
    assert not (tree / "f").is_symlink()
    assert (tree / "dangling").read_bytes() == b"ours"


def test_a_hard_link_is_replaced_and_the_file_behind_it_unchanged(
    root: int, tree: Path, secret: Path
) -> None:
    os.link(secret, tree / "f")
    beneath.write_regular(root, "f", b"ours")
    assert secret.read_text() == "secret"
    assert (tree / "f").read_bytes() == b"ours"


def test_a_fifo_and_a_socket_do_not_block(root: int, tree: Path) -> None:
    os.mkfifo(tree / "fifo")
    os.mknod(tree / "socket", 0o140600)
    for name in ("fifo", "socket"):
        with pytest.raises(OSError, match="not a regular file"):
            beneath.read_regular(root, name, 100)
        with pytest.raises(NotADirectoryError):
            beneath.open_dir(root, (name,), make=True)
        beneath.write_regular(root, name, b"ours")
        assert (tree / name).read_bytes() == b"ours"


def test_a_file_that_becomes_a_fifo_does_not_block(
    root: int, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "f").write_text("x")
    as_regular = beneath.stat_at(root, "f")
    os.unlink(tree / "f")
    os.mkfifo(tree / "f")
    monkeypatch.setattr(beneath, "stat_at", lambda *_: as_regular)  # it was one a moment ago
    with pytest.raises(OSError, match="not a regular file"):
        beneath.open_regular(root, "f")


def test_a_lease_does_not_block(root: int, tree: Path) -> None:
    (tree / "f").write_text("x")
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # it tells the holder of a lease
    with open(tree / "f", "r+b") as held:
        fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        with pytest.raises(BlockingIOError):
            beneath.read_regular(root, "f", 100)
        fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    signal.signal(signal.SIGIO, before)
    assert beneath.read_regular(root, "f", 100) == b"x"


def test_a_directory_is_not_replaced_and_nothing_is_left(root: int, tree: Path) -> None:
    (tree / "f").mkdir()
    with pytest.raises(OSError) as caught:
        beneath.write_regular(root, "f", b"x")
    assert caught.value.errno in (errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY)
    assert os.listdir(tree) == ["f"]


def test_a_file_over_the_limit_is_refused_however_it_says_its_size(root: int, tree: Path) -> None:
    (tree / "f").write_bytes(b"x" * 10)
    assert beneath.read_regular(root, "f", 10) == b"x" * 10
    with pytest.raises(OSError) as caught:
        beneath.read_regular(root, "f", 9)
    assert caught.value.errno == errno.EFBIG
    os.truncate(tree / "f", 1 << 40)  # sparse
    with pytest.raises(OSError) as caught:
        beneath.read_regular(root, "f", 1000)
    assert caught.value.errno == errno.EFBIG


def test_a_file_gets_a_second_name_but_never_in_place_of_another(
    root: int, tree: Path, secret: Path
) -> None:
    (tree / "f").write_text("x")
    fd = beneath.open_regular(root, "f")
    below = beneath.open_dir(root, ("d",), make=True)
    beneath.link_regular(fd, below, "f")
    assert (tree / "d/f").samefile(tree / "f")
    (tree / "d/g").symlink_to(secret.parent / "new")
    for name in ("f", "g"):
        with pytest.raises(FileExistsError):
            beneath.link_regular(fd, below, name)
    assert os.listdir(secret.parent) == ["secret"]
    os.unlink(tree / "f")
    (tree / "f").symlink_to(secret)  # swapped after it was opened: the descriptor decides
    beneath.link_regular(fd, below, "h")
    assert (tree / "d/h").read_text() == "x"
    os.close(fd)
    os.close(below)


def test_a_directory_swapped_for_a_symlink_never_leads_outside(
    root: int, tree: Path, secret: Path
) -> None:
    """An agent that swaps the directory as fast as it can, and writes that go on."""
    (tree / "real").mkdir()
    (tree / "link").symlink_to(secret.parent)
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            for one in ("real", "link"):
                os.rename(tree / one, tree / "d")
                os.rename(tree / "d", tree / one)

    thread = threading.Thread(target=swap)
    thread.start()
    written = refused = 0
    try:
        while written < 50 or refused < 50:
            try:
                write_below_existing(root)
                written += 1
            except NotADirectoryError:
                refused += 1
            except FileNotFoundError:
                continue
    finally:
        over.set()
        thread.join()
    assert os.listdir(secret.parent) == ["secret"]
    assert secret.read_text() == "secret"


def write_below_existing(root: int) -> None:
    fd = beneath.open_dir(root, ("d",))
    try:
        beneath.write_regular(fd, "secret", b"planted")
    finally:
        os.close(fd)


@pytest.mark.parametrize("size", [0, 5, (1 << 24) + 5])
def test_content_is_copied_between_file_systems(tmp_path: Path, size: int) -> None:
    """/dev/shm is in memory: of another kind than most disks, and the kernel says EXDEV."""
    data = os.urandom(size)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        source, target = Path(memory, "source"), tmp_path / "target"
        source.write_bytes(data)
        with source.open("rb") as read, target.open("wb") as write:
            beneath.copy_content(read.fileno(), write.fileno(), 1 << 40)
        assert target.read_bytes() == data
        with source.open("rb") as read, target.open("wb") as write:
            beneath.copy_content(read.fileno(), write.fileno(), 3)
        assert target.read_bytes() == data[:3]
