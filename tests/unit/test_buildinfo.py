"""What `cagewrap --version` says of a build; tests/binary look at the frozen ones."""

import subprocess
from pathlib import Path

import pytest

from cagewrap import buildinfo
from cagewrap.buildinfo import SOURCE, Build, describe_build, read_build


def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree whose src/cagewrap is the package."""
    package = tmp_path / "src/cagewrap"
    package.mkdir(parents=True)
    monkeypatch.setattr(buildinfo, "__file__", str(package / "buildinfo.py"))
    return package


def test_checkout_names_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place(tmp_path, monkeypatch)
    identity = ("-c", "user.name=x", "-c", "user.email=x")
    for words in (("init", "-q"), (*identity, "commit", "-q", "--allow-empty", "-m", "one")):
        subprocess.run(["git", "-C", tmp_path, *words], check=True)
    asked = ["git", "-C", tmp_path, "rev-parse", "HEAD"]
    commit = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    assert read_build() == Build(SOURCE, commit[:12])


def test_installed_source_knows_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place(tmp_path, monkeypatch)
    assert read_build() == Build(SOURCE, "")


def test_checkout_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place(tmp_path, monkeypatch)
    (tmp_path / ".git").mkdir()
    monkeypatch.setenv("PATH", "/nonexistent")
    assert read_build() == Build(SOURCE, "")


def test_frozen_build_reads_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = place(tmp_path, monkeypatch)
    (package / "build-info").write_text("single file\n0123456789ab\n")
    assert read_build() == Build("single file", "0123456789ab")


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (Build(SOURCE, ""), "source"),
        (Build(SOURCE, "0123"), "source, commit 0123"),
        (Build("directory", "0123"), "directory build, commit 0123"),
        (Build("single file", ""), "single file build"),
    ],
)
def test_build_in_words(build: Build, text: str) -> None:
    assert describe_build(build) == text
