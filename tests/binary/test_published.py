"""The files that are published."""

import subprocess
import tarfile
from pathlib import Path

from podman.cages import Cage

from .builds import FROZEN, TARBALL


def test_checksums_hold() -> None:
    argv = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    done = subprocess.run(argv, cwd=FROZEN / "out", capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(b": OK\n") == 2


def test_archive_holds_one_directory_of_plain_files() -> None:
    with tarfile.open(TARBALL) as archive:
        members = archive.getmembers()
    top = TARBALL.name.removesuffix(".tar.gz")
    for member in members:
        assert member.name == top or member.name.startswith(top + "/")
        assert member.isfile() or member.isdir() or member.issym()
        assert (member.uid, member.gid, member.mtime) == (0, 0, 0)
        assert not member.mode & 0o6022
    assert {f"{top}/cagewrap", f"{top}/LICENSE"} <= {member.name for member in members}


def test_nothing_names_where_it_was_made() -> None:
    """Paths of the machine that built it would differ from build to build."""
    found = subprocess.run(
        ["grep", "-rlaE", "/mnt/repo|/tmp/tmp\\.", FROZEN / "program"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.stdout == ""


def test_installs_by_unpacking_and_a_link(room: Path, cage: Cage) -> None:
    """As docs/how-to/install.md has it."""
    lib, bin_dir = room / "lib", room / "bin"
    lib.mkdir()
    bin_dir.mkdir()
    subprocess.run(["tar", "-xzf", TARBALL, "-C", lib], check=True)
    [unpacked] = lib.iterdir()
    (bin_dir / "cagewrap").symlink_to(unpacked / "cagewrap")
    cage.program = str(bin_dir / "cagewrap")
    assert cage.text("echo", "there") == "there\n"
