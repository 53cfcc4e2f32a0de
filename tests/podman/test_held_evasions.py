"""An agent that keeps cagewrap from taking out what this machine would run: it takes the owner's
rights away, hides in what is not looked into, or makes more than is looked at."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from .cages import Cage, wait_until
from .test_held_directories import settle, write
from .test_held_files import host_git

pytestmark = pytest.mark.host_side

HOLD = "git init -q -b main {0}; git -C {0} config core.fsmonitor '{1}; false'"


def trap_of(cage: Cage) -> tuple[str, Path]:
    """A command that only works on the host, and the file that it makes."""
    proof = cage.place.root / "pwned"
    return f"touch {proof}", proof


def enter(cage: Cage, path: Path) -> None:
    """What a prompt and an owner do in a directory."""
    for words in (("status",), ("diff",), ("checkout", "-q", "."), ("stash",)):
        subprocess.run(
            ["git", *words], cwd=path, env=cage.env, capture_output=True, check=False, timeout=20
        )


AT_THE_ROOT = {
    "the project cannot be written": ("chmod 555 .; echo evil >.mcp.json", ".mcp.json"),
    "the project is another user's": ("echo evil >.mcp.json; chown 33:33 .", ".mcp.json"),
    "a directory cannot be listed": (
        "mkdir .config; echo evil >.config/mise.toml; chmod 311 .config",
        ".config/mise.toml",
    ),
    "a directory cannot be written": (
        "mkdir .hg; echo evil >.hg/hgrc; chmod 555 .hg",
        ".hg/hgrc",
    ),
    "a directory is another user's": (
        "mkdir .hg; echo evil >.hg/hgrc; chown 33:33 .hg",
        ".hg/hgrc",
    ),
    "settings that cannot be listed": (
        "mkdir .zed; echo evil >.zed/tasks.json; chmod 111 .zed",
        ".zed/tasks.json",
    ),
    "settings of another user": (
        "mkdir .zed; echo evil >.zed/tasks.json; chown -R 33:33 .zed",
        ".zed/tasks.json",
    ),
    "settings in a project of another user": (
        "mkdir .zed; echo evil >.zed/tasks.json; chown 33:33 . .zed",
        ".zed/tasks.json",
    ),
}


@pytest.mark.parametrize(("script", "path"), AT_THE_ROOT.values(), ids=AT_THE_ROOT)
def test_rights_at_the_root(cage: Cage, script: str, path: str) -> None:
    target = cage.project / path

    def is_there() -> bool:
        try:
            return target.read_bytes() == b"evil\n"
        except OSError:
            return False

    with cage.popen("sh", "-c", f"{script}; echo up; sleep 2", stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"up\n"
        assert wait_until(lambda: not is_there(), 1.5), cage.log()
        agent.wait()
    settle(cage)
    assert not is_there()
    assert cage.text("echo", "works") == "works\n"


BELOW = {
    "a git directory that cannot be listed": "{hold}; chmod 311 dep/.git",
    "a directory that cannot be listed": "mkdir d; cd d; {hold}; chmod 311 .",
    "a git directory that cannot be written": "{hold}; chmod 555 dep/.git",
    "hooks that cannot be moved": """
        git init -q dep; printf '#!/bin/sh\\n{trap}\\n' >dep/.git/hooks/post-index-change
        chmod 755 dep/.git/hooks/*; echo x >dep/x; git -C dep add x; chmod 555 dep/.git/hooks
    """,
    "hooks that cannot be listed": """
        git init -q dep; printf '#!/bin/sh\\n{trap}\\n' >dep/.git/hooks/post-index-change
        chmod 755 dep/.git/hooks/*; echo x >dep/x; git -C dep add x; chmod 311 dep/.git/hooks
    """,
    "a padded .git file": """
        mkdir dep; git init -q --bare ~/evil; git --git-dir=$HOME/evil config core.bare false
        git --git-dir=$HOME/evil config core.fsmonitor '{trap}; false'
        printf 'gitdir: {home}/evil' >dep/.git
        head -c 9000 /dev/zero | tr '\\0' '\\n' >>dep/.git
    """,
    "a .git file with a NUL": """
        mkdir a dep; printf 'gitdir: x\\0y' >a/.git; git init -q --bare ~/evil
        git --git-dir=$HOME/evil config core.bare false
        git --git-dir=$HOME/evil config core.fsmonitor '{trap}; false'
        printf 'gitdir: {home}/evil\\0/../../../x' >dep/.git
        mkdir -p z/1; cd z/1; {hold}; mv dep ../../d
    """,
    "a chain of symlinks": """
        for i in $(seq 1500); do ln -s l$((i + 1)) l$i; done; ln -s l1 .idea; ln -s ../l1 a
        mkdir -p z/1; cd z/1; {hold}; mv dep ../../dep
    """,
    "a git directory in a git directory": """
        git init -q other; {hold}; mv dep/.git other/.git/evil
        echo 'gitdir: ../other/.git/evil' >dep/.git
    """,
    "a symlink to a git directory in one": """
        git init -q other; {hold}; mv dep/.git other/.git/evil; ln -s ../other/.git/evil dep/.git
    """,
    "deep among the modules": """
        git init -q other; {hold}; mkdir -p other/.git/modules/1/2/3/4/5/6/7
        mv dep/.git other/.git/modules/1/2/3/4/5/6/7/8
        echo 'gitdir: ../other/.git/modules/1/2/3/4/5/6/7/8' >dep/.git
    """,
    "a work tree's configuration": """
        git init -q other
        git -C other -c user.name=a -c user.email=a@b commit -q --allow-empty -m x
        git -C other worktree add -q ../dep
        echo ../../evil >other/.git/worktrees/dep/commondir
        {hold_other}; mv o2/.git other/.git/evil; rm other/.git/evil/HEAD
    """,
    "more than is listed": """
        for i in $(seq 1100); do mkdir -p d/$i/.git/hooks; : >d/$i/.git/hooks/x; done
        mkdir e; cd e; {hold}; cd ..; mv e/dep z; cp -r z dep; cp -r z a; cp -r z m
    """,
    "a walk that fails": """
        for i in 1 2 3 4; do mkdir -p a$i/.git/config/x; done
        for i in 1 2 3; do sleep 1.2; mkdir -p a1/.git/config/x; done
        {hold}; mkdir -p z/.git/config/x; :
    """,
    "a symlink to the container's files": """
        git init -q /evil; git -C /evil config core.fsmonitor '{trap}; false'
        up=$(sed -n 's/.*upperdir=\\([^,]*\\).*/\\1/p' /proc/self/mountinfo | head -1)
        ln -s "$up/evil" dep
    """,
    "a work tree elsewhere": """
        git init -q dep; echo '{trap}' >dep/victim; git -C dep add victim
        git -C dep config core.worktree {victim}
    """,
}


@pytest.mark.parametrize("trick", BELOW.values(), ids=BELOW)
def test_repositories_below_the_root(cage: Cage, trick: str) -> None:
    trap, proof = trap_of(cage)
    victim = cage.place.root / "victims"
    victim.mkdir()
    cage.text("true")
    script = trick.format(
        hold=HOLD.format("dep", trap),
        hold_other=HOLD.format("o2", trap),
        trap=trap,
        home=cage.private_home(),
        victim=victim,
    )
    cage.text("sh", "-c", script)
    settle(cage)
    for path in ("dep", "d", "d/dep", "a", "m", "z"):
        if (cage.project / path).is_dir():
            enter(cage, cage.project / path)
    assert not proof.exists()
    assert not any(victim.iterdir())


def test_configuration_of_a_work_tree_in_the_owners_repository(cage: Cage) -> None:
    trap, proof = trap_of(cage)
    dep = cage.project / "dep"
    dep.mkdir()
    host_git(cage, "init", "-q", cwd=dep)
    host_git(cage, "config", "extensions.worktreeConfig", "true", cwd=dep)
    cage.text("true")
    settle(cage)
    cage.text("git", "-C", "dep", "config", "--worktree", "core.fsmonitor", f"{trap}; false")
    settle(cage)
    enter(cage, dep)
    assert not proof.exists()


def test_settings_among_many(cage: Cage) -> None:
    """Files that are left alone are no reason not to look for others."""
    script = """
        for i in $(seq 1100); do mkdir -p d/$i; echo x >d/$i/mise.toml; done
        mkdir -p a z; echo evil >a/.mcp.json; echo evil >z/.mcp.json; echo evil >d/1/.mcp.json
    """
    cage.text("sh", "-c", script)
    settle(cage)
    assert not [str(path) for path in cage.project.rglob(".mcp.json")]


LATE = """
    echo up
    until [ -d .zed ]; do sleep 0.01; done
    sleep 1.2
    {0}
    mkdir .zed/below; echo evil >.zed/tasks.json; echo evil >.zed/below/x; {1}
    sleep 2
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (":", ":"),
        ("chmod 311 .zed", ":"),
        (":", "chown 33:33 .zed .zed/below .zed/tasks.json; chmod 711 .zed"),
        (":", "chmod 311 .zed/below"),
        (":", "chmod 111 .zed"),
    ],
)
def test_a_directory_that_is_seen_from_an_older_mount_namespace(
    cage: Cage, before: str, after: str
) -> None:
    """Which has no private copy of it: the owner made it while the agent worked."""
    script = LATE.format(before, after)
    with cage.popen("unshare", "-Urm", "sh", "-c", script, stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"up\n"
        (cage.project / ".zed").mkdir()
        assert wait_until(lambda: "held back: '.zed/tasks.json'" in cage.log(), 6), cage.log()
        time.sleep(0.7)
        for name in ("tasks.json", "below/x"):
            path = cage.project / ".zed" / name
            assert not os.access(path, os.R_OK), name
        agent.wait()


def test_a_program_of_the_project_that_the_owners_git_runs(cage: Cage) -> None:
    trap, proof = trap_of(cage)
    host_git(cage, "init", "-q")
    write(cage.project / ".gitattributes", "*.nb filter=strip\n")
    program = write(cage.project / "tools/strip", "#!/bin/sh\ncat\n")
    program.chmod(0o755)
    host_git(cage, "config", "filter.strip.clean", "tools/strip")
    write(cage.project / "a.nb", "a\n")
    host_git(cage, "add", ".")
    script = f"echo '{trap}' >>tools/strip; echo b >a.nb; echo up; sleep 2"
    with cage.popen("sh", "-c", script, stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"up\n"
        time.sleep(0.7)
        host_git(cage, "status")
        agent.wait()
    settle(cage)
    host_git(cage, "status")
    assert not proof.exists()


LOOKED_AT = """
import ctypes, mmap, os, select, time
libc = ctypes.CDLL(None)
told = libc.inotify_init1(os.O_NONBLOCK)
libc.inotify_add_watch(told, b".mcp.json", 0x10)  # closed by a reader

def wait(seconds):
    ready = bool(select.select([told], [], [], seconds)[0])
    while select.select([told], [], [], 0)[0]:
        os.read(told, 65536)
    return ready

good = open(".mcp.json", "rb").read()
evil = b"evil".ljust(len(good))
"""
"""An agent that is told when its file was looked at."""

FLIP = """
with open(".mcp.json", "r+b") as file:
    view = mmap.mmap(file.fileno(), 0)
print("up", flush=True)
end = time.monotonic() + 12
while time.monotonic() < end:
    view[:] = good
    if wait(0.6):
        view[:] = evil
        time.sleep(0.43)
view[:] = good
"""

SWAP = """
print("up", flush=True)
open("evil", "wb").write(evil)
end = time.monotonic() + 12
while time.monotonic() < end:
    open("good", "wb").write(good)
    os.rename("good", ".mcp.json")
    libc.inotify_add_watch(told, b".mcp.json", 0x10)
    if wait(0.1):
        os.link("evil", "e2")
        os.rename("e2", ".mcp.json")
        time.sleep(0.007)
open("good", "wb").write(good)
os.rename("good", ".mcp.json")
"""

REOPEN = """
print("up", flush=True)
end = time.monotonic() + 12
while time.monotonic() < end:
    wait(0.6)
    with open(".mcp.json", "r+b") as file:
        view = mmap.mmap(file.fileno(), 0)
    view[:] = evil
    time.sleep(0.4)
    view[:] = good
    view.close()
"""


@pytest.mark.parametrize("trick", [SWAP, REOPEN], ids=["exchange", "reopen"])
def test_a_file_that_is_another_between_two_looks(cage: Cage, trick: str) -> None:
    """The agent is ended, though what is looked at is the owner's each time."""
    target = write(cage.project / ".mcp.json", "{}      \n")
    cage.text("true")
    began = time.monotonic()
    done = cage.run("python3", "-c", LOOKED_AT + trick)
    assert done.code == -9, done.err
    assert time.monotonic() - began < 8
    settle(cage)
    assert target.read_text() == "{}      \n"


def test_a_file_that_stays_mapped(cage: Cage) -> None:
    """There is another in its place soon, which the agent has not open."""
    target = write(cage.project / ".mcp.json", "{}      \n")
    cage.text("true")
    with cage.popen("python3", "-c", LOOKED_AT + FLIP, stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"up\n"
        time.sleep(1.5)
        end = time.monotonic() + 3
        while time.monotonic() < end:
            assert target.read_text() == "{}      \n"
            time.sleep(0.01)
        agent.kill()


def test_an_agent_that_insists_with_many_names(cage: Cage) -> None:
    names = ".mcp.json mise.toml .mise.toml .envrc .exrc .vimrc .autoenv lefthook.yml crush.json"
    script = f"""
        for i in 1 2 3 4 5 6; do for name in {names}; do echo evil >$name; sleep 0.05; done; done
    """
    assert cage.run("sh", "-c", script).code == -9
