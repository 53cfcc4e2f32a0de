"""A disk is full: it is said which, nothing of the owner's is lost, and with space all goes on."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .cages import Cage, wait_until

pytestmark = pytest.mark.host_side

SMALL = Path("/mnt/small")
"""A file system of 64 MiB and 2000 files that a test host has."""
MIB = 1 << 20
ME = "".join(
    f"export GIT_{who}_NAME=Agent GIT_{who}_EMAIL=agent@example.com; "
    for who in ("AUTHOR", "COMMITTER")
)
COMMIT = ME + "git commit -q --allow-empty -m "
STORAGE = 117


class Disk:
    """The small one."""

    def __init__(self) -> None:
        self._filler, self._many = SMALL / "filler", SMALL / "many"

    def fill(self, leave: int = 0) -> None:
        """Leave so many bytes at most."""
        with self._filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(MIB))
        with self._filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(512))
        if leave:
            os.truncate(self._filler, self._filler.stat().st_size - leave)

    def use_up(self, leave: int = 0) -> None:
        """Leave space, but so many files at most."""
        self._many.mkdir(exist_ok=True)
        with contextlib.suppress(OSError):
            for number in range(10_000):
                (self._many / str(number)).touch()
        for number in range(leave):
            (self._many / str(number)).unlink()

    def free(self) -> None:
        """There is space again."""
        self._filler.unlink(missing_ok=True)
        shutil.rmtree(self._many, ignore_errors=True)


@pytest.fixture(autouse=True)  # before any cage is made: it is cleared after they are gone
def disk() -> Iterator[Disk]:
    found = Disk()
    yield found
    subprocess.run(["podman", "unshare", "rm", "-rf", *SMALL.iterdir()], check=True)


class Owner:
    """The owner's repository, with settings that an agent may not write, and git."""

    def __init__(self, cage: Cage) -> None:
        self.cage = cage
        self.path = cage.project
        self.env = {"HOME": str(cage.place.root), "PATH": os.environ["PATH"]}
        self.env |= {f"GIT_{who}_NAME": "Me" for who in ("AUTHOR", "COMMITTER")}
        self.env |= {f"GIT_{who}_EMAIL": "me@example.com" for who in ("AUTHOR", "COMMITTER")}
        self.git("init", "-q", "-b", "main")
        (self.path / ".claude").mkdir()
        (self.path / ".claude/settings.json").write_text("{}\n")
        (self.path / ".envrc").write_text("owner\n")
        self.git("add", ".")
        self.git("commit", "-q", "-m", "first")

    def git(self, *words: str) -> str:
        done = subprocess.run(
            ["git", *words],
            cwd=self.path,
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def subjects(self) -> list[str]:
        return self.git("log", "--all", "--format=%s").split()

    def check(self) -> None:
        """All is as it was, and no lock is left."""
        assert self.git("fsck", "--strict", "--no-dangling") == ""
        assert (self.path / ".claude/settings.json").read_text() == "{}\n"
        assert (self.path / ".envrc").read_text() == "owner\n"
        assert wait_until(lambda: not self.litter(), 5), self.litter()  # it is tried again

    def litter(self) -> list[Path]:
        """Locks and temporary files."""
        return [path for word in ("*.lock", ".cagewrap-*") for path in self.path.rglob(word)]


def on_small(cage: Cage, what: str) -> Cage:
    """Put one of a place's directories on the small disk."""
    if what == "state":
        cage.env["XDG_STATE_HOME"] = str(SMALL / "state")
        (SMALL / "state").mkdir()
        cage.place.state_home.symlink_to(SMALL / "state")
    elif what == "storage":
        file = cage.place.config_home / "containers/storage.conf"
        shared = Path.home() / ".local/share/containers/storage"
        file.parent.mkdir(exist_ok=True)
        file.write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{SMALL}/storage"\n'
            f'[storage.options]\nadditionalimagestores = ["{shared}"]\n'
        )
    return cage


def says_full(err: bytes, path: Path) -> bool:
    text = err.lower()
    return b"space" in text and os.fsencode(path) in err


@pytest.mark.parametrize("leave", [0, 20480, 40960, 57344, 65536, 200_000])
def test_state_directory_full_at_the_first_message(cage: Cage, disk: Disk, leave: int) -> None:
    """Wherever on its way it is that there is no more space."""
    owner = Owner(on_small(cage, "state"))
    (SMALL / "state/cagewrap").mkdir(mode=0o700)
    disk.fill(leave)
    done = cage.run("sh", "-c", COMMIT + "second")
    assert done.code == 0 or says_full(done.err, SMALL / "state"), done.err
    owner.check()
    disk.free()
    cage.text("sh", "-c", COMMIT + "third")
    assert "third" in owner.subjects()
    owner.check()


def test_state_directory_full_while_an_agent_works(cage: Cage, disk: Disk) -> None:
    owner = Owner(on_small(cage, "state"))
    settings = owner.path / ".claude/settings.json"
    script = COMMIT + "second; read x; " + COMMIT + "third; exec 2>&-; echo evil >.claude/new"
    with cage.popen("sh", "-c", script, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as agent:
        assert wait_until(lambda: "second" in owner.subjects(), 20)
        disk.fill()
        _, err = agent.communicate(b"\n", 60)
    assert b"unable to write" in err, "git says it of the agent's commit"
    owner.check()
    settings.write_text("{}\n\n")  # what is to be copied for the next message
    full = cage.run("true")
    assert full.code == STORAGE
    assert says_full(full.err, SMALL / "state"), full.err
    settings.write_text("{}\n")
    disk.free()
    assert cage.text("sh", "-c", "cat .claude/settings.json;" + COMMIT + "fourth") == "{}\n"
    assert owner.subjects() == ["fourth", "second", "first"]
    owner.check()
    assert b"settings.json" not in cage.cagewrap("review").out, "the owner's own change is none"


@pytest.fixture
def small_project(make_cage: Callable[..., Cage], disk: Disk) -> Owner:
    cage = make_cage()
    (SMALL / "project").mkdir()
    cage.project = SMALL / "project"
    return Owner(cage)


def test_project_full_at_the_first_message(small_project: Owner, disk: Disk) -> None:
    owner, cage = small_project, small_project.cage
    disk.fill()
    done = cage.run("sh", "-c", COMMIT + "second; echo evil >.claude/settings.json")
    assert done.code == 0
    assert says_full(done.err, owner.path / ".git"), done.err
    assert owner.subjects() == ["first"]
    owner.check()
    disk.free()
    cage.text("true")
    assert owner.subjects() == ["second", "first"]
    owner.check()


@pytest.mark.parametrize("leave", [0, 4096, 8192, 12288, 20480])
def test_project_full_when_commits_are_carried(
    small_project: Owner, disk: Disk, leave: int
) -> None:
    """Some of a commit's objects could be written, or all of them and no ref."""
    owner, cage = small_project, small_project.cage
    script = (
        "echo; read x; git config user.name Agent; git tag v1; mkdir deep; echo x >deep/x;"
        "head -c 100000 /dev/urandom >large; git add large deep;" + ME + "git commit -qm second"
    )
    with cage.popen(
        "sh", "-c", script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as agent:
        assert agent.stdout is not None
        agent.stdout.readline()
        (owner.path / "large").write_bytes(bytes(100_000))
        (owner.path / "deep").mkdir()
        (owner.path / "deep/x").write_text("x\n")
        disk.fill(leave)
        _, err = agent.communicate(b"\n", 60)
    assert says_full(err, owner.path / ".git"), err
    owner.check()
    disk.free()
    cage.text("true")
    assert owner.subjects() == ["second", "first"]
    assert owner.git("tag") == "v1\n"
    assert owner.git("config", "user.name") == "Agent\n"
    owner.check()


@pytest.mark.parametrize("where", ["project", "both"])
def test_who_fills_the_disk_cannot_keep_a_file_there(
    small_project: Owner, disk: Disk, where: str
) -> None:
    """The owner's version cannot be put back: the agent's is not there either."""
    owner, cage = small_project, small_project.cage
    envrc, mise = owner.path / ".envrc", owner.path / "mise.toml"
    if where == "both":
        on_small(cage, "state")
    script = (
        "echo evil >a; echo evil >b; cat >filler 2>/dev/null </dev/zero;"
        "mv a mise.toml; mv b .envrc; echo; read x"
    )
    with cage.popen("sh", "-c", script, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        agent.stdout.readline()
        assert wait_until(lambda: not mise.exists(), 5)
        assert wait_until(lambda: not envrc.exists() or envrc.read_text() == "owner\n", 5)
        agent.communicate(b"\n", 60)
    assert not envrc.exists() or envrc.read_text() == "owner\n"
    cage.run("true")
    assert not mise.exists()
    (owner.path / "filler").unlink()
    cage.text("true")
    assert wait_until(envrc.exists, 5)
    assert envrc.read_text() == "owner\n"


def test_podmans_storage_full(make_cage: Callable[..., Cage], disk: Disk) -> None:
    cage = on_small(make_cage(), "storage")
    owner = Owner(cage)
    try:
        disk.fill()
        refused = cage.run("true")
        assert refused.code == STORAGE
        assert b"podman's storage" in refused.err
        disk.free()
        cage.text("sh", "-c", "echo kept >/kept;" + COMMIT + "second")
        disk.fill()
        assert cage.run("sh", "-c", "echo x >/x").code != 0
        cage.text("sh", "-c", COMMIT + "third")
        cage.stop()
        disk.free()
        assert cage.text("cat", "/kept") == "kept\n"
        assert owner.subjects() == ["third", "second", "first"]
        owner.check()
    finally:
        cage.cagewrap("rm", "--all", "--force")


def says_too_many_files(err: bytes, path: Path) -> bool:
    return says_full(err, path) and (b"inodes" in err or b"more files can be made" in err)


@pytest.mark.parametrize("leave", [0, 3, 8, 15, 30, 60])
def test_no_more_files_in_the_state_directory(cage: Cage, disk: Disk, leave: int) -> None:
    """It has space: `df -h` would not say what is wrong."""
    owner = Owner(on_small(cage, "state"))
    (SMALL / "state/cagewrap").mkdir(mode=0o700)
    disk.use_up(leave)
    done = cage.run("sh", "-c", COMMIT + "second")
    assert done.code == 0 or says_too_many_files(done.err, SMALL / "state"), done.err
    assert done.code in (0, STORAGE) or b"df -i" in done.err
    owner.check()
    disk.free()
    cage.text("sh", "-c", COMMIT + "third")
    assert "third" in owner.subjects()
    owner.check()


def test_no_more_files_for_the_copies_of_settings(cage: Cage, disk: Disk) -> None:
    """The message goes on with what it had, and says so."""
    home = cage.place.root / "owner"
    cage.env |= {"HOME": str(home), "XDG_DATA_HOME": str(Path.home() / ".local/share")}
    (home / ".claude").mkdir(parents=True)
    (home / ".claude/CLAUDE.md").write_text("old\n")
    (home / ".claude/settings.json").write_text('{"model": "old"}\n')
    on_small(cage, "state")
    (SMALL / "state/cagewrap").mkdir(mode=0o700)
    read = ("sh", "-c", "cat ~/.claude/CLAUDE.md; grep -c old ~/.claude/settings.json")
    assert cage.text(*read) == "old\n1\n"
    disk.use_up()
    (home / ".claude/CLAUDE.md").write_text("new\n")
    (home / ".claude/settings.json").write_text('{"model": "new"}\n')
    done = cage.run(*read)
    assert done.code == 0, done.err
    assert done.out == b"old\n1\n"
    assert b"could not be brought into the cage" in done.err
    disk.free()
    assert cage.run(*read).out == b"new\n0\n"


@pytest.mark.parametrize("leave", [0, 1, 2, 4, 7])
def test_no_more_files_in_the_project(small_project: Owner, disk: Disk, leave: int) -> None:
    owner, cage = small_project, small_project.cage
    script = (
        "echo; read x; git config user.name Agent; git tag v1;"
        + COMMIT
        + "second; echo evil >.envrc"
    )
    with cage.popen(
        "sh", "-c", script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as agent:
        assert agent.stdout is not None
        agent.stdout.readline()
        disk.use_up(leave)
        _, err = agent.communicate(b"\n", 60)
    assert agent.returncode == 0, err
    assert says_full(err, owner.path / ".git") or owner.subjects() == ["second", "first"], err
    assert not (owner.path / ".envrc").exists() or "evil" not in (owner.path / ".envrc").read_text()
    disk.free()
    cage.text("true")
    assert owner.subjects() == ["second", "first"]
    assert owner.git("tag") == "v1\n"
    assert wait_until((owner.path / ".envrc").exists, 5)
    owner.check()
