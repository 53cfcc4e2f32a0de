"""A repository that an agent makes in the project, and a submodule's entry that leads git into it.

Without the entry in the owner's index, git at the root of the project does not go into it. So what
matters is the moment in which the owner's own git makes the entry while an agent works.
"""

from __future__ import annotations

import subprocess

import pytest

from .cages import Cage, wait_until
from .test_git_attacks import Owner, begin, submodule

pytestmark = pytest.mark.host_side


@pytest.fixture
def owner(cage: Cage) -> Owner:
    return begin(cage)


EVIL = "git -c user.name=x -c user.email=x@x"
NESTED = f"""
    git init -q evil; cd evil; echo 1 > f; git add f; {EVIL} commit -qm one
    echo 2 > f; {EVIL} commit -qam two; cd ..
"""
COMMITTED = f"""
    git -C evil checkout -q HEAD~1; git add evil; {EVIL} commit -qm link
    git -C evil checkout -q -; git add evil; {EVIL} commit -qm again
"""
"""Two commits of the project's with the entry."""
RACES = {
    "configuration": """
        printf '[core]\\nbare = false\\nfsmonitor = %s\\n[diff]\\nexternal = %s\\n' \
            "$TRAP" "$TRAP" > x
        cp evil/.git/config y
        while :; do cp x z; mv z evil/.git/config; cp y z; mv z evil/.git/config; done""",
    "configuration in place": """
        cp evil/.git/config y
        while :; do printf '[core]\\nfsmonitor = %s\\n' "$TRAP" >> evil/.git/config
            cat y > evil/.git/config; done""",
    "directories": """
        cp -r evil other; git -C other config core.fsmonitor "$TRAP"
        while :; do mv evil e; mv other evil; mv evil other; mv e evil
            git -C other config core.fsmonitor "$TRAP"; done""",
    "a work tree's configuration": """
        git -C evil config extensions.worktreeConfig true; printf '[core]\\nfsmonitor = %s\\n' \
            "$TRAP" > x
        to=evil/.git/config.worktree; while :; do cp x z; mv z $to; rm -f $to; done""",
    "a .git file": """
        mv evil/.git g; cp -r g h; git config -f h/config core.fsmonitor "$TRAP"
        while :; do echo "gitdir: ../h" > evil/z; mv evil/z evil/.git
            echo "gitdir: ../g" > evil/z; mv evil/z evil/.git
            git config -f h/config core.fsmonitor "$TRAP"; done""",
    "hooks": """
        printf '#!/bin/sh\\n%s\\n' "$TRAP" > x; chmod +x x
        while :; do cp x z; mv z evil/.git/hooks/post-index-change
            rm -f evil/.git/hooks/post-index-change; done""",
}
SETTINGS = {
    "submodule.recurse": "true", "status.submoduleSummary": "true", "diff.submodule": "log",
    "fetch.recurseSubmodules": "true", "push.recurseSubmodules": "check",
}  # fmt: skip
PROMPT = (
    ("status", "--porcelain", "-b"), ("status",), ("diff",), ("diff", "HEAD"), ("add", "-A", "-n"),
    ("log", "-p", "--all"), ("stash", "list"), ("submodule", "status"), ("submodule", "summary"),
    ("grep", "-q", "nothing"), ("describe", "--always", "--dirty"),
)  # fmt: skip


@pytest.mark.parametrize("race", RACES)
def test_the_owners_git_at_the_root_does_not_go_into_an_agents_repository(
    cage: Cage, owner: Owner, race: str
) -> None:
    """Whatever it is at any moment; with settings that send git into submodules, too."""
    for key, value in SETTINGS.items():
        owner.git("config", key, value)
    script = f"TRAP={owner.trap}; {NESTED} {COMMITTED} echo ready; {RACES[race]}"
    with cage.popen("sh", "-c", script, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"ready\n"
        assert wait_until(lambda: "again" in owner.git("log", "--format=%s"), 5)
        for _ in range(12):
            for words in PROMPT:
                owner.git(*words, check=False)
        assert not owner.marker.exists(), owner.marker.read_text()
        agent.kill()
    owner.afterwards()
    assert not owner.marker.exists(), owner.marker.read_text()


STORM = """
import os, shutil, sys, time
many, trap = int(sys.argv[1]), sys.argv[2]
os.makedirs("m")
os.rename("evil", "m/e0")
for k in range(1, many):
    shutil.copytree("m/e0", f"m/e{k}")
time.sleep(1)
print("ready", flush=True)
while True:
    for k in range(many):
        with open(f"m/e{k}/.git/new", "w") as file:
            file.write(f"[core]\\nbare = false\\nfsmonitor = {trap}\\n")
        os.rename(f"m/e{k}/.git/new", f"m/e{k}/.git/config")
        time.sleep(0.002)
"""
"""So many repositories that one of them is not harmless at any moment, and none of them often."""


def test_the_owner_adds_an_agents_repositories(cage: Cage, owner: Owner) -> None:
    """Everything in the cage is ended before the owner's next command goes into them."""
    (owner.home / "storm.py").write_text(STORM)
    script = f"{NESTED} exec python3 - 60 {owner.trap} < {owner.home}/storm.py"
    flags = ("--mount", str(owner.home))
    with cage.popen(
        "sh", "-c", script, flags=flags, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"ready\n"
        (owner.project / "own").write_text("own\n")
        owner.git("add", "-A")
        owner.git("status")
        assert not owner.marker.exists(), owner.marker.read_text()
        _, err = agent.communicate(timeout=20)
    assert agent.returncode == -9, err
    assert b"got the submodule 'm/e0' and 59 more while an agent worked" in err
    assert len(owner.git("diff", "--cached", "--name-only", "m").split()) == 60
    owner.git("commit", "-q", "-m", "evil")
    owner.afterwards()
    assert not owner.marker.exists(), owner.marker.read_text()


def test_what_the_owner_added_is_covered_in_the_next_message(cage: Cage, owner: Owner) -> None:
    """A message that is over is not ended: no agent works when the owner adds its repository."""
    assert cage.run("sh", "-c", NESTED).code == 0
    assert wait_until(lambda: not cage.inside_pids(), 5)
    owner.git("add", "-A")
    script = f"""
        git -C evil log --format=%s | grep -qx two || exit 1
        git -C evil config core.fsmonitor {owner.trap} && exit 1
        mv evil e && exit 1; sleep 1"""
    with owner.at_work():
        done = cage.run("sh", "-c", script)
    assert done.code == 0, done.err
    assert not owner.marker.exists(), owner.marker.read_text()


def test_a_submodule_of_the_owners_that_comes_while_an_agent_works(
    cage: Cage, owner: Owner
) -> None:
    """It stays what it is; only the agent is ended."""
    other = owner.home / "other"
    with cage.popen(
        "sh", "-c", "echo ready; sleep 60", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"ready\n"
        sub = submodule(owner, "libs/sub")
        _, err = agent.communicate(timeout=10)
    assert agent.returncode == -9
    assert b"'libs/sub'" in err
    assert (sub / ".git").read_text() == "gitdir: ../../.git/modules/libs/sub\n"
    assert owner.git("submodule", "status").startswith(" ")
    assert owner.git("log", "--format=%s", cwd=sub) == "x\n"
    assert other.is_dir()
    assert cage.text("git", "-C", "libs/sub", "log", "--format=%s") == "x\n"


@pytest.mark.parametrize("is_changed", [False, True])
def test_submodules_in_a_split_index_are_covered(
    cage: Cage, owner: Owner, *, is_changed: bool
) -> None:
    sub = submodule(owner, "sub")
    owner.git("update-index", "--split-index")
    if is_changed:
        owner.git("commit", "-q", "--allow-empty", "-m", "y", cwd=sub)
        (owner.project / "z").write_text("z\n")
        owner.git("add", "sub", "z")
    script = f"""
        git init -q evil; (cd evil; git config core.fsmonitor {owner.trap})
        rm -f sub/.git; echo gitdir: ../evil/.git > sub/.git; mv sub s; sleep 1"""
    with owner.at_work():
        cage.run("sh", "-c", script)
    assert (sub / ".git").read_text() == "gitdir: ../.git/modules/sub\n"
    assert not owner.marker.exists(), owner.marker.read_text()
