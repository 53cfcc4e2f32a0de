"""What an agent makes below the root is looked at as it is made, also in a large project."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from .cages import Cage, command_line, is_alive, wait_until
from .test_held_directories import settle

pytestmark = pytest.mark.host_side

MOMENT_S = 0.2
"""Far less than a walk through these projects and its pauses take; much for a busy machine."""

EVIL = """
    git init -q ~/evil; git -C ~/evil config core.fsmonitor 'touch {proof}; false'
    printf '#!/bin/sh\\ntouch {proof}\\n' >~/evil/.git/hooks/post-index-change
    chmod +x ~/evil/.git/hooks/post-index-change
"""
MADE = {
    "init": "git init -q dep; git -C dep config core.fsmonitor 'touch {proof}; false'",
    "moved": "cp -r ~/evil x; mv x dep",
    "moved git directory": "mkdir dep; cp -r ~/evil/.git dep/x; mv dep/x dep/.git",
    "deep, moved at once": "mkdir -p x/1/2/3; cp -r ~/evil x/1/2/3/dep; mv x y",
    "bare": "cp -r ~/evil/.git dep; git -C dep config core.worktree .",
    "file": "mkdir dep; cp -r ~/evil/.git dep/g; echo 'gitdir: g' >dep/.git",
    "link": "ln -s {home}/evil dep",
    "moved aside and back": "git init -q a; mv a b; cp ~/evil/.git/config b/.git/config; mv b dep",
    "hook": "git init -q dep; cp ~/evil/.git/hooks/post-index-change dep/.git/hooks",
    "renamed above": """
        mkdir -p o/p; git init -q o/p/dep; mv o n
        git -C n/p/dep config core.fsmonitor 'touch {proof}; false'
    """,
    "settings": "mkdir -p dep/.claude; echo evil >dep/.claude/settings.json",
    "servers": "mkdir dep; echo evil >dep/.mcp.json",
}


def is_evil(cage: Cage, proof: Path) -> bool:
    for where in ("dep", "y/1/2/3/dep", "n/p/dep"):
        path = cage.project / where
        if path.is_dir() and b"evil" in b"".join(
            read(path / name) for name in (".mcp.json", ".claude/settings.json")
        ):
            return True
        for words in (("status",), ("add", "-A")) if path.is_dir() else ():
            subprocess.run(
                ["git", *words], cwd=path, env=cage.env, capture_output=True, check=False
            )
    return proof.exists()


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def fill(project: Path, directories: int, files: int) -> None:
    for number in range(directories):
        below = project / f"src/{number % 50}/{number}"
        below.mkdir(parents=True)
        for one in range(files):
            (below / f"{one}.c").touch()


@pytest.mark.parametrize("script", MADE.values(), ids=MADE)
def test_how_soon_it_is_looked_at(cage: Cage, script: str) -> None:
    proof = cage.place.root / "pwned"
    fill(cage.project, 2000, 10)
    names = {"proof": proof, "home": "PRIVATE"}
    cage.text("sh", "-c", EVIL.format(**names))
    settle(cage)
    names["home"] = str(cage.private_home())
    body = script.format(**names)
    with cage.popen(
        "sh", "-c", f"sleep 3\n{body}\necho up; sleep 3", stdout=subprocess.PIPE
    ) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"up\n"
        time.sleep(MOMENT_S)
        assert not is_evil(cage, proof)
        agent.kill()


HONEST = """
    set -e
    git config --global user.name a; git config --global user.email a@b
    git config --global protocol.file.allow always
    for n in $(seq 15); do
        mkdir d$n; cd d$n
        git init -q up; mkdir up/s up/t; echo x >up/f; echo y >up/s/g; echo y >up/t/h
        git -C up add .; git -C up commit -qm 1
        git clone -q up down
        git -C down config pull.rebase true; git -C down config user.name b
        git -C down worktree add -q ../wt 2>/dev/null
        echo z >wt/f; git -C wt commit -qam 2
        git -C down sparse-checkout set s
        test ! -e down/t
        git -C up submodule --quiet add $PWD/down sub; git -C up commit -qm sub
        git clone -q --bare up bare.git
        git -C up gc -q; git -C down fetch -q; git -C down status -s
        test "$(git -C down config user.name)" = b
        cd ..
    done
"""


def test_git_works_below_the_root_while_it_is_watched(cage: Cage) -> None:
    assert cage.run("sh", "-c", f"sleep 1; {HONEST}").err == b""


def test_many_directories_at_once(cage: Cage) -> None:
    """More happens than the kernel keeps for us."""
    proof = cage.place.root / "pwned"
    script = f"""
        for i in 1 2 3 4 5 6 7 8; do
            python3 -c 'import os
for i in range(5000): os.makedirs("t/'$i'/%d" % i); open("t/'$i'/%d/f" % i, "w").close()' &
        done
        wait
        git init -q dep; git -C dep config core.fsmonitor 'touch {proof}; false'; echo up; sleep 30
    """
    with cage.popen("sh", "-c", script, stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"up\n"
        config = cage.project / "dep/.git/config"
        began = time.monotonic()
        assert wait_until(lambda: b"fsmonitor" not in read(config), 10)
        print("after", time.monotonic() - began)
        agent.kill()


def test_nothing_is_left_of_it(cage: Cage) -> None:
    """The process is there while an agent works, and gone afterwards."""
    for _ in range(2):
        with cage.popen("sh", "-c", "echo up; exec sleep 10", stdout=subprocess.PIPE) as agent:
            assert agent.stdout is not None
            assert agent.stdout.readline() == b"up\n"
            time.sleep(1)  # a walk, which looks the same, has ended by now
            [watcher] = watchers(cage.keeper())
            time.sleep(0.5)
            assert watchers(cage.keeper()) == [watcher]
            agent.kill()
        settle(cage)
        assert wait_until(lambda: not watchers(cage.keeper()), 5)
    with cage.popen("sh", "-c", "echo up; exec sleep 10", stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"up\n"
        time.sleep(1)
        [watcher] = watchers(cage.keeper())
        os.kill(cage.keeper(), signal.SIGKILL)
        assert wait_until(lambda: not is_alive(watcher), 5)
        agent.kill()
    cage.text("true")  # the next keeper ends what is left


def watchers(keeper: int) -> list[int]:
    """The children of a keeper that look like it: they go on with its program."""
    listed = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
    return [pid for pid in map(int, listed) if command_line(pid) == command_line(keeper)]
