"""git-lfs, the real one, on both sides: its files go both ways, and it runs nothing planted."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from .cages import Cage, wait_until
from .test_git_work import ME, SEEN_S, Repository

pytestmark = pytest.mark.host_side


@pytest.fixture
def repository(cage: Cage) -> Repository:
    """An owner's with one file of git-lfs in it, and git-lfs set up for the owner and the cage."""
    found = Repository(cage)
    found.git("lfs", "install", "--skip-repo")
    found.begin()
    found.git("lfs", "track", "*.bin")
    (found.path / "host.bin").write_bytes(b"host\n" * 1000)
    found.git("add", ".")
    found.git("commit", "-q", "-m", "large")
    found.inside("git lfs install --skip-repo >/dev/null")
    return found


@contextmanager
def at_work(repository: Repository, script: str) -> Iterator[None]:
    """While an agent runs that has done something."""
    words = ("sh", "-ec", f"{ME}{script}; echo ready; cat")
    with repository.cage.popen(*words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as shim:
        assert shim.stdout is not None
        assert shim.stdout.readline() == b"ready\n"
        yield
        assert shim.poll() is None
        shim.communicate()


def stored(repository: Repository) -> set[str]:
    """The files in the owner's store."""
    store = repository.path / ".git/lfs/objects"
    assert not [path for path in store.rglob("*") if path.is_symlink()]
    return {path.name for path in store.rglob("*") if path.is_file()}


def oid(repository: Repository, name: str) -> str:
    """What a committed pointer names."""
    text = repository.git("show", f"HEAD:{name}")
    assert text.startswith("version https://git-lfs.github.com/spec/v1\n")
    return text.partition("sha256:")[2][:64]


def test_what_is_committed_inside_is_whole_on_the_host(repository: Repository) -> None:
    """While the owner's prompt runs git status all the time."""
    script = """
        grep -c host host.bin; git status --porcelain
        for n in 1 2 3 4 5; do
            head -c 200000 /dev/urandom > new.bin; echo agent$n >> host.bin
            git add .; git commit -qm agent$n; done
        git lfs fsck; git status --porcelain; git lfs ls-files -n"""
    with repository.cage.popen(
        "sh", "-ec", ME + script, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as shim:
        while shim.poll() is None:
            repository.git("status", "--porcelain", "-b")
        out, err = shim.communicate()
    assert shim.returncode == 0, err
    assert out == b"1000\nGit LFS fsck OK\nhost.bin\nnew.bin\n"
    assert repository.subjects()[0] == "agent5"
    assert repository.git("status", "--porcelain") == ""
    for number in range(5):
        repository.git("checkout", "-q", f"HEAD~{number}")
        assert repository.git("lfs", "fsck") == "Git LFS fsck OK\n"
        assert (repository.path / "new.bin").stat().st_size == 200_000
        assert {oid(repository, "host.bin"), oid(repository, "new.bin")} <= stored(repository)
        repository.git("checkout", "-q", "main")
    # Nothing came from anywhere else: there is no server.
    assert repository.git("lfs", "ls-files", "-n") == "host.bin\nnew.bin\n"


def test_what_is_staged_inside_is_there_while_the_message_runs(repository: Repository) -> None:
    with at_work(repository, "head -c 100000 /dev/urandom > new.bin; git add new.bin"):
        staged = ("diff", "--cached", "--stat")
        assert wait_until(lambda: "new.bin" in repository.git(*staged), SEEN_S)
        repository.git("commit", "-q", "-m", "of the agent's")
        assert oid(repository, "new.bin") in stored(repository)
        content = (repository.path / "new.bin").read_bytes()
        (repository.path / "new.bin").unlink()
        repository.git("checkout", "new.bin")
        assert (repository.path / "new.bin").read_bytes() == content


def test_what_the_owner_commits_is_whole_inside(repository: Repository) -> None:
    with at_work(repository, "true"):
        repository.git("checkout", "-q", "-b", "other")
        (repository.path / "late.bin").write_text("late\n")
        repository.git("add", ".")
        repository.git("commit", "-q", "-m", "late")
        repository.git("checkout", "-q", "main")
    out = repository.inside(
        "git checkout -q other; cat late.bin; git lfs fsck; git lfs prune -f >/dev/null;"
        "git checkout -q main; git checkout -q other; cat late.bin; git checkout -q main"
    )
    assert out == "late\nGit LFS fsck OK\nlate\n"
    repository.git("checkout", "-q", "other")
    assert repository.git("lfs", "fsck") == "Git LFS fsck OK\n"


def test_the_owners_store_cannot_be_damaged(repository: Repository) -> None:
    before = stored(repository)
    name = oid(repository, "host.bin")
    script = f"""
        set +e
        file=.git/lfs/objects/{name[:2]}/{name[2:4]}/{name}
        echo evil > $file; rm -f $file; echo evil > $file
        head -c 100 /dev/urandom > x.bin; git add x.bin
        rm -rf .git/lfs; mkdir -p .git/lfs/objects; ln -s /etc .git/lfs/objects/aa
        echo more > y.bin; git add y.bin; git commit -qm more; true"""
    repository.inside(script)
    assert before <= stored(repository)
    (repository.path / "host.bin").unlink()
    repository.git("checkout", "host.bin")
    assert (repository.path / "host.bin").read_bytes() == b"host\n" * 1000


def test_a_linked_work_tree(cage: Cage, repository: Repository) -> None:
    tree = repository.path.parent / "tree"
    repository.git("worktree", "add", "-q", str(tree))
    out = repository.inside(
        "git lfs install --skip-repo >/dev/null; head -c 5 host.bin; echo agent > new.bin;"
        "git add new.bin; git commit -qm inside; git lfs fsck", cwd=tree,
    )  # fmt: skip
    assert out == "host\nGit LFS fsck OK\n"
    (tree / "new.bin").unlink()
    repository.git("checkout", "new.bin", cwd=tree)
    assert (tree / "new.bin").read_text() == "agent\n"


def test_what_git_lfs_installs_inside_stays_inside(repository: Repository) -> None:
    """Its filters and hooks are programs. They are the agent's, until the owner hands them over."""
    (repository.path / ".git/hooks/pre-push").unlink()
    config = (repository.path / ".git/config").read_text()
    hooks = sorted(path.name for path in (repository.path / ".git/hooks").iterdir())
    repository.inside(
        "git lfs install --local --force; git config filter.lfs.smudge | grep -q git-lfs;"
        "test -x .git/hooks/pre-push; echo agent > new.bin; git add new.bin; git commit -qm new"
    )
    assert (repository.path / ".git/config").read_text() == config
    assert sorted(path.name for path in (repository.path / ".git/hooks").iterdir()) == hooks
    review = repository.cage.cagewrap("review").out.decode()
    assert "filter.lfs.smudge" in review
    assert "hooks/pre-push" in review
    assert repository.git("lfs", "fsck") == "Git LFS fsck OK\n"


TRANSFER = """
[lfs]
    url = {server}
    standalonetransferagent = evil
[lfs "customtransfer.evil"]
    path = {trap}
    args = custom transfer
"""
EXTENSION = """
[lfs "extension.evil"]
    clean = {trap} clean %f
    smudge = {trap} smudge %f
    priority = 0
"""
ALL = (
    TRANSFER
    + """
[lfs]
    concurrenttransfers = 1
    basictransfersonly = false
    storage = {storage}
    sshtransfer = always
[lfs "{server}"]
    standalonetransferagent = evil
    access = negotiate
[lfs "transfer"]
    enablehrefrewrite = true
[core]
    sshCommand = {trap}
    askPass = {trap}
    fsmonitor = {trap}
    editor = {trap}
[credential]
    helper = {trap}
[filter "lfs"]
    clean = {trap} clean
    smudge = {trap} smudge
    process = {trap} process
[remote "origin"]
    lfsurl = {server}
    url = ext::{trap}
[url "ext::{trap} "]
    insteadOf = file://
"""
)
"""All that can name a program, or where files are, to git-lfs and the git it calls."""
SERVERS = {
    "a directory": "file://{directory}",
    "ssh": "ssh://-oProxyCommand={trap}/x",
    "a program": "ext::{trap}",
}
OWNERS_WORK = (
    ("status",), ("diff", "HEAD"), ("checkout", "-q", "--", "."), ("lfs", "env"),
    ("lfs", "status"), ("lfs", "ls-files"), ("lfs", "fetch", "--all"), ("lfs", "pull"),
    ("lfs", "checkout"), ("lfs", "fsck"), ("lfs", "prune"), ("lfs", "push", "--all", "origin"),
    ("lfs", "locks"), ("lfs", "migrate", "info"), ("push", "origin", "main"), ("fetch", "origin"),
)  # fmt: skip
MISSING = f"version https://git-lfs.github.com/spec/v1\\noid sha256:{64 * 'a'}\\nsize 12\\n"


class Trap:
    """A program that leaves a trace, and texts that name it."""

    def __init__(self, repository: Repository) -> None:
        above = repository.path.parent
        self.marker, self.path, self.storage = above / "pwned", above / "trap", above / "storage"
        self.path.write_text(f'#!/bin/sh\necho "$0 $*" >> {self.marker}\ncat\n')
        self.path.chmod(0o755)
        self.directory = above / "server.git"
        repository.git("init", "-q", "--bare", str(self.directory))
        repository.git("remote", "add", "origin", str(self.directory))
        repository.git("push", "-q", "origin", "main")

    def text(self, text: str, server: str) -> str:
        address = server.format(directory=self.directory, trap=self.path)
        return text.format(trap=self.path, server=address, storage=self.storage)


def plant_pointer(repository: Repository) -> None:
    """Commit, inside, a pointer to a file that is nowhere: git-lfs goes and looks for it."""
    repository.inside(
        f"printf '{MISSING}' > missing.txt; blob=$(git hash-object -w missing.txt)\n"
        "git update-index --add --cacheinfo 100644,$blob,missing.bin; git commit -qm evil"
    )
    assert "missing.bin" in repository.git("lfs", "ls-files", "-n")


def work(repository: Repository) -> None:
    """What an owner does afterwards, with files of git-lfs that are here and that are not."""
    (repository.path / "mine.bin").write_text("mine\n")
    repository.git("add", "mine.bin", check=False)
    repository.git("commit", "-q", "-m", "mine", check=False)
    for words in OWNERS_WORK:
        repository.git(*words, check=False)


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("text", [ALL, EXTENSION], ids=["all", "extension"])
def test_what_an_agent_tells_git_lfs_runs_nothing(
    repository: Repository, text: str, server: str
) -> None:
    """`.lfsconfig` is a file of the project. git-lfs takes from it what names no program."""
    trap = Trap(repository)
    plant_pointer(repository)
    repository.inside("cat > .lfsconfig; sleep 1", stdin=trap.text(text, SERVERS[server]).encode())
    assert "evil" in (repository.path / ".lfsconfig").read_text()
    work(repository)
    assert not trap.marker.exists(), trap.marker.read_text()
    assert not trap.storage.exists()


@pytest.mark.parametrize(
    ("text", "trace"), [(TRANSFER, "custom transfer"), (EXTENSION, "clean")], ids=["t", "e"]
)
def test_the_trap_works(repository: Repository, text: str, trace: str) -> None:
    """The same texts where git-lfs takes all of them."""
    trap = Trap(repository)
    plant_pointer(repository)
    with (repository.path / ".git/config").open("a") as file:
        file.write(trap.text(text, "https://localhost:1/x"))
    work(repository)
    assert trace in trap.marker.read_text()
