"""An agent plants what git runs, while the owner's git works in the same project: nothing runs.

What would run writes a file that only the host can see, so that it cannot be the agent itself.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .cages import Cage

pytestmark = pytest.mark.host_side

LOOK_S = 1.4
"""How long an agent lets the owner's git run after it planted something: twice a poll and more."""


class Owner:
    """The owner's git in the project, with nothing of this machine's configuration."""

    def __init__(self, cage: Cage) -> None:
        self.project = cage.project
        self.home = cage.place.root / "owner"
        self.home.mkdir()
        self.marker = cage.place.root / "pwned"
        self.trap = cage.place.root / "trap"
        self.trap.write_text(f'#!/bin/sh\necho "$0 $*" >> {self.marker}\n')
        self.trap.chmod(0o755)
        self.env = {
            "HOME": str(self.home),
            "PATH": os.environ["PATH"],
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            **{f"GIT_{who}_NAME": "Me" for who in ("AUTHOR", "COMMITTER")},
            **{f"GIT_{who}_EMAIL": "me@example.com" for who in ("AUTHOR", "COMMITTER")},
        }

    def git(self, *words: str, check: bool = True, cwd: Path | None = None) -> str:
        done = subprocess.run(
            ["git", *words],
            cwd=cwd or self.project,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=30,
        )
        assert done.returncode == 0 or not check, (words, done.stdout, done.stderr)
        return done.stdout

    def failing(self, *words: str) -> str:
        """What a git that fails says."""
        done = subprocess.run(
            ["git", *words], cwd=self.project, env=self.env, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode != 0
        return done.stderr

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """A prompt and an editor: git status and more, all the time."""
        is_over = threading.Event()
        commands = (
            ("status", "--porcelain", "-b"),
            ("diff", "HEAD"),
            ("log", "-3", "--stat", "--all"),
            ("branch", "-a"),
            ("stash", "list"),
            ("worktree", "list"),
            ("submodule", "status"),
        )

        def look() -> None:
            while not is_over.is_set():
                for command in commands:
                    self.git(*command, check=False)

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def afterwards(self) -> None:
        """What an owner does once the agent is done."""
        (self.project / "mine").write_text("mine\n")
        self.git("add", "mine")
        self.git("commit", "-q", "-m", "mine")
        for command in (
            ("status",), ("checkout", "-q", "-b", "other"), ("checkout", "-q", "-"),
            ("pull", "--no-edit"), ("fetch", "--all"), ("push",), ("gc", "--quiet"), ("stash",),
            ("st",), ("log", "-p", "--ext-diff"), ("rebase", "--continue"), ("worktree", "prune"),
            ("submodule", "update"),
        ):  # fmt: skip
            self.git(*command, check=False)


def begin(cage: Cage) -> Owner:
    """An owner with a repository."""
    found = Owner(cage)
    found.git("init", "-q", "-b", "main")
    (cage.project / "a").write_text("a\n")
    (cage.project / ".gitattributes").write_text("*.x filter=x diff=x merge=x\n")
    (cage.project / "b.x").write_text("b\n")
    found.git("add", ".")
    found.git("commit", "-q", "-m", "first")
    return found


@pytest.fixture
def owner(cage: Cage) -> Owner:
    return begin(cage)


CONFIG = """
git config core.fsmonitor "$TRAP"; git config core.hooksPath "$(dirname "$TRAP")"
git config core.sshCommand "$TRAP"; git config core.pager "$TRAP"; git config core.editor "$TRAP"
git config alias.st "!$TRAP"; git config diff.external "$TRAP"; git config gpg.program "$TRAP"
git config commit.gpgSign true; git config core.askPass "$TRAP"
for k in clean smudge process; do git config filter.x.$k "$TRAP"; done
git config diff.x.textconv "$TRAP"; git config diff.x.command "$TRAP"
git config merge.x.driver "$TRAP"; git config credential.helper "!$TRAP"
git config remote.origin.url "ext::$TRAP"; git config protocol.ext.allow always
git config remote.r2.url "ssh://-oProxyCommand=$TRAP/x"
git config remote.r3.url https://localhost:1/x; git config remote.r3.uploadpack "$TRAP"
git config branch.main.remote "ext::$TRAP"; git config branch.main.merge refs/heads/main
git config sequence.editor "$TRAP"; git config uploadpack.packObjectsHook "$TRAP"
git config gc.recentObjectsHook "$TRAP"; git config core.alternateRefsCommand "$TRAP"
"""

ATTACKS = {
    "hooks": """
        for hook in pre-commit post-commit post-checkout reference-transaction post-index-change \
                post-merge pre-push prepare-commit-msg commit-msg pre-auto-gc; do
            cp "$TRAPCOPY" .git/hooks/$hook; chmod +x .git/hooks/$hook; done""",
    "configuration": CONFIG,
    "include": """
        printf '[core]\\nfsmonitor = %s\\n' "$TRAP" > evil
        git config include.path ../evil; git config includeIf.gitdir:/.path ../evil""",
    "configuration written by hand": """
        printf '[core]\\n\\tfsmonitor = %s\\n[user "x"]\\nname = a\\n' "$TRAP" >> .git/config
        printf '[user]\\n\\tname = "x\\\\n[core]\\\\nfsmonitor=%s"\\n' "$TRAP" >> .git/config""",
    "commondir": """
        mkdir evil; cp -r .git/refs .git/HEAD evil/; mkdir evil/objects
        printf '[core]\\nfsmonitor = %s\\n' "$TRAP" > evil/config; echo ../evil > .git/commondir""",
    "configuration of work trees": """
        git config extensions.worktreeConfig true
        printf '[core]\\nfsmonitor = %s\\n' "$TRAP" > .git/config.worktree
        git worktree add -q wt; cp .git/config.worktree .git/worktrees/wt/""",
    "another directory in its place": """
        mv .git .g; mkdir .git; rm -rf .git; mv .git/hooks .git/h; rmdir .git
        git init -q evil; (cd evil; git config core.fsmonitor "$TRAP")
        mv evil/.git .git; ln -sfn evil/.git .git; echo 'gitdir: evil/.git' > .git; :""",
    "the project itself": """
        cp -r .git/HEAD .git/refs .; mkdir objects
        printf '[core]\\nbare = false\\nworktree = .\\nfsmonitor = %s\\n' "$TRAP" > config""",
    "a rebase's list": """
        mkdir .git/rebase-merge .git/sequencer
        echo "exec $TRAP" | tee .git/rebase-merge/git-rebase-todo > .git/sequencer/todo
        echo refs/heads/main > .git/rebase-merge/head-name
        git rev-parse HEAD | tee .git/rebase-merge/onto > .git/rebase-merge/orig-head""",
    "attributes": """
        echo '* filter=y' > .git/info/attributes; git config filter.y.clean "$TRAP"
        git config core.attributesFile evil; echo '* diff=y' > evil
        git config diff.y.textconv "$TRAP" """,
    "a new submodule": """
        git init -q evil; cd evil; git config core.fsmonitor "$TRAP"; git config user.name x
        git config user.email x; git commit -q --allow-empty -m x; cd ..
        git update-index --add --cacheinfo "160000,$(git -C evil rev-parse HEAD),evil" """,
    "a new submodule that is committed": """
        git init -q evil; cd evil; git config core.fsmonitor "$TRAP"; git config user.name x
        git config user.email x; git commit -q --allow-empty -m x; cd ..
        git config user.name x; git config user.email x; git add evil; git commit -q -m evil""",
    "alternates and grafts": """
        echo /etc > .git/objects/info/alternates; git rev-parse HEAD > .git/info/grafts
        printf '%s' x > .git/shallow; printf '%s' "$TRAP" > .git/gitdir""",
    "files that are none": """
        rm -f .git/HEAD; mkfifo .git/HEAD; rm -rf .git/logs; ln -s / .git/logs
        truncate -s 1G .git/refs/heads/huge; mkfifo .git/refs/heads/fifo .git/index.lock
        ln -s ../../../../a .git/refs/heads/link; mkfifo .git/MERGE_HEAD; rm .git/index
        mkfifo .git/index""",
    "a symlink to a directory of the owner's in refs and logs": """
        git branch x/y; rm -rf .git/refs/heads/x; ln -s "$(dirname "$TRAP")" .git/refs/heads/x
        rm -rf .git/logs/refs/heads/x; ln -s "$(dirname "$TRAP")" .git/logs/refs/heads/x
        git update-ref refs/heads/x/z HEAD""",
}


@pytest.mark.parametrize("name", ATTACKS)
def test_nothing_runs_on_the_host(cage: Cage, owner: Owner, name: str) -> None:
    script = f"""
        TRAP={owner.trap}; TRAPCOPY=.trap; printf '#!/bin/sh\\n{owner.trap}\\n' > .trap
        {ATTACKS[name]}
        sleep {LOOK_S}"""
    with owner.at_work():
        done = cage.run("sh", "-c", script)
    assert done.code == 0, done.err.decode()
    assert not owner.marker.exists(), owner.marker.read_text()
    owner.afterwards()
    assert not owner.marker.exists(), owner.marker.read_text()
    assert "mine" in owner.git("log", "--format=%s")
    owner.git("fsck", "--strict")
    cage.stop_all()
    owner.git("status")
    assert not owner.marker.exists(), owner.marker.read_text()


def test_the_trap_runs_where_nothing_holds(owner: Owner) -> None:
    """The attacks would be seen."""
    owner.git("config", "core.fsmonitor", str(owner.trap))
    owner.git("status")
    assert owner.marker.exists()


def submodule(owner: Owner, path: str) -> Path:
    other = owner.home / "other"
    owner.git("init", "-q", str(other), cwd=owner.home)
    owner.git("commit", "-q", "--allow-empty", "-m", "x", cwd=other)
    owner.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(other), path)
    owner.git("commit", "-q", "-m", "sub")
    return owner.project / path


SUBMODULE_ATTACKS = {
    "its file": "echo gitdir: ../../evil/.git > libs/sub/.git",
    "a new file": "rm -f libs/sub/.git; mv libs/sub/.git x; cp evil/.git -r libs/sub/.git",
    "its directory": "mv libs/sub s; rm -rf libs/sub; mkdir -p libs/sub; cp -r evil/.git libs/sub/",
    "the one above": "mv libs l; rm -rf libs; mkdir -p libs/sub; cp -r evil/.git libs/sub/",
    "its configuration": """cd libs/sub; git config core.fsmonitor "$TRAP"; git config user.name x
        git config user.email x; git commit -q --allow-empty -m inside""",
}


@pytest.mark.parametrize("name", SUBMODULE_ATTACKS)
@pytest.mark.parametrize("is_there", [True, False])
def test_nothing_runs_in_a_submodule(cage: Cage, owner: Owner, name: str, is_there: bool) -> None:
    sub = submodule(owner, "libs/sub")
    if not is_there:
        owner.git("submodule", "deinit", "-q", "-f", "--all")
        assert list(sub.iterdir()) == []
    script = f"""
        TRAP={owner.trap}
        git init -q evil; (cd evil; git config core.fsmonitor "$TRAP"; git config user.name x
            git config user.email x; git commit -q --allow-empty -m x)
        {SUBMODULE_ATTACKS[name]}
        sleep {LOOK_S}"""
    with owner.at_work():
        cage.run("sh", "-c", script)
    assert not owner.marker.exists(), owner.marker.read_text()
    if is_there and name == "its configuration":
        assert owner.git("log", "--format=%s", cwd=sub).split() == ["inside", "x"]
    owner.afterwards()
    assert not owner.marker.exists(), owner.marker.read_text()


def test_a_submodule_with_a_git_directory_of_its_own(cage: Cage, owner: Owner) -> None:
    sub = owner.project / "sub"
    owner.git("init", "-q", str(sub))
    owner.git("commit", "-q", "--allow-empty", "-m", "x", cwd=sub)
    owner.git("add", "sub")
    owner.git("commit", "-q", "-m", "sub")
    script = f"""
        git -C sub log --format=%s | grep -qx x || exit 1
        cd sub; git config core.fsmonitor {owner.trap}; echo {owner.trap} > .git/hooks/post-commit
        mv .git x; rm -rf .git; cd ..; mv sub x; sleep {LOOK_S}"""
    with owner.at_work():
        done = cage.run("sh", "-c", script)
    assert done.code == 0, done.err
    owner.afterwards()
    assert not owner.marker.exists(), owner.marker.read_text()
    assert owner.git("log", "--format=%s", cwd=sub) == "x\n"


def test_a_project_without_a_repository_does_not_become_a_bare_one(cage: Cage) -> None:
    owner = Owner(cage)
    script = f"""
        mkdir objects refs; echo ref: refs/heads/main > HEAD
        printf '[core]\\nbare = false\\nworktree = .\\nfsmonitor = %s\\n' {owner.trap} > config
        sleep 0.3"""
    assert cage.run("sh", "-c", script).code == 0
    assert "not a git repository" in owner.failing("status")
    assert not owner.marker.exists(), owner.marker.read_text()
    assert b"HEAD" in cage.cagewrap("review").out


@pytest.mark.parametrize("what", ["directory", "file", "the owner's"])
def test_what_an_agent_plants_when_the_host_removes_its_own(
    cage: Cage, owner: Owner, what: str
) -> None:
    """It has half a second, and then it is covered and harmless."""
    plant = {
        "directory": f"git init -q; git config core.fsmonitor {owner.trap}",
        "file": f"git init -q evil; git -C evil config core.fsmonitor {owner.trap};"
        "git -C evil config core.worktree $PWD; echo gitdir: evil/.git > .git",
        "the owner's": f"until git config core.fsmonitor {owner.trap}; do :; done",
    }[what]
    script = f"""
        cp -r .git/hooks .git/x; echo ready; until ! test -e .git; do :; done
        {plant}
        printf '#!/bin/sh\n{owner.trap}\n' > .git/hooks/post-commit; chmod +x .git/hooks/post-commit
        sleep {LOOK_S}"""
    with cage.popen("sh", "-c", script, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as shim:
        assert shim.stdout is not None
        assert shim.stdout.readline() == b"ready\n"
        (owner.project / ".git").rename(owner.home / "old.git")
        if what == "the owner's":
            owner.git("init", "-q", "-b", "main")
    owner.git("status", check=False)
    assert not owner.marker.exists(), owner.marker.read_text()
    owner.git("init", "-q", "-b", "main")
    owner.afterwards()
    assert not owner.marker.exists(), owner.marker.read_text()


def test_what_works_when_the_owner_moves_it_away_is_ended(cage: Cage, owner: Owner) -> None:
    """A process can have looked at what is not covered any more, and keep it open."""
    script = "echo ready; sleep 60"
    with cage.popen("sh", "-c", script, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as shim:
        assert shim.stdout is not None
        assert shim.stdout.readline() == b"ready\n"
        (owner.project / ".git").rename(owner.home / "old.git")
        err = shim.communicate(timeout=10)[1]
        assert shim.returncode == -9
    assert b".git of the project was removed or replaced" in err
    (owner.project / ".git").rmdir() if (owner.project / ".git").is_dir() else None
    (owner.home / "old.git").rename(owner.project / ".git")
    assert cage.text("git", "log", "--format=%s") == "first\n"
    assert owner.git("log", "--format=%s") == "first\n"


def test_a_mount_namespace_from_before_is_no_way_to_a_new_git_directory(
    cage: Cage, owner: Owner
) -> None:
    """What is covered later is not covered in there."""
    git = cage.project / ".git"
    evil = f"""
        echo ready; until test -e {cage.project}/go; do sleep 0.05; done
        git config --file {git}/config core.fsmonitor {owner.trap}
        cd {git}/hooks; printf '#!/bin/sh\n{owner.trap}\n' > post-commit; chmod +x post-commit
        sleep 30"""
    with cage.popen("unshare", "-Urm", "sh", "-c", evil, stdout=subprocess.PIPE) as shim:
        assert shim.stdout is not None
        assert shim.stdout.readline() == b"ready\n"
        git.rename(owner.home / "old.git")
        owner.git("init", "-q", "-b", "main")
        time.sleep(LOOK_S)
        (cage.project / "go").touch()
        shim.wait(10)
    owner.afterwards()
    assert not owner.marker.exists(), owner.marker.read_text()


def test_a_symlink_in_its_place_is_put_back(cage: Cage, owner: Owner) -> None:
    git = owner.project / ".git"
    git.rename(owner.project / "real.git")
    git.symlink_to("real.git")
    script = f"""
        git config core.fsmonitor {owner.trap}; git log --format=%s | grep -qx first || exit 1
        rm .git; git init -q; git config core.fsmonitor {owner.trap}; sleep {LOOK_S}"""
    done = cage.run("sh", "-c", script)
    assert done.code == 0, done.err
    assert b"is a symlink" in done.err
    assert os.readlink(git) == "real.git"
    owner.afterwards()
    assert not owner.marker.exists(), owner.marker.read_text()


def test_a_work_trees_file_cannot_be_changed(cage: Cage, owner: Owner) -> None:
    tree = owner.project.parent / "tree"
    owner.git("worktree", "add", "-q", str(tree))
    script = f"""
        git init -q evil; (cd evil; git config core.fsmonitor "{owner.trap}")
        echo gitdir: evil/.git > .git; rm -f .git; mv .git x; cp -r evil/.git .git
        git config core.fsmonitor "{owner.trap}"; echo "[core]fsmonitor={owner.trap}" > x
        sleep {LOOK_S}"""
    before = (tree / ".git").read_text()
    project, owner.project = owner.project, tree
    with owner.at_work():
        cage.run("sh", "-c", script, cwd=tree)
    assert (tree / ".git").read_text() == before
    owner.afterwards()
    owner.project = project
    owner.git("status")
    assert not owner.marker.exists(), owner.marker.read_text()


def test_objects_of_the_owners_cannot_be_removed_or_exchanged(cage: Cage, owner: Owner) -> None:
    oid = owner.git("rev-parse", "HEAD:a").strip()
    path = f"objects/{oid[:2]}/{oid[2:]}"
    done = cage.run("sh", "-c", f"rm -f .git/cagewrap/{path}; rm -rf .git")
    assert done.code != 0
    owner.git("fsck", "--strict")
    assert owner.git("cat-file", "-p", oid) == "a\n"


def test_an_object_that_is_not_what_it_is_named_does_not_arrive(cage: Cage, owner: Owner) -> None:
    script = """
        oid=$(echo evil | git hash-object -w --stdin); to=.git/objects/aa
        mkdir -p $to; cp .git/objects/$(echo $oid | cut -c1-2)/$(echo $oid | cut -c3-) \
            $to/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
        mkfifo $to/bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb; ln -s / $to/cc
        echo aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa > .git/refs/heads/evil
        git config user.name x; git config user.email x; git commit -q --allow-empty -m honest"""
    done = cage.run("sh", "-c", script)
    assert done.code == 0, done.err
    assert b"refs/heads/evil was not carried" in done.err
    assert not (owner.project / ".git/objects/aa").exists() or not list(
        (owner.project / ".git/objects/aa").iterdir()
    )
    assert owner.git("log", "--format=%s").split() == ["honest", "first"]
    owner.git("fsck", "--strict")


@pytest.mark.parametrize(
    "script",
    [
        "rm -rf .git/refs/heads .git/packed-refs .git/logs; mkdir .git/refs/heads",
        "rm -rf .git; sleep 1",
        "rm -rf .git/refs .git/packed-refs; mkdir .git/refs",
    ],
)
def test_branches_that_are_removed_stay_the_owners(
    cage: Cage, owner: Owner, plant: Callable[[str], None], script: str
) -> None:
    """Also those that are nowhere else. The next message has them again."""
    owner.git("branch", "side", owner.git("commit-tree", "-m", "work", "HEAD^{tree}").strip())
    before, log = owner.git("for-each-ref"), owner.git("reflog", "show", "main")
    plant(f"{script} || :; sleep 1")
    assert (owner.git("for-each-ref"), owner.git("reflog", "show", "main")) == (before, log)
    plant("git log -1 --format=%s side | grep -qx work && git log -1 --format=%s | grep -qx first")
    assert owner.git("for-each-ref") == before


def test_a_branch_that_is_deleted_is_kept(
    cage: Cage, owner: Owner, plant: Callable[[str], None]
) -> None:
    owner.git("branch", "side", owner.git("commit-tree", "-m", "work", "HEAD^{tree}").strip())
    plant("git branch; git branch -D side; git branch mine; git branch -D mine")
    (name,) = owner.git("for-each-ref", "--format=%(refname)", "refs/cagewrap").split()
    assert name.endswith("/deleted/heads/side")
    assert owner.git("log", "--format=%s", name) == "work\n"
    assert "side" not in owner.git("branch")
    out = cage.cagewrap("review").out.decode()
    assert name in out
    assert "deleted" in out
    owner.git("branch", "side", name)
    cage.cagewrap("review", "--drop", name)
    assert name not in owner.git("for-each-ref")
    plant("git log -1 --format=%s side | grep -qx work")


@pytest.fixture
def plant(cage: Cage) -> Callable[[str], None]:
    def run(script: str) -> None:
        assert cage.run("sh", "-c", script).code == 0

    return run


def test_what_the_host_replaces_is_covered_again(
    cage: Cage, owner: Owner, plant: Callable[[str], None]
) -> None:
    plant("true")
    old = owner.project / ".git"
    old.rename(owner.home / "old.git")
    owner.git("init", "-q", "-b", "main")
    owner.git("add", "a")
    owner.git("commit", "-q", "-m", "again")
    plant(f"git log --format=%s | grep -qx again && git config core.fsmonitor {owner.trap}")
    assert "fsmonitor" not in (owner.project / ".git/config").read_text()
    owner.git("status")
    assert not owner.marker.exists()
