"""What reaches the host of a cage's private copy of .git, and what the cage gets: with real git.

The two git directories share one work tree, and the copy borrows the host's objects through a
symlink, where a cage has a mount.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cagewrap.gitcarry import index_pack
from cagewrap.gitsync.pair import Pair
from cagewrap.gitsync.sync import Outcome, carry

OIDS = 40


class Twin:
    """A repository of the host's, and the copy that a cage has: `host(…)` and `cage(…)` run git
    in the one work tree, with one or the other."""

    def __init__(self, root: Path, *, init: bool = True, kind: str = "sha1") -> None:
        self.root = root
        self.work = root / "work"
        self.git_dir = self.work / ".git"
        self.copy = root / "state" / "copy"
        self.work.mkdir()
        self.copy.mkdir(parents=True)
        self.env = {
            "HOME": str(root),
            "PATH": os.environ["PATH"],
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_AUTHOR_NAME": "Me",
            "GIT_AUTHOR_EMAIL": "me@example.com",
            "GIT_COMMITTER_NAME": "Me",
            "GIT_COMMITTER_EMAIL": "me@example.com",
        }
        self.borrows = init
        if init:
            self.host("init", "-q", "-b", "main", f"--object-format={kind}")
            (self.work / "a").write_text("1\n")
            self.host("add", "a")
            self.host("commit", "-q", "-m", "first")
            (self.copy / "cagewrap").mkdir()
            (self.copy / "cagewrap/objects").symlink_to(self.git_dir / "objects")

    def pair(self) -> Pair:
        return Pair(
            host=str(self.git_dir),
            copy=str(self.copy),
            base_file=str(self.root / "state" / "base.json"),
            project=str(self.work),
            session="s",
            borrows=self.borrows,
            inside_ids=(os.getuid(), os.getgid()),
        )

    def carry(self) -> list[str]:
        outcome = self.outcome()
        return outcome.notes + outcome.states

    def refill(self) -> None:
        """As at the start of a message."""
        carry(self.pair(), index_pack, may_refill=True)
        if not (self.copy / "cagewrap/objects").is_symlink():
            (self.copy / "cagewrap").mkdir(exist_ok=True)
            (self.copy / "cagewrap/objects").symlink_to(self.git_dir / "objects")

    def outcome(self) -> Outcome:
        return carry(self.pair(), index_pack)

    def git(self, git_dir: Path, *words: str, check: bool = True) -> str:
        done = subprocess.run(
            ["git", f"--git-dir={git_dir}", f"--work-tree={self.work}", *words],
            cwd=self.work,
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0 or not check, done.stderr
        return done.stdout

    def host(self, *words: str, check: bool = True) -> str:
        return self.git(self.git_dir, *words, check=check)

    def cage(self, *words: str, check: bool = True) -> str:
        return self.git(self.copy, *words, check=check)

    def commit(self, where: str, name: str) -> None:
        (self.work / name).write_text(f"{name}\n")
        git = self.host if where == "host" else self.cage
        git("add", name)
        git("commit", "-q", "-m", name)

    def subjects(self, *of: str) -> list[str]:
        return self.host("log", "--format=%s", *of).split()


@pytest.fixture
def twin(tmp_path: Path) -> Twin:
    found = Twin(tmp_path)
    assert found.carry() == []
    return found


def test_copy_is_a_repository_like_the_hosts(twin: Twin) -> None:
    assert twin.cage("log", "--format=%s") == "first\n"
    assert twin.cage("status", "--porcelain") == ""


def test_commit_of_the_agents_reaches_the_host(twin: Twin) -> None:
    twin.commit("cage", "b")
    assert twin.carry() == []
    assert twin.subjects() == ["b", "first"]
    assert twin.host("status", "--porcelain") == ""
    assert "commit: b" in twin.host("reflog", "show", "HEAD")
    assert "commit: b" in twin.host("reflog", "show", "main")
    twin.host("fsck", "--strict")


def test_commit_of_the_hosts_reaches_the_agent(twin: Twin) -> None:
    twin.commit("host", "b")
    assert twin.carry() == []
    assert twin.cage("log", "--format=%s") == "b\nfirst\n"
    assert twin.cage("status", "--porcelain") == ""
    assert "commit: b" in twin.cage("reflog", "show", "HEAD")


def test_commits_of_both_keep_the_hosts_and_save_the_agents(twin: Twin) -> None:
    twin.commit("host", "b")
    twin.commit("cage", "c")
    notes = twin.carry()
    assert twin.subjects() == ["b", "first"]
    assert twin.subjects("refs/cagewrap/s/heads/main") == ["c", "first"]
    assert twin.cage("log", "--format=%s", "refs/cagewrap/s/heads/main") == "c\nfirst\n"
    assert twin.cage("log", "--format=%s") == "b\nfirst\n"
    assert any("refs/cagewrap/s/heads/main" in note for note in notes)
    assert twin.carry() == []
    twin.host("fsck", "--strict")


@pytest.mark.parametrize("obstacle", ["a lock", "a file"])
def test_what_cannot_be_saved_yet_stays_the_agents(twin: Twin, obstacle: str) -> None:
    twin.commit("host", "theirs")
    twin.commit("cage", "agents")
    agents = twin.cage("rev-parse", "main")
    path = twin.git_dir / "refs/cagewrap/s"
    if obstacle == "a lock":
        (path / "heads").mkdir(parents=True)
        path /= "heads/main.lock"
    else:
        path.parent.mkdir(parents=True)
    path.touch()
    assert not any("the agent's is" in note for note in twin.carry())
    assert twin.cage("rev-parse", "main") == agents
    path.unlink()
    assert any("the agent's is" in note for note in twin.carry())
    assert twin.host("rev-parse", "refs/cagewrap/s/heads/main") == agents
    assert twin.cage("rev-parse", "main") == twin.host("rev-parse", "main")


def test_a_commit_on_no_branch_is_saved_when_you_check_out_another(twin: Twin) -> None:
    twin.host("branch", "other")
    assert twin.carry() == []
    twin.cage("checkout", "-q", "--detach")
    twin.commit("cage", "agents")
    agents = twin.cage("rev-parse", "HEAD")
    twin.host("symbolic-ref", "HEAD", "refs/heads/other")
    assert any("HEAD was changed by you" in note for note in twin.carry())
    assert agents in twin.host("rev-list", "--all").splitlines(keepends=True)
    assert twin.cage("symbolic-ref", "HEAD") == "refs/heads/other\n"


def test_a_log_is_not_carried_ahead_of_its_ref(twin: Twin) -> None:
    """The agent commits again while its last commit is carried: git writes the log first."""
    twin.commit("cage", "b")
    twin.commit("cage", "c")
    ahead = twin.cage("rev-parse", "HEAD").strip()
    (twin.copy / "refs/heads/main").write_text(twin.cage("rev-parse", "HEAD~1"))
    twin.carry()
    assert twin.subjects() == ["b", "first"]
    for log in ("HEAD", "main"):
        assert "commit: c" not in twin.host("reflog", "show", log)
        assert "commit: b" in twin.host("reflog", "show", log)
    assert twin.outcome().is_at_rest
    (twin.copy / "refs/heads/main").write_text(ahead + "\n")
    twin.carry()
    assert twin.subjects() == ["c", "b", "first"]
    for log in ("HEAD", "main"):
        assert "commit: c" in twin.host("reflog", "show", log)
    twin.host("fsck", "--strict")


def test_branches_tags_and_deletions(twin: Twin) -> None:
    twin.cage("branch", "x/y")
    twin.cage("tag", "-a", "v1", "-m", "v1")
    twin.carry()
    assert twin.host("for-each-ref", "--format=%(refname)").split() == [
        "refs/heads/main", "refs/heads/x/y", "refs/tags/v1",
    ]  # fmt: skip
    twin.host("pack-refs", "--all")
    twin.cage("branch", "-D", "-q", "x/y")
    twin.carry()
    assert "x/y" not in twin.host("for-each-ref")
    twin.host("branch", "x")
    twin.host("tag", "-d", "v1")
    twin.carry()
    assert twin.cage("for-each-ref", "--format=%(refname)").split() == [
        "refs/heads/main", "refs/heads/x",
    ]  # fmt: skip


def test_packed_refs_of_the_agents_change_nothing(twin: Twin) -> None:
    twin.cage("branch", "x")
    twin.carry()
    twin.cage("pack-refs", "--all")
    twin.carry()
    assert (twin.git_dir / "refs/heads/x").exists()
    assert twin.cage("for-each-ref") == twin.host("for-each-ref")


def test_many_refs_are_written_at_once(twin: Twin) -> None:
    head = twin.host("rev-parse", "HEAD").strip()
    lines = "".join(f"create refs/heads/many/{n} {head}\n" for n in range(1000))
    subprocess.run(
        ["git", f"--git-dir={twin.copy}", "update-ref", "--stdin"],
        input=lines, text=True, env=twin.env, check=True,
    )  # fmt: skip
    assert twin.carry() == []
    assert len(twin.host("for-each-ref").splitlines()) == 1001
    assert not (twin.git_dir / "refs/heads/many").exists()
    twin.host("fsck", "--strict")


def test_checkout_merge_and_stash_of_the_agents(twin: Twin) -> None:
    twin.cage("checkout", "-q", "-b", "topic")
    twin.carry()
    assert twin.host("symbolic-ref", "HEAD") == "refs/heads/topic\n"
    (twin.work / "a").write_text("2\n")
    twin.cage("stash", "-q")
    twin.carry()
    assert len(twin.host("stash", "list").splitlines()) == 1
    twin.host("stash", "pop", "-q")
    twin.carry()
    assert twin.cage("stash", "list") == ""
    assert (twin.work / "a").read_text() == "2\n"


def test_a_merge_that_stops_is_seen_on_the_host(twin: Twin) -> None:
    twin.cage("checkout", "-q", "-b", "topic")
    (twin.work / "a").write_text("2\n")
    twin.cage("commit", "-qam", "two")
    twin.cage("checkout", "-q", "main")
    (twin.work / "a").write_text("3\n")
    twin.cage("commit", "-qam", "three")
    twin.cage("merge", "topic", check=False)
    twin.carry()
    assert "You have unmerged paths" in twin.host("status")
    assert twin.host("ls-files", "-u").count("\n") == 3
    (twin.work / "a").write_text("4\n")
    twin.host("commit", "-qam", "merged")
    twin.carry()
    assert "nothing to commit, working tree clean" in twin.cage("status")


def test_staging_of_both_keeps_the_hosts(twin: Twin) -> None:
    (twin.work / "b").write_text("b\n")
    (twin.work / "c").write_text("c\n")
    twin.host("add", "b")
    twin.cage("add", "c")
    assert any("yours stay" in note for note in twin.carry())
    for git in (twin.host, twin.cage):
        assert git("diff", "--cached", "--name-only") == "b\n"


def test_a_refreshed_index_is_no_change(twin: Twin) -> None:
    os.utime(twin.work / "a")
    twin.host("status")
    (twin.work / "b").write_text("b\n")
    twin.cage("add", "b")
    assert twin.carry() == []
    assert twin.host("diff", "--cached", "--name-only") == "b\n"


def test_configuration_that_names_no_program_is_carried(twin: Twin) -> None:
    twin.cage("remote", "add", "origin", "https://example.com/x.git")
    twin.cage("config", "user.name", 'Some "One"')
    twin.cage("config", "branch.main.remote", "origin")
    twin.cage("config", "branch.main.merge", "refs/heads/main")
    assert twin.carry() == []
    assert twin.host("remote", "get-url", "origin") == "https://example.com/x.git\n"
    assert twin.host("config", "user.name") == 'Some "One"\n'
    assert twin.host("rev-parse", "--abbrev-ref", "@{u}", check=False) == twin.cage(
        "rev-parse", "--abbrev-ref", "@{u}", check=False
    )
    twin.cage("remote", "remove", "origin")
    twin.carry()
    assert twin.host("remote") == ""


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("core.fsmonitor", "touch pwned"),
        ("core.hooksPath", "evil"),
        ("core.sshCommand", "evil"),
        ("core.pager", "evil"),
        ("core.editor", "evil"),
        ("core.worktree", "/"),
        ("alias.st", "!evil"),
        ("filter.x.clean", "evil"),
        ("diff.external", "evil"),
        ("include.path", "../evil"),
        ("includeIf.gitdir:/.path", "../evil"),
        ("credential.helper", "!evil"),
        ("gpg.program", "evil"),
        ("url.ext::evil.insteadOf", "https://"),
        ("remote.origin.url", "ext::sh -c evil"),
        ("remote.origin.url", "../evil"),
        ("remote.origin.url", "/tmp/evil"),
        ("remote.origin.url", "file:///tmp/evil"),
        ("remote.origin.url", "ssh://-oProxyCommand=evil/x"),
        ("remote.origin.url", "-oProxyCommand=evil:x"),
        ("remote.origin.url", "--upload-pack=evil"),
        ("remote.origin.uploadpack", "evil"),
        ("remote.origin.receivepack", "evil"),
        ("remote.origin.vcs", "evil"),
        ("remote.origin.proxy", "evil"),
        ("branch.main.remote", "../evil"),
        ("submodule.x.update", "!evil"),
        ("extensions.worktreeConfig", "true"),
        ("extensions.partialClone", "x"),
        ("user.signingkey", "-x"),
        ("user.name", "a\nb"),
        ("uploadpack.packObjectsHook", "evil"),
        ("sequence.editor", "evil"),
        ("mergetool.x.cmd", "evil"),
        ("merge.x.driver", "evil"),
        ("trailer.x.command", "evil"),
        ("core.attributesFile", "evil"),
        ("core.gitProxy", "evil"),
        ("core.askPass", "evil"),
        ("core.alternateRefsCommand", "evil"),
        ("interactive.diffFilter", "evil"),
        ("gc.recentObjectsHook", "evil"),
        ("protocol.ext.allow", "always"),
        ("safe.bareRepository", "all"),
    ],
)
def test_configuration_that_could_lead_to_a_program_is_not(
    twin: Twin, key: str, value: str
) -> None:
    before = (twin.git_dir / "config").read_bytes()
    twin.cage("config", key, value)
    twin.carry()
    twin.carry()
    assert (twin.git_dir / "config").read_bytes() == before
    assert twin.cage("config", key) == value + "\n"


def test_the_hosts_configuration_reaches_the_agent_and_keeps_what_is_held(twin: Twin) -> None:
    twin.cage("config", "core.fsmonitor", "mine")
    twin.carry()
    twin.host("config", "core.abbrev", "12")
    twin.host("config", "user.email", "me@example.org")
    twin.carry()
    assert twin.cage("config", "core.abbrev") == "12\n"
    assert twin.cage("config", "user.email") == "me@example.org\n"
    assert twin.cage("config", "core.fsmonitor") == "mine\n"
    assert "fsmonitor" not in (twin.git_dir / "config").read_text()


def test_both_change_a_key_and_the_hosts_stays(twin: Twin) -> None:
    twin.host("config", "user.name", "Host")
    twin.cage("config", "user.name", "Cage")
    twin.carry()
    twin.carry()
    assert twin.host("config", "user.name") == "Host\n"
    assert twin.cage("config", "user.name") == "Host\n"


def test_hooks_and_the_like_go_one_way(twin: Twin) -> None:
    for path in ("hooks/post-commit", "commondir", "config.worktree", "info/attributes",
                 "info/exclude", "info/grafts", "rebase-merge/git-rebase-todo", "sequencer/todo",
                 "worktrees/x/gitdir", "modules/x/config"):  # fmt: skip
        file = twin.copy / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("evil\n")
    before = listing(twin.git_dir)
    twin.carry()
    assert listing(twin.git_dir) == before
    hook = twin.git_dir / "hooks" / "pre-commit"
    hook.write_text("#!/bin/sh\n")
    hook.chmod(0o755)
    twin.carry()
    copied = twin.copy / "hooks" / "pre-commit"
    assert copied.read_text() == "#!/bin/sh\n"
    assert copied.stat().st_mode & 0o777 == 0o755
    assert (twin.copy / "hooks/post-commit").exists()


def listing(path: Path) -> dict[str, bytes]:
    return {
        str(one.relative_to(path)): one.read_bytes() for one in path.rglob("*") if one.is_file()
    }


@pytest.mark.parametrize("name", ["refs/heads/evil", "HEAD", "MERGE_HEAD", "index", "packed-refs",
                                  "logs/HEAD", "config", "shallow", "refs/heads"])  # fmt: skip
@pytest.mark.parametrize("kind", ["symlink", "fifo", "large", "text", "directory"])
def test_what_is_planted_reaches_nothing(twin: Twin, tmp_path: Path, name: str, kind: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a" * OIDS + "\n")
    before = listing(twin.git_dir)
    path = twin.copy / name
    if path.is_dir():
        path.rename(twin.root / "away")
    elif path.exists():
        path.unlink()
    if kind == "symlink":
        path.symlink_to(secret)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        (path / "x").mkdir(parents=True)
    elif kind == "large":
        with path.open("wb") as file:
            file.truncate(1 << 33)
    else:
        path.write_text("\x1b[2J evil ../../x\n")
    within(5, twin.carry)
    assert listing(twin.git_dir) == before
    assert secret.read_text() == "a" * OIDS + "\n"
    twin.host("status")


def within(seconds: float, call: object) -> None:
    """It returns in time: nothing waits for a FIFO of the agent's."""
    assert callable(call)
    failed: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive()
    if failed:
        raise failed[0]


@pytest.mark.parametrize("side", ["refs/heads", "logs/refs/heads"])
def test_a_directory_that_is_a_symlink_is_not_written_to(
    twin: Twin, tmp_path: Path, side: str
) -> None:
    away = tmp_path / "away"
    away.mkdir()
    (twin.copy / side).rename(twin.root / "old")
    (twin.copy / side).symlink_to(away)
    twin.commit("host", "b")
    twin.host("branch", "x")
    twin.carry()
    assert list(away.iterdir()) == []


@pytest.mark.parametrize("name", ["refs/heads/-x", "refs/heads/a b", "refs/heads/a..b",
                                  "refs/heads/.x", "refs/heads/x\x1b[2J",
                                  "refs/replace/" + 40 * "a",
                                  "refs/bisect/bad", "refs/heads/x.lock/y"])  # fmt: skip
def test_names_that_are_no_refs_are_not_carried(twin: Twin, name: str) -> None:
    head = twin.host("rev-parse", "HEAD")
    path = twin.copy / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(head)
    with (twin.copy / "packed-refs").open("a") as file:
        file.write(f"{head.strip()} {name}2\n")
    twin.carry()
    assert twin.host("for-each-ref", "--format=%(refname)") == "refs/heads/main\n"


def test_a_held_lock_of_the_hosts_is_waited_out(twin: Twin) -> None:
    (twin.git_dir / "refs/heads/main.lock").touch()
    twin.commit("cage", "b")
    assert not twin.outcome().is_settled
    assert twin.subjects() == ["first"]
    (twin.git_dir / "refs/heads/main.lock").unlink()
    twin.carry()
    assert twin.subjects() == ["b", "first"]


def test_a_repository_the_agent_makes(tmp_path: Path) -> None:
    twin = Twin(tmp_path, init=False)
    twin.git_dir.mkdir()
    twin.carry()
    assert list(twin.git_dir.iterdir()) == []
    twin.cage("init", "-q", "-b", "trunk")
    twin.cage("config", "core.fsmonitor", "evil")
    (twin.copy / "hooks").mkdir(exist_ok=True)
    (twin.copy / "hooks/post-commit").write_text("evil\n")
    twin.commit("cage", "b")
    twin.carry()
    assert twin.subjects() == ["b"]
    assert twin.host("status", "--porcelain") == ""
    assert "fsmonitor" not in (twin.git_dir / "config").read_text()
    assert not (twin.git_dir / "hooks").exists()
    twin.commit("host", "c")
    twin.cage("gc", "-q")
    twin.carry()
    assert twin.cage("log", "--format=%s") == "c\nb\n"
    twin.commit("cage", "d")
    twin.carry()
    assert twin.subjects() == ["d", "c", "b"]
    twin.host("fsck", "--strict")


def test_a_repository_the_host_makes_meanwhile(tmp_path: Path) -> None:
    twin = Twin(tmp_path, init=False)
    twin.git_dir.mkdir()
    twin.carry()
    twin.host("init", "-q", "-b", "main")
    twin.commit("host", "b")
    twin.carry()
    assert twin.cage("log", "--format=%s") == "b\n"
    assert twin.cage("status", "--porcelain") == ""


def test_work_trees_of_the_agents(twin: Twin) -> None:
    inside, beside = twin.work / "wt", twin.root / "beside"
    twin.cage("worktree", "add", "-q", str(inside))
    twin.cage("worktree", "add", "-q", str(beside))
    # In a cage the copy is at the host's path; here its links say where it really is.
    (inside / ".git").write_text(f"gitdir: {twin.git_dir}/worktrees/wt\n")
    (twin.copy / "worktrees/wt/config.worktree").write_text("[core]\n\tfsmonitor = evil\n")
    twin.carry()
    assert sorted(os.listdir(twin.git_dir / "worktrees")) == ["wt"]
    assert (twin.git_dir / "worktrees/wt/commondir").read_text() == "../..\n"
    assert not (twin.git_dir / "worktrees/wt/config.worktree").exists()
    done = subprocess.run(
        ["git", "status", "--porcelain", "-b"], cwd=inside, env=twin.env, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "## wt\n"
    assert "refs/heads/beside" in twin.host("for-each-ref")


def test_a_settled_pair_says_so(twin: Twin) -> None:
    twin.commit("cage", "b")
    twin.carry()
    import time

    time.sleep(0.05)
    outcome = twin.outcome()
    assert outcome.is_settled
    assert outcome.stamps == twin.outcome().stamps
    assert len(outcome.paths) == len(outcome.stamps) > 20


def test_an_agent_that_removes_its_git_directory_removes_nothing_of_the_hosts(twin: Twin) -> None:
    import shutil

    for path in [path for path in twin.copy.iterdir() if path.name != "cagewrap"]:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    before = listing(twin.git_dir)
    assert "removed" in twin.carry()[0]
    assert listing(twin.git_dir) == before


@pytest.mark.skipif(os.getuid() == 0, reason="root reads everything")
@pytest.mark.parametrize("path", ["refs", "refs/heads", "packed-refs"])
def test_what_cannot_be_read_is_not_deleted(twin: Twin, path: str) -> None:
    twin.host("branch", "x")
    twin.cage("pack-refs", "--all")
    twin.carry()
    (twin.copy / path).chmod(0)
    twin.carry()
    assert len(twin.host("for-each-ref").splitlines()) == 2


def test_packed_refs_that_are_gone_delete_nothing(twin: Twin) -> None:
    twin.host("branch", "x")
    twin.host("pack-refs", "--all")
    twin.cage("pack-refs", "--all")
    twin.carry()
    (twin.copy / "packed-refs").unlink()
    for _ in range(2):
        assert "vanished" in twin.carry()[0]
        assert len(twin.host("for-each-ref").splitlines()) == 2
    twin.refill()
    assert twin.cage("for-each-ref") == twin.host("for-each-ref")


VANISHING = {
    "all branches": "rm -rf refs/heads packed-refs logs; mkdir refs/heads",
    "all refs": "rm -rf refs; mkdir refs",
    "what is checked out": "rm refs/heads/main",
    "what is checked out elsewhere": "rm refs/heads/tree",
    "HEAD and a branch": "rm HEAD refs/heads/x; mkfifo HEAD",
}


@pytest.mark.parametrize("name", VANISHING)
def test_branches_that_vanish_delete_nothing(twin: Twin, name: str) -> None:
    twin.host("branch", "x")
    twin.host("branch", "tree")
    twin.carry()
    twin.cage("worktree", "add", "-q", str(twin.root / "tree"), "tree")
    twin.carry()
    before = {path: text for path, text in listing(twin.git_dir).items() if "refs" in path}
    subprocess.run(["sh", "-c", VANISHING[name]], cwd=twin.copy, check=True)
    for _ in range(2):
        assert "vanished" in twin.carry()[0]
        assert not twin.outcome().is_settled
    now = {path: text for path, text in listing(twin.git_dir).items() if "refs" in path}
    assert now == before
    if "HEAD" not in name:
        twin.refill()
        assert twin.cage("for-each-ref") == twin.host("for-each-ref")
        twin.commit("cage", "b")
        assert twin.carry() == []
        assert twin.subjects() == ["b", "first"]


def test_what_the_agent_deletes_of_yours_is_kept(twin: Twin) -> None:
    first = twin.host("rev-parse", "HEAD")
    twin.host("checkout", "-q", "-b", "x/y")
    twin.commit("host", "b")
    twin.host("commit", "-q", "--amend", "-m", "c")
    twin.host("tag", "v1")
    twin.host("checkout", "-q", "main")
    twin.carry()
    twin.carry()
    tip, log = twin.host("rev-parse", "x/y"), twin.host("reflog", "show", "--format=%H", "x/y")
    twin.cage("branch", "-D", "-q", "x/y")
    twin.cage("tag", "-d", "v1")
    (note,) = twin.carry()
    assert note == (
        "the agent deleted refs/heads/x/y, refs/tags/v1: kept as below refs/cagewrap/s/deleted"
    )
    kept = "refs/cagewrap/s/deleted/heads/x/y"
    assert twin.host("for-each-ref", "--format=%(refname)").split() == [
        kept, "refs/cagewrap/s/deleted/tags/v1", "refs/heads/main",
    ]  # fmt: skip
    assert twin.host("rev-parse", kept) == tip
    assert twin.host("reflog", "show", "--format=%H", kept) == log
    assert twin.carry() == []
    twin.cage("update-ref", "-d", kept)
    twin.host("branch", "x", "main")
    twin.carry()
    twin.cage("branch", "-D", "-q", "x")
    (note,) = twin.carry()
    assert "refs/heads/x: kept as refs/cagewrap/s-" in note
    assert twin.host("rev-parse", kept) == tip
    assert twin.host("rev-parse", note.rpartition(" ")[2]) == first
    twin.host("fsck", "--strict")


def test_what_the_agent_deletes_of_its_own_is_not_kept(twin: Twin) -> None:
    for name in ("x", "y"):
        twin.cage("branch", name)
    twin.carry()
    commit = twin.host("commit-tree", "-m", "z", "HEAD^{tree}").strip()
    twin.host("update-ref", "refs/heads/y", commit)
    twin.carry()
    twin.cage("branch", "-D", "-q", "x", "y")
    (note,) = twin.carry()
    assert "deleted refs/heads/y: kept" in note
    assert "deleted/heads/x" not in twin.host("for-each-ref")


def test_stashes_of_yours_that_the_agent_drops_are_kept(twin: Twin) -> None:
    def stash(where: str) -> str:
        git = twin.host if where == "host" else twin.cage
        (twin.work / "a").write_text(f"{where}\n{os.urandom(4).hex()}\n")
        git("stash", "-q")
        twin.carry()
        twin.carry()
        return git("rev-parse", "stash").strip()

    def kept() -> set[str]:
        return set(twin.host("for-each-ref", "--format=%(objectname)", "refs/cagewrap").split())

    stashes = [stash(where) for where in ("host", "cage", "host")]
    assert len(twin.host("stash", "list").splitlines()) == 3
    twin.cage("stash", "drop", "-q", "stash@{1}")
    assert twin.carry() == []
    twin.cage("stash", "drop", "-q", "stash@{1}")
    (note,) = twin.carry()
    assert "deleted stashes of yours" in note
    assert kept() == {stashes[0]}
    twin.carry()
    mine = stash("cage")
    twin.cage("stash", "drop", "-q")
    assert twin.carry() == []
    twin.cage("stash", "pop", "-q")
    assert "refs/stash: kept" in twin.carry()[0]
    assert kept() == {stashes[0], stashes[2]}
    assert mine not in kept()
    assert twin.host("stash", "list") == ""
    assert twin.carry() == []


def test_a_deletion_that_cannot_be_kept_is_none(twin: Twin) -> None:
    twin.host("branch", "x")
    twin.carry()
    (twin.git_dir / "refs/cagewrap").write_text("in the way\n")
    twin.cage("branch", "-D", "-q", "x")
    assert "was not deleted" in twin.carry()[0]
    assert "refs/heads/x" in twin.host("for-each-ref")


def test_a_packed_ref_whose_text_is_none(twin: Twin) -> None:
    twin.commit("host", "b")
    (twin.copy / "refs/heads/main").unlink()
    (twin.copy / "packed-refs").write_bytes(b"\xff\xfe refs/heads/main\n\xff refs/heads/x\n")
    twin.carry()
    assert twin.subjects() == ["b", "first"]
    twin.refill()
    assert (twin.copy / "refs/heads/main").read_text() == twin.host("rev-parse", "main")


def test_ids_of_sha256(tmp_path: Path) -> None:
    twin = Twin(tmp_path, kind="sha256")
    assert twin.carry() == []
    twin.commit("cage", "b")
    assert twin.carry() == []
    twin.commit("host", "c")
    assert twin.carry() == []
    assert twin.subjects() == ["c", "b", "first"]
    assert twin.cage("status", "--porcelain") == ""
    twin.host("fsck", "--strict")


def test_a_repository_of_sha256_that_the_agent_makes(tmp_path: Path) -> None:
    twin = Twin(tmp_path, init=False)
    twin.git_dir.mkdir()
    twin.carry()
    twin.cage("init", "-q", "-b", "main", "--object-format=sha256")
    twin.commit("cage", "b")
    twin.carry()
    assert twin.subjects() == ["b"]
    assert len(twin.host("rev-parse", "HEAD").strip()) == 64
    twin.host("fsck", "--strict")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("MERGE_HEAD", "a" * 100_000 + "x"),
        ("FETCH_HEAD", f"{'a' * 40}\t\t" * 10_000 + "\0"),
        ("logs/HEAD", f"{'a' * 40} {'a' * 40} " + "> 1 +0000\t" * 10_000 + "\0\n"),
        ("config", "[" + "a" * 100_000),
        ("config", '[a "' + "\\\\" * 50_000),
    ],
)
def test_nothing_takes_for_ever(twin: Twin, name: str, content: str) -> None:
    (twin.copy / name).write_text(content)
    within(3, twin.carry)


def test_many_changes_of_the_configuration_arrive_in_the_end(twin: Twin) -> None:
    with (twin.copy / "config").open("a") as file:
        file.writelines(f'[branch "b{n}"]\n\tmerge = refs/heads/x\n' for n in range(250))
    for _ in range(3):
        twin.carry()
    assert (twin.git_dir / "config").read_text().count("merge") == 250


@pytest.fixture
def with_deep(twin: Twin) -> Iterator[Twin]:
    """Directories in directories, deeper than a path can be long."""
    script = (
        "import os, sys; os.makedirs(sys.argv[1], exist_ok=True); os.chdir(sys.argv[1])\n"
        "for _ in range(1500): os.mkdir('d'); os.chdir('d')\n"
    )
    for path in ("hooks/x", "refs/heads/x", "modules/a/b", "refs/heads/y"):
        subprocess.run(["python3", "-c", script, str(twin.copy / path)], check=True)
    yield twin
    subprocess.run(["rm", "-rf", str(twin.copy)], check=True)  # pytest's own removal cannot


def test_deep_directories_stop_nothing(with_deep: Twin) -> None:
    twin = with_deep
    twin.host("branch", "y")
    twin.commit("cage", "b")
    twin.carry()
    assert twin.subjects() == ["b", "first"]
    (twin.copy / "HEAD").unlink()
    assert "removed" in twin.carry()[0]
    twin.refill()
    assert not (twin.copy / "hooks/x").exists()
    assert not (twin.copy / "modules/a").exists()
    assert not [name for name in os.listdir(twin.copy) if name.startswith(".cagewrap")]
    assert twin.cage("log", "--format=%s") == "b\nfirst\n"
    assert twin.cage("for-each-ref") == twin.host("for-each-ref")


def test_a_ref_that_is_too_deep_is_not_carried(twin: Twin) -> None:
    head = twin.host("rev-parse", "HEAD").strip()
    (twin.copy / "packed-refs").write_text(f"{head} refs/heads/{'d/' * 400}x\n")
    twin.carry()
    twin.commit("cage", "b")
    twin.carry()
    assert twin.subjects() == ["b", "first"]
    assert twin.host("for-each-ref", "--format=%(refname)") == "refs/heads/main\n"


def test_of_a_repository_with_a_reftable_nothing_is_carried(twin: Twin, tmp_path: Path) -> None:
    """git of this machine may not know such: what matters is the directory."""
    with (twin.git_dir / "config").open("a") as file:
        file.write("[extensions]\n\trefStorage = reftable\n")
    (twin.git_dir / "reftable").mkdir()
    (twin.git_dir / "reftable/tables.list").write_text("0x1.ref\n")
    before = listing(twin.git_dir)
    (tmp_path / "state/base.json").unlink()
    assert "reftable" in twin.carry()[0]
    (copied,) = (twin.copy / "reftable").iterdir()
    assert copied.read_text() == "0x1.ref\n"
    copied.write_text("evil\n")
    (twin.copy / "reftable/x").symlink_to("/etc/passwd")
    (twin.copy / "refs/heads/x").write_text("a" * OIDS + "\n")
    (twin.copy / "HEAD").write_text("a" * OIDS + "\n")
    assert "reftable" in twin.carry()[0]
    assert listing(twin.git_dir) == before


def large_path(git_dir: Path, content: bytes) -> Path:
    oid = hashlib.sha256(content).hexdigest()
    return git_dir / "lfs/objects" / oid[:2] / oid[2:4] / oid


def add_large(git_dir: Path, content: bytes) -> Path:
    path = large_path(git_dir, content)
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return path


def test_files_of_lfs_go_both_ways(twin: Twin, tmp_path: Path) -> None:
    (twin.copy / "cagewrap/lfs").mkdir()
    (twin.copy / "cagewrap/lfs/objects").symlink_to(twin.git_dir / "lfs/objects")
    add_large(twin.git_dir, b"host")
    twin.commit("host", "b")
    twin.carry()
    assert large_path(twin.copy, b"host").read_bytes() == b"host"
    assert large_path(twin.copy, b"host").is_symlink()
    add_large(twin.copy, b"cage")
    twin.commit("cage", "c")
    twin.carry()
    assert large_path(twin.git_dir, b"cage").read_bytes() == b"cage"
    before = listing(twin.git_dir / "lfs")
    secret = tmp_path / "secret"
    secret.write_text("secret")
    large_path(twin.copy, b"link").parent.mkdir(parents=True)
    large_path(twin.copy, b"link").symlink_to(secret)
    large_path(twin.copy, b"fifo").parent.mkdir(parents=True)
    os.mkfifo(large_path(twin.copy, b"fifo"))
    add_large(twin.copy, b"other").write_bytes(b"evil")
    add_large(twin.copy, b"name").rename(twin.copy / "lfs/objects/aa")
    (twin.copy / "lfs/objects/bb").symlink_to(tmp_path)
    twin.commit("cage", "d")
    twin.carry()
    assert twin.subjects() == ["d", "c", "b", "first"]
    assert listing(twin.git_dir / "lfs") == before
    assert not [path for path in (twin.git_dir / "lfs").rglob("*") if path.is_symlink()]


def test_the_first_file_of_lfs_is_the_agents(twin: Twin) -> None:
    add_large(twin.copy, b"cage")
    twin.commit("cage", "b")
    twin.carry()
    assert large_path(twin.git_dir, b"cage").read_bytes() == b"cage"
