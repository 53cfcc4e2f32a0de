"""Honest work with git in a cage, and the owner's at the same time: each sees the other's."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .cages import Cage, Shim, kill_keepers, wait_until

pytestmark = pytest.mark.host_side

SEEN_S = 2.0
"""Within this, one side sees what the other did while an agent works."""
ME = "".join(
    f"export GIT_{who}_NAME=Agent GIT_{who}_EMAIL=agent@example.com; "
    for who in ("AUTHOR", "COMMITTER")
)


class Repository:
    """The owner's, in a project."""

    def __init__(self, cage: Cage, path: Path | None = None) -> None:
        self.cage = cage
        self.path = path or cage.project
        self.env = {
            "HOME": str(cage.place.root),
            "PATH": os.environ["PATH"],
            "GIT_CONFIG_NOSYSTEM": "1",
            **{f"GIT_{who}_NAME": "Me" for who in ("AUTHOR", "COMMITTER")},
            **{f"GIT_{who}_EMAIL": "me@example.com" for who in ("AUTHOR", "COMMITTER")},
        }

    def git(self, *words: str, check: bool = True, cwd: Path | None = None) -> str:
        done = subprocess.run(
            ["git", "-c", "protocol.file.allow=always", *words],
            cwd=cwd or self.path,
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0 or not check, (words, done.stdout, done.stderr)
        return done.stdout

    def begin(self) -> None:
        self.git("init", "-q", "-b", "main")
        self.commit("first")

    def commit(self, name: str) -> None:
        (self.path / name).write_text(f"{name}\n")
        self.git("add", name)
        self.git("commit", "-q", "-m", name)

    def subjects(self, *of: str) -> list[str]:
        return self.git("log", "--format=%s", *of).split()

    def inside(self, script: str, **options: object) -> str:
        done = self.cage.run("sh", "-ec", ME + script, **options)
        assert done.code == 0, (done.out, done.err)
        return done.out.decode()


@pytest.fixture
def repository(cage: Cage) -> Repository:
    found = Repository(cage)
    found.begin()
    return found


@pytest.fixture
def agent(repository: Repository) -> Iterator[Callable[[str], Shim]]:
    """Starts an agent that says `ready` on its stdout, and runs on until its stdin is closed."""
    started: list[Shim] = []

    def start(script: str) -> Shim:
        shim = repository.cage.popen(
            "sh", "-ec", f"{ME}\n{script}\necho ready; cat >/dev/null",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        started.append(shim)
        assert shim.stdout is not None
        assert shim.stdout.readline() == b"ready\n", shim.communicate()
        return shim

    yield start
    for shim in started:
        shim.kill()
        shim.communicate()


def test_a_commit_is_seen_on_the_host_when_the_message_ends(repository: Repository) -> None:
    repository.inside(
        "git config user.name Agent; echo x > x; git add x; git commit -qm second; git tag v1;"
        "git branch topic"
    )
    assert repository.subjects() == ["second", "first"]
    assert repository.git("status", "--porcelain") == ""
    assert repository.git("tag") == "v1\n"
    assert "topic" in repository.git("branch")
    assert repository.git("config", "user.name") == "Agent\n"
    assert "commit: second" in repository.git("reflog")
    assert repository.git("fsck", "--strict", "--no-dangling") == ""


def test_a_commit_is_seen_on_the_host_while_the_message_runs(
    repository: Repository, agent: Callable[[str], Shim]
) -> None:
    agent("echo x > x; git add x; git commit -qm second")
    assert wait_until(lambda: repository.subjects() == ["second", "first"], SEEN_S)
    assert wait_until(lambda: repository.git("status", "--porcelain") == "", SEEN_S)


def test_a_commit_of_the_hosts_is_seen_inside_while_the_message_runs(
    repository: Repository, agent: Callable[[str], Shim]
) -> None:
    shim = agent("true")
    repository.commit("second")
    assert wait_until(lambda: "second" in repository.inside("git log --format=%s"), SEEN_S)
    assert repository.inside("git status --porcelain") == ""
    assert shim.poll() is None


def test_commits_of_both_at_the_same_time_lose_nothing(
    repository: Repository, agent: Callable[[str], Shim]
) -> None:
    count = 15
    shim = repository.cage.popen(
        "sh", "-c",
        f"{ME} for n in $(seq {count}); do git commit -q --allow-empty -m agent$n; sleep 0.1; done",
        stderr=subprocess.PIPE,
    )  # fmt: skip
    with shim:
        for number in range(count):
            repository.git("commit", "-q", "--allow-empty", "-m", f"owner{number}", check=False)
        _, err = shim.communicate(timeout=60)
    repository.inside("true")
    everywhere = set(repository.subjects("--all", "--reflog"))
    owners = {one for one in everywhere if one.startswith("owner")}
    agents = {one for one in everywhere if one.startswith("agent")}
    assert owners | agents | {"first"} == everywhere
    assert len(owners) == count, err
    assert len(agents) > count // 2, err
    assert repository.git("fsck", "--strict", "--no-dangling") == ""
    assert repository.inside("git rev-parse HEAD") == repository.git("rev-parse", "HEAD")


def test_a_conflict_is_told_and_both_sides_are_kept(repository: Repository) -> None:
    repository.inside("true")
    time.sleep(0.5)  # until it has looked once more
    keeper = repository.cage.keeper()
    os.kill(keeper, signal.SIGSTOP)  # nobody carries anything
    try:
        init = repository.cage.init()
        copy = next(Path(repository.cage.place.state_home).glob("cagewrap/cages/*/git/copy"))
        assert init
        repository.commit("mine")
        inside = ["--git-dir", str(copy), "commit", "-q", "--allow-empty", "-m", "agents"]
        env = {"GIT_ALTERNATE_OBJECT_DIRECTORIES": str(repository.path / ".git/objects")}
        repository.env |= env
        repository.git(*inside)
    finally:
        os.kill(keeper, signal.SIGCONT)
    done = repository.cage.run("git", "log", "--format=%s", "--all")
    label = repository.cage.names()[0].removeprefix("cagewrap-")
    assert f"refs/cagewrap/{label}/heads/main" in done.err.decode()
    assert repository.subjects() == ["mine", "first"]
    assert repository.subjects(f"refs/cagewrap/{label}/heads/main") == ["agents", "first"]
    assert set(done.out.decode().split()) == {"mine", "agents", "first"}
    assert repository.cage.run("true").err == b""


def test_what_agents_do_all_day(repository: Repository) -> None:
    repository.inside("""
        git remote add origin https://example.com/x.git; git checkout -qb topic
        echo 2 > first; git commit -qam two; git checkout -q main; echo 3 > other; git add other
        git commit -qm three; git merge -q --no-edit topic; echo 4 > first; git stash -q
        git stash pop -q; git commit -qam four; git rebase -q HEAD~1; git cherry-pick --allow-empty topic ||
        git cherry-pick --abort; git reset -q --soft HEAD~1; git commit -qm five; git gc -q
        git branch -d topic; git config branch.main.remote origin
        git config branch.main.merge refs/heads/main; git status --porcelain; git fsck --strict""")  # noqa: E501
    assert repository.subjects()[0] == "five"
    assert repository.git("remote", "get-url", "origin") == "https://example.com/x.git\n"
    assert repository.git("status", "--porcelain") == ""
    assert repository.git("fsck", "--strict", "--no-dangling") == ""
    assert repository.git("branch", "--format=%(refname)") == "refs/heads/main\n"


def test_hooks_of_the_owners_run_inside(repository: Repository) -> None:
    hook = repository.path / ".git/hooks/pre-commit"
    hook.write_text("#!/bin/sh\necho ran > hooked\n")
    hook.chmod(0o755)
    repository.inside("git commit -q --allow-empty -m x; test -e hooked")


def test_a_work_tree_in_the_project(repository: Repository) -> None:
    repository.inside("""
        git worktree add -q trees/x; cd trees/x; echo y > y; git add y; git commit -qm inside
        git worktree add -q ../../../beside""")
    tree = repository.path / "trees/x"
    assert repository.subjects("x") == ["inside", "first"]
    assert repository.git("status", "--porcelain", "-b", cwd=tree) == "## x\n"
    assert str(tree) in repository.git("worktree", "list")
    (tree / "z").write_text("z\n")
    repository.git("add", "z", cwd=tree)
    repository.git("commit", "-q", "-m", "outside", cwd=tree)
    assert repository.inside("cd trees/x; git log --format=%s; git status --porcelain") == (
        "outside\ninside\nfirst\n"
    )
    repository.inside("git worktree remove trees/x")
    assert str(tree) not in repository.git("worktree", "list")
    assert repository.git("branch", "--format=%(refname:short)").split() == ["beside", "main", "x"]


def test_a_linked_work_tree_as_the_project(cage: Cage, repository: Repository) -> None:
    tree = repository.path.parent / "tree"
    repository.git("worktree", "add", "-q", str(tree))
    repository.inside("echo y > y; git add y; git commit -qm inside; git status -sb", cwd=tree)
    assert repository.subjects("tree") == ["inside", "first"]
    assert repository.git("status", "--porcelain", "-b", cwd=tree) == "## tree\n"
    assert repository.git("status", "--porcelain", "-b") == "## main\n"
    repository.git("commit", "-q", "--allow-empty", "-m", "mine")
    assert repository.inside("git log --format=%s main", cwd=tree) == "mine\nfirst\n"


def test_a_submodule_as_the_project(cage: Cage, repository: Repository) -> None:
    other = Repository(cage, cage.place.root / "other")
    other.path.mkdir()
    other.begin()
    repository.git("submodule", "add", "-q", str(other.path), "sub")
    sub = Repository(cage, repository.path / "sub")
    sub.inside("git commit -q --allow-empty -m inside", cwd=sub.path)
    assert sub.subjects() == ["inside", "first"]
    assert sub.git("status", "--porcelain") == ""


def test_submodules_of_the_project(cage: Cage, repository: Repository) -> None:
    other = Repository(cage, cage.place.root / "other")
    other.path.mkdir()
    other.begin()
    repository.git("submodule", "add", "-q", str(other.path), "libs/sub")
    repository.git("commit", "-q", "-m", "sub")
    repository.inside(
        "cd libs/sub; git commit -q --allow-empty -m inside; cd ../..; git add libs/sub;"
        "git commit -qm bump; git submodule status; git status --porcelain"
    )
    sub = Repository(cage, repository.path / "libs/sub")
    assert sub.subjects() == ["inside", "first"]
    assert repository.subjects()[0] == "bump"
    assert repository.git("status", "--porcelain") == ""
    assert repository.git("submodule", "status").startswith(f" {sub.git('rev-parse', 'HEAD')[:40]}")


def test_a_project_without_a_repository(cage: Cage) -> None:
    repository = Repository(cage)
    assert repository.inside("git status 2>&1 | head -1; ls -A .git") != ""
    assert repository.git("rev-parse", "--git-dir", check=False) == ""
    cage.stop()
    assert not (repository.path / ".git").exists()
    repository.inside("git init -q -b main; echo x > x; git add x; git commit -qm first; git gc -q")
    assert repository.subjects() == ["first"]
    assert repository.git("status", "--porcelain") == ""
    cage.stop()
    repository.commit("second")
    repository.inside("git log --format=%s | grep -qx second; git commit -q --allow-empty -m third")
    assert repository.subjects() == ["third", "second", "first"]
    assert repository.git("fsck", "--strict", "--no-dangling") == ""


def test_a_repository_the_owner_makes_while_an_agent_works(cage: Cage) -> None:
    repository = Repository(cage)
    with cage.popen("sh", "-c", "echo ready; cat", stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE) as shim:  # fmt: skip
        assert shim.stdout is not None
        assert shim.stdout.readline() == b"ready\n"
        repository.begin()
        assert wait_until(lambda: cage.run("git", "log", "--format=%s").out == b"first\n", SEEN_S)
        shim.communicate()
    repository.inside("git commit -q --allow-empty -m second")
    assert repository.subjects() == ["second", "first"]


@pytest.mark.parametrize("end", ["stop", "kill", "kill, then rm", "rm", "recreate"])
def test_nothing_is_lost_when_a_cage_ends(repository: Repository, end: str) -> None:
    """What a background process committed after its message ended, too."""
    # podman 4.3's commit wants a runroot in a storage.conf that is not below ~/.config.
    del repository.cage.env["XDG_CONFIG_HOME"]
    repository.inside("(sleep 0.3; git commit -q --allow-empty -m late) >/dev/null 2>&1 &")
    assert wait_until(lambda: "late" in copy_log(repository), 5)
    cage = repository.cage
    if end.startswith("kill"):
        kill_keepers(cage.names()[0])
    if end == "kill":
        repository.inside("true")
    elif end == "kill, then rm":
        assert cage.cagewrap("rm", "--force").code == 0
    else:
        done = cage.cagewrap(end, *(["--force"] if end == "rm" else []))
        assert done.code == 0, done.err
    assert repository.subjects() == ["late", "first"]
    assert cage.cagewrap("rm", "--all", "--force").code == 0  # with the image that recreate made


def test_a_session_with_commits_that_cannot_be_carried_is_not_removed(
    repository: Repository,
) -> None:
    cage = repository.cage
    repository.inside("(sleep 0.3; git commit -q --allow-empty -m late) >/dev/null 2>&1 &")
    assert wait_until(lambda: "late" in copy_log(repository), 5)
    lock = repository.path / ".git/refs/heads/main.lock"
    lock.touch()
    kill_keepers(cage.names()[0])
    done = cage.cagewrap("rm")
    assert done.code == 120, done
    assert b"is not all in" in done.err
    assert repository.subjects() == ["first"]
    lock.unlink()
    assert cage.cagewrap("rm").code == 0
    assert repository.subjects() == ["late", "first"]


def test_a_cage_for_one_command(repository: Repository) -> None:
    repository.inside("git commit -q --allow-empty -m x", flags=("--rm",))
    assert repository.subjects() == ["x", "first"]


def copy_log(repository: Repository) -> str:
    """HEAD's log in the cage's copy."""
    found = list(Path(repository.cage.place.state_home).glob("cagewrap/cages/*/git/copy/logs/HEAD"))
    return found[0].read_text() if found else ""


def test_two_cages_of_a_project_see_each_others_commits(repository: Repository) -> None:
    for number, name in enumerate(("one", "two", "one")):
        out = repository.inside(
            f"git commit -q --allow-empty -m c{number}; git log --format=%s",
            flags=("--session", name),
        )
        assert out.split()[:-1] == [f"c{n}" for n in reversed(range(number + 1))]
    assert repository.subjects() == ["c2", "c1", "c0", "first"]


@pytest.mark.parametrize("name", ["cagewrap/lfs/objects", "annex/objects"])
def test_stores_of_large_files_are_seen_and_not_written(repository: Repository, name: str) -> None:
    """A symlink of the agent's there would lead the owner's git-lfs to any file of the owner's."""
    store = repository.path / ".git" / name.removeprefix("cagewrap/") / "aa"
    store.mkdir(parents=True)
    (store / "x").write_text("host\n")
    out = repository.inside(
        f"set +e; cd .git/{name}; cat aa/x; ln -s /etc/passwd aa/y; echo evil > aa/x; rm -rf aa;"
        " ls aa; mkdir bb; cd ..; mv objects o; ln -s / objects; mount -o remount,rw,bind objects;"
        " ls objects"
    )
    assert out == "host\nx\naa\n"
    assert [path.name for path in store.parent.rglob("*")] == ["aa", "x"]
    assert (store / "x").read_text() == "host\n"


@pytest.mark.parametrize("is_there", [True, False])
def test_files_of_lfs_go_both_ways(repository: Repository, *, is_there: bool) -> None:
    store = repository.path / ".git/lfs/objects"
    host, cage = (large_path(text) for text in ("host", "cage"))
    if is_there:
        (store / host).parent.mkdir(parents=True)
        (store / host).write_text("host\n")
    out = repository.inside(
        f"cat .git/lfs/objects/{host} || :; mkdir -p .git/lfs/tmp; cd .git/lfs; echo cage > tmp/x;"
        f"mkdir -p $(dirname objects/{cage}) objects/aa/aa; mv tmp/x objects/{cage};"
        f"ln -s /etc/passwd objects/aa/aa/{64 * 'a'}; echo x > objects/aa/aa/{62 * 'a'}bb;"
        "cd ../..; git commit -q --allow-empty -m x"
    )
    assert out == ("host\n" if is_there else "")
    assert (store / cage).read_text() == "cage\n"
    found = [path for path in store.rglob("*") if not path.is_dir() or path.is_symlink()]
    assert len(found) == 1 + is_there
    repository.inside(f"grep -qx cage .git/lfs/objects/{cage}")


def test_what_is_borrowed_is_named_by_its_path(repository: Repository) -> None:
    """git-lfs takes a relative one for one of the directory where it was called."""
    out = repository.inside(
        "cat .git/objects/info/alternates; ls $(cat .git/objects/info/alternates) | grep pack;"
        "git commit -q --allow-empty -m x; git fsck --strict"
    )
    assert out == f"{repository.path}/.git/cagewrap/objects\npack\n"
    assert repository.subjects() == ["x", "first"]
    assert repository.inside("git log --format=%s; git fsck") == "x\nfirst\n"


def large_path(text: str) -> str:
    name = hashlib.sha256(f"{text}\n".encode()).hexdigest()
    return f"{name[:2]}/{name[2:4]}/{name}"


def test_as_the_owner_inside(make_cage: Callable[..., Cage]) -> None:
    repository = Repository(make_cage("--user", "owner"))
    repository.begin()
    repository.inside("echo x > x; git add x; git commit -qm second; git status -s", timeout_s=110)
    assert repository.subjects() == ["second", "first"]
    assert repository.git("status", "--porcelain") == ""


def test_a_spelling_through_a_symlink_is_covered(repository: Repository) -> None:
    link = repository.path.parent / "link"
    link.symlink_to(repository.path)
    env = {"PWD": str(link)}
    script = "git config core.fsmonitor evil; git commit -q --allow-empty -m x; ! mv .git x"
    repository.inside(f"cd {link}; {script}", cwd=link, env=env)
    assert "fsmonitor" not in (repository.path / ".git/config").read_text()
    assert repository.subjects() == ["x", "first"]


def test_a_repository_that_no_cage_may_write_to(cage: Cage) -> None:
    """git does not work then, as `--dry-run` says; all else does."""
    place = Path.home() / ".cache" / "cagewrap-test-repository"
    place.mkdir(parents=True)
    repository = Repository(cage, place)
    try:
        repository.begin()
        tree = cage.place.root / "tree"
        repository.git("worktree", "add", "-q", str(tree))
        done = cage.run("sh", "-c", "git log; echo changed > .git; echo ran", cwd=tree)
        assert done.out == b"ran\n"
        assert repository.git("status", "--porcelain", "-b", cwd=tree) == "## tree\n"
    finally:
        shutil.rmtree(place)


def test_keepers_that_are_killed_at_work_lose_nothing(repository: Repository) -> None:
    for number in range(6):
        shim = repository.cage.popen(
            "sh", "-c",
            f"{ME} for n in $(seq 20); do git commit -q --allow-empty -m agent{number}-$n; done",
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        with shim:
            time.sleep(0.2 + 0.07 * number)
            kill_keepers(repository.cage.names()[0])
            shim.wait(30)
        repository.git("commit", "-q", "--allow-empty", "-m", f"owner{number}")
    inside = set(repository.inside("git log --format=%s --all --reflog").split())
    outside = set(repository.subjects("--all", "--reflog"))
    assert inside <= outside
    assert {f"owner{number}" for number in range(6)} <= outside
    assert [one for one in outside if one.startswith("agent")]
    assert repository.git("fsck", "--strict", "--no-dangling") == ""
    assert list((repository.path / ".git").rglob("*.lock")) == []
