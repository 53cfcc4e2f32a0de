"""Single files that the host obeys: put back while the agent works; and what lies deeper."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from .cages import Cage, wait_until
from .test_held_directories import contents, settle, write

pytestmark = pytest.mark.host_side

GONE_S = 2.0
FILES = (".mcp.json", ".pre-commit-config.yaml", "lefthook.yml", "mise.toml", ".envrc", ".hg/hgrc",
         ".config/mise/config.toml", "rust-toolchain.toml", "opencode.json")  # fmt: skip


def host_git(cage: Cage, *words: str, cwd: Path | None = None) -> str:
    """What the owner's git says in the project."""
    done = subprocess.run(
        ["git", "-c", "protocol.file.allow=always", *words],
        cwd=cwd or cage.project, env=cage.env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout


@pytest.mark.parametrize("path", FILES)
def test_a_new_file_is_taken_out_while_the_agent_works(cage: Cage, path: str) -> None:
    target = cage.project / path
    script = f"mkdir -p $(dirname {path}); echo evil >{path}; echo up; sleep 1.5; cat {path}"
    with cage.popen("sh", "-c", script, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"up\n"
        assert wait_until(lambda: not target.exists(), GONE_S)
        err = agent.communicate()[1].decode()
    assert f"'{path}' is held back" in err
    settle(cage)
    assert contents(cage.project) == {}


@pytest.mark.parametrize(
    "change",
    [
        "echo evil >.mcp.json",
        "echo evil >new; mv new .mcp.json",
        "rm .mcp.json; ln -s src/evil.json .mcp.json",
        "rm .mcp.json; ln src/evil.json .mcp.json",
        "rm .mcp.json; mkfifo .mcp.json",
        "chmod +x .mcp.json",
        "rm .mcp.json; truncate -s 20G .mcp.json",
        "echo evil >new; chown 33:33 new; chmod 640 new; mv new .mcp.json",
    ],
)
def test_a_changed_file_is_put_back(cage: Cage, change: str) -> None:
    target = write(cage.project / ".mcp.json", "{}\n")
    write(cage.project / "src/evil.json", "evil\n")
    done = cage.run("sh", "-c", f"{change}; sleep 1.2; cat .mcp.json")
    assert done.out == b"{}\n"
    assert b"'.mcp.json' is held back" in done.err
    settle(cage)
    assert target.read_text() == "{}\n"
    assert not target.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o644
    assert target.stat().st_nlink == 1


def test_a_file_that_is_taken_away_and_brought_back_is_no_change(cage: Cage) -> None:
    """What git does when it changes branches."""
    target = write(cage.project / ".mcp.json", "{}\n")
    done = cage.run("sh", "-c", "cp .mcp.json x; rm .mcp.json; sleep 1.2; mv x .mcp.json")
    assert done.err == b""
    settle(cage)
    assert target.read_text() == "{}\n"


def test_a_branch_of_the_owners_brings_its_version(cage: Cage) -> None:
    """Written in steps, as git does, and known only when it is whole."""
    target = write(cage.project / ".mcp.json", "one\n")
    cage.text("true")
    settle(cage)
    write(target, "two\n")
    cage.text("true")
    settle(cage)
    script = "import os; os.unlink('.mcp.json'); f = open('.mcp.json', 'w', buffering=1)\n"
    script += "f.write('o'); f.flush(); f.write('ne\\n'); f.close()"
    done = cage.run("sh", "-c", 'python3 -c "$1"; sleep 1; cat .mcp.json', "sh", script)
    assert (done.out, done.err) == (b"one\n", b"")
    assert target.read_text() == "one\n"


def test_a_slow_writer_is_kept_whole(cage: Cage) -> None:
    cage.text("sh", "-c", "for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.2; done >.envrc")
    settle(cage)
    assert contents(cage.project) == {}
    found = json.loads(cage.cagewrap("review", "--json").out)["held"]
    [diff] = [one["diff"] for one in found if one["path"] == ".envrc"]
    assert [line[1:] for line in diff.splitlines()[3:]] == list("12345678")


def test_how_long_a_version_of_an_agents_is_there(cage: Cage) -> None:
    target = write(cage.project / ".mcp.json", "{}\n")
    cage.text("true")
    script = "for i in 1 2 3 4 5; do sleep 0.3; echo evil >.mcp.json; done; sleep 1"
    spans: list[float] = []
    began = 0.0
    with cage.popen("sh", "-c", script, stderr=subprocess.DEVNULL) as agent:
        while agent.poll() is None:
            is_evil = target.read_bytes() not in (b"{}\n", b"")
            if is_evil and not began:
                began = time.monotonic()
            elif began and not is_evil:
                spans.append(time.monotonic() - began)
                began = 0.0
            time.sleep(0.001)
    assert began == 0.0
    assert cage.log().count("held back: '.mcp.json'") >= 5
    assert max(spans, default=0) < 0.5, spans  # most are too short to be seen


def test_an_agent_that_insists_is_ended(cage: Cage) -> None:
    """Else a file would be there most of the time, however quickly it is put back."""
    target = write(cage.project / ".mcp.json", "{}\n")
    script = "echo up; while :; do echo evil >new; mv new .mcp.json; sleep 0.01; done"
    with cage.popen("sh", "-c", script, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"up\n"
        err = agent.communicate(timeout=10)[1].decode()
    assert agent.returncode == -9
    assert "'.mcp.json' was put back 8 times in 10 s" in err
    assert target.read_text() == "{}\n"
    assert cage.text("cat", ".mcp.json") == "{}\n"


def test_the_owners_edits_between_messages_are_the_owners(cage: Cage) -> None:
    target = write(cage.project / ".mcp.json", "{}\n")
    cage.text("true")
    settle(cage)
    write(target, "mine\n")
    write(cage.project / ".envrc", "mine\n")
    done = cage.run("sh", "-c", "cat .mcp.json .envrc; echo evil >.envrc; sleep 1.2")
    assert done.out == b"mine\nmine\n"
    settle(cage)
    assert contents(cage.project) == {".mcp.json": "mine\n", ".envrc": "mine\n"}


def test_a_process_left_behind_is_watched_to_its_end(cage: Cage) -> None:
    cage.text("sh", "-c", "(sleep 1.5; echo evil >.mcp.json) >/dev/null 2>&1 &")
    assert wait_until(lambda: "held back: '.mcp.json'" in cage.log(), 6)
    settle(cage)
    assert contents(cage.project) == {}
    assert b"'.mcp.json' is held back" in cage.run("true").err


def test_two_sessions_do_not_pass_each_others_work_for_the_owners(cage: Cage) -> None:
    """One starts its first message while the other's agent has just written."""
    write(cage.project / ".mcp.json", "{}\n")
    cage.text("true", flags=("--session", "one"))
    script = "while :; do echo evil >.mcp.json; sleep 0.05; done"
    with cage.popen("sh", "-c", script, flags=("--session", "one")) as agent:
        for _ in range(5):
            cage.run("true", flags=("--session", "two"))
        agent.kill()
    settle(cage)
    assert contents(cage.project) == {".mcp.json": "{}\n"}


def test_a_file_that_the_owners_git_includes(cage: Cage) -> None:
    host_git(cage, "init", "-q")
    host_git(cage, "config", "include.path", "../team/gitconfig")
    target = write(cage.project / "team/gitconfig", "[alias]\n\tst = status\n")
    proof = cage.project / "proof"
    evil = f"[core]\\n\\tfsmonitor = touch {proof}; false\\n"
    with cage.popen("sh", "-c", f"printf '{evil}' >team/gitconfig; sleep 2") as agent:
        assert wait_until(lambda: "evil" not in target.read_text(), GONE_S)
        agent.wait()
    settle(cage)
    host_git(cage, "status")
    assert target.read_text() == "[alias]\n\tst = status\n"
    assert not proof.exists()


MAPPED = """
import mmap, time
with open(".mcp.json", "r+b") as file:
    view = mmap.mmap(file.fileno(), 0)
view[0:1] = view[0:1]
time.sleep(1)
view[:] = b"evil\\n"
print("up", flush=True)
time.sleep(1.5)
"""


def test_a_file_that_is_changed_through_a_memory_map(cage: Cage) -> None:
    """Which changes no time of it: not on tmpfs, and nowhere while its page is dirty."""
    target = write(cage.project / ".mcp.json", "mine\n")
    with cage.popen("python3", "-c", MAPPED, stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"up\n"
        assert wait_until(lambda: target.read_text() == "mine\n", GONE_S)
        agent.wait()
    settle(cage)
    assert target.read_text() == "mine\n"


def test_a_project_that_an_agent_makes_a_bare_repository(cage: Cage) -> None:
    proof = cage.project / "proof"
    script = f"""
        mkdir objects refs; echo 'ref: refs/heads/main' >HEAD
        printf '[core]\\nbare = false\\nworktree = .\\nfsmonitor = touch {proof}; false\\n' >config
        sleep 1.5
    """
    with cage.popen("sh", "-c", script) as agent:
        assert wait_until((cage.project / "config").exists, 10)
        time.sleep(0.2)
        while agent.poll() is None:
            enter(cage, cage.project)
    settle(cage)
    enter(cage, cage.project)
    assert not proof.exists()
    assert not (cage.project / "HEAD").exists()


def test_a_project_that_is_a_bare_repository(cage: Cage) -> None:
    host_git(cage, "init", "-q", "--bare", ".")
    proof = cage.project / "proof"
    script = f"git config core.fsmonitor 'touch {proof}; false'; git config core.bare false; "
    script += f"git config core.worktree .; echo 'touch {proof}' >hooks/post-commit; sleep 1.2"
    cage.text("sh", "-c", script)
    settle(cage)
    enter(cage, cage.project)
    assert not proof.exists()
    assert host_git(cage, "config", "core.bare") == "true\n"


# --- below the root -----------------------------------------------------------------------------


def test_settings_below_the_root_are_taken_out(cage: Cage) -> None:
    write(cage.project / "pkg/.mcp.json", "{}\n")
    write(cage.project / "pkg/mise.toml", "mine\n")
    write(cage.project / "pkg/.claude/settings.json", "{}\n")
    cage.text("true")
    settle(cage)
    script = """
        echo evil >pkg/.mcp.json; echo evil >pkg/mise.toml; echo evil >pkg/.claude/settings.json
        mkdir -p a/b/.claude; echo evil >a/b/.claude/settings.local.json; echo evil >a/.mcp.json
        mkdir -p c; ln -s ~/evil c/.claude; echo new >a/rust-toolchain
    """
    done = cage.run("sh", "-c", script)
    settle(cage)
    assert contents(cage.project) == {
        "pkg/.mcp.json": "{}\n",
        "pkg/mise.toml": "mine\n",
        "pkg/.claude/settings.json": "{}\n",
        "a/rust-toolchain": "new\n",
    }
    assert os.listdir(cage.project / "c") == []
    assert b"held back" in done.err + cage.run("true").err


REPOSITORY = """
    set -e
    git init -q {path}
    cd {path}
    git config core.fsmonitor "touch {proof}; false"
    git config user.name agent
    git config user.email agent@example.org
    git config remote.origin.url https://example.org/x.git
    git config filter.evil.clean "touch {proof}; cat"
    git config alias.st "!touch {proof}"
    printf '#!/bin/sh\\ntouch {proof}\\n' >.git/hook
    chmod +x .git/hook
    mv .git/hook .git/hooks/post-commit
    echo x >file
    git add file
    git commit -qm made 2>/dev/null
    rm -f {proof}
"""


def enter(cage: Cage, path: Path) -> None:
    """What a prompt and an owner do in a directory."""
    for words in (
        ("status",), ("rev-parse", "HEAD"), ("diff",), ("-c", "user.name=o", "-c",
        "user.email=o@x", "commit", "-q", "--allow-empty", "-m", "mine"),
    ):  # fmt: skip
        subprocess.run(
            ["git", *words], cwd=path, env=cage.env, capture_output=True, check=False, timeout=20
        )


@pytest.mark.parametrize("path", ["dep", "deep/below/dep", "node_modules/x"])
def test_a_repository_of_an_agents_is_made_harmless(cage: Cage, path: str) -> None:
    proof = cage.project / "proof"
    cage.text("sh", "-c", REPOSITORY.format(path=path, proof=proof))
    settle(cage)
    assert not proof.exists()
    where = cage.project / path
    enter(cage, where)
    assert not proof.exists()
    assert "made" in host_git(cage, "log", "--oneline", cwd=where)
    assert host_git(cage, "config", "remote.origin.url", cwd=where).strip() == (
        "https://example.org/x.git"
    )
    assert cage.text("git", "-C", path, "status", "--short") == ""


DISGUISES = {
    "bare": """
        git clone -q --bare dep bare; cd bare
        git config core.worktree ..; git config core.bare false
        git config core.fsmonitor 'touch {proof}; false'
    """,
    "file": """
        mkdir l; cp -r dep/.git ~/evil; git --git-dir=$HOME/evil config core.bare false
        echo "gitdir: {home}/evil" >l/.git
    """,
    "link": "mkdir l; cp -r dep/.git ~/evil; ln -s {home}/evil l/.git",
    "commondir": """
        mkdir l; mkdir l/.git; cp dep/.git/HEAD l/.git
        cp -r dep/.git ~/evil; echo {home}/evil >l/.git/commondir
    """,
    "directory": "cp -r dep ~/evil; ln -s {home}/evil l",
    "config": "mv dep/.git/config x; ln -s ../../x dep/.git/config",
    "separate": """
        mkdir s; cp -r dep/.git s/git
        echo 'gitdir: ../s/git' >dep/.g; rm -rf dep/.git; mv dep/.g dep/.git
    """,
    "work tree": """
        git -C dep worktree add -q ../tree 2>/dev/null
        git -C dep config extensions.worktreeConfig true
        git -C tree config --worktree core.fsmonitor 'touch {proof}; false'
    """,
    "include": """
        mkdir -p inc; printf '[core]\\n\\tfsmonitor = touch {proof}; false\\n' >inc/c
        git -C dep config --unset core.fsmonitor; git -C dep config include.path $PWD/inc/c
    """,
}


@pytest.mark.parametrize("trick", DISGUISES.values(), ids=DISGUISES)
def test_a_repository_in_disguise_is_made_harmless(cage: Cage, trick: str) -> None:
    proof = cage.project / "proof"
    cage.text("true")
    home = cage.private_home()
    script = REPOSITORY.format(path="dep", proof=proof) + "cd ..; set +e\n"
    cage.text("sh", "-c", script + trick.format(proof=proof, home=home) + f"\nrm -f {proof}")
    settle(cage)
    for path in ("dep", "bare", "l", "tree", "s/git", "."):
        if (cage.project / path).is_dir():
            enter(cage, cage.project / path)
            assert not proof.exists(), path


def test_the_owners_own_repositories_are_left_alone(cage: Cage) -> None:
    where = cage.project / "vendor"
    where.mkdir()
    host_git(cage, "init", "-q", cwd=where)
    host_git(cage, "config", "alias.st", "!status", cwd=where)
    hook = write(where / ".git/hooks/post-commit", "#!/bin/sh\n")
    cage.text("sh", "-c", "echo x >vendor/file")
    settle(cage)
    assert host_git(cage, "config", "alias.st", cwd=where) == "!status\n"
    assert hook.exists()


def test_a_repository_is_made_harmless_while_the_agent_works(cage: Cage) -> None:
    proof = cage.project / "proof"
    script = REPOSITORY.format(path="dep", proof=proof) + "echo up; sleep 5"
    with cage.popen("sh", "-c", script, stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"up\n"
        began = time.monotonic()
        config = cage.project / "dep/.git/config"
        assert wait_until(lambda: "fsmonitor" not in config.read_text(), 4)
        assert time.monotonic() - began < 3
        enter(cage, cage.project / "dep")
        assert not proof.exists()
        agent.kill()
