"""What a frozen program does is what the source install does."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import cagewrap
from cagewrap.cli import VERBS
from podman.cages import Cage, Done

from .builds import BUILDS, DIRECTORY, FROZEN

INTERNALS = DIRECTORY.parent / "_internal"
SOURCE = Path(cagewrap.__file__).parent


def run(program: Path | str, *words: str) -> Done:
    done = subprocess.run([program, *words], capture_output=True, check=False)
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("build", BUILDS)
def test_version_names_build_and_commit(build: str) -> None:
    done = run(BUILDS[build], "--version")
    start = f"cagewrap {cagewrap.__version__} ({build} build, commit "
    assert re.fullmatch(re.escape(start) + r"[0-9a-f]{12}(-dirty)?\)\n", done.out.decode())
    assert (done.code, done.err) == (0, b"")


def test_source_says_so(source: Path) -> None:
    assert run(source, "--version").out == b"cagewrap %s (source)\n" % cagewrap.__version__.encode()


def test_every_module_and_data_file_is_there() -> None:
    ours = {
        path.relative_to(SOURCE).with_suffix("")
        for path in SOURCE.rglob("*.py")
        if path.name != "__main__.py"
    }
    frozen = {
        path.relative_to(INTERNALS / "cagewrap").with_suffix("")
        for path in (INTERNALS / "cagewrap").rglob("*.pyc")
    }
    assert ours - frozen == set()
    data = "image/Containerfile"
    assert (INTERNALS / "cagewrap" / data).read_bytes() == (SOURCE / data).read_bytes()


if sys.version_info[:2] == (3, 11):

    def test_every_module_can_be_imported() -> None:
        """From the program's own files alone, where this Python can read them: on Debian 12."""
        code = """
import sys
inside = sys.argv[1]
sys.path[:] = [inside + "/python3.11/lib-dynload", inside]
import importlib, pathlib
for path in sorted(pathlib.Path(inside, "cagewrap").rglob("*.pyc")):
    name = ".".join(path.relative_to(inside).with_suffix("").parts).removesuffix(".__init__")
    importlib.import_module(name)
print(sys.modules["click"].__file__)
"""
        argv = [sys.executable, "-IS", "-c", code, INTERNALS]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"{INTERNALS}/click/__init__.pyc\n"


@pytest.mark.parametrize("verb", VERBS)
def test_help_is_the_sources(source: Path, verb: str) -> None:
    """Which imports the verb's module."""
    assert run(DIRECTORY, verb, "--help") == run(source, verb, "--help")


def test_errors_are_the_sources(program: Path, source: Path) -> None:
    for words in (["--nonsense", "--", "true"], ["nonsense"], ["--image", "x"], ["rm", "nothing"]):
        done = run(program, *words)
        assert done == run(source, *words)
        assert done.code != 0
        assert b"fix: " in done.err


def test_passes_everything(cage: Cage) -> None:
    words = [b"", b"a b", b"--", b"\xff\xfe", "ü".encode(), b"$x", b"\n"]
    done = cage.run("printf", r"%s\0", *words)
    assert (done.code, done.out.split(b"\0")[:-1], done.err) == (0, words, b"")
    payload = bytes(range(256)) * 4096
    assert cage.run("cat", stdin=payload) == Done(0, payload, b"")
    assert cage.run("sh", "-c", "echo wrong >&2; exit 7") == Done(7, b"", b"wrong\n")
    assert cage.run("sh", "-c", "kill -9 $$").code == -signal.SIGKILL
    assert cage.run("nothing-of-that-name").code == 127


def test_verbs_work_on_what_it_made(cage: Cage) -> None:
    cage.text("true")
    assert cage.name().encode() in cage.cagewrap("ls").out
    assert cage.cagewrap("stop").code == 0
    assert cage.text("echo", "again") == "again\n"
    done = cage.cagewrap("recreate", "--fresh")
    assert done.code == 0, done.err
    assert cage.text("echo", "still") == "still\n"
    assert cage.cagewrap("rm").code == 0
    assert cage.names() == []


def test_may_have_another_name_and_lie_anywhere(room: Path, cage: Cage) -> None:
    """The directory of the program, or the single file, by way of links and odd letters."""
    place = room / "ä place'of \"its own:"
    place.mkdir()
    if Path(cage.program) == DIRECTORY:
        subprocess.run(["cp", "-r", DIRECTORY.parent, place / "program"], check=True)
        target = place / "program/cagewrap"
    else:
        target = place / "one file"
        target.write_bytes(Path(cage.program).read_bytes())
        target.chmod(0o755)
    link = room / "link"
    link.symlink_to(target)
    cage.program = str(link)
    assert cage.text("echo", "cold") == "cold\n"
    assert cage.text("echo", "warm") == "warm\n"
    if Path(target).parent.name == "program":
        assert os.readlink(f"/proc/{cage.keeper()}/exe") == str(target)


def test_refuses_to_let_an_agent_write_to_the_program(make_cage: Callable[..., Cage]) -> None:
    cage = make_cage(DIRECTORY)
    for place in (DIRECTORY.parent, FROZEN, INTERNALS / "python3.11"):
        done = cage.run("true", flags=("--mount", f"{place},rw"))
        assert done.code == 112, (place, done)
        assert b"it is cagewrap's own" in done.err
    assert cage.text("ls", str(INTERNALS), flags=("--mount", f"{INTERNALS},ro")) != ""


@pytest.mark.parametrize(
    "words",
    [
        ["--cagewrap-internal"],
        ["--cagewrap-internal", "keeper", "0"],
        ["--cagewrap-internal", "image", "first"],
        ["--cagewrap-internal", "keeper", "3", "--", "true"],
    ],
)
def test_its_own_processes_are_not_started_by_hand(
    program: Path, tmp_path: Path, words: list[str]
) -> None:
    """By its name on PATH, or by a link."""
    link = tmp_path / "cagewrap"
    link.symlink_to(program)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for name in ("cagewrap", str(link)):
        done = subprocess.run([name, *words], env=env, capture_output=True, check=False)
        assert done.returncode == 110, done
        assert done.stderr.startswith(b"cagewrap: ")
