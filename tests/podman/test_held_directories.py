"""Directories that the host obeys: the cage sees private copies of them, at every moment."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .cages import IDENTITIES, RUNTIMES, Cage, wait_until

SETTLED_S = 5.0
HOOK = '{"hooks": {"evil": 1}}\n'


def marks(cage: Cage) -> list[Path]:
    """Sessions whose agents' work was not looked at to the end yet."""
    return list(cage.place.state_home.glob("cagewrap/projects/*/active/*"))


def settle(cage: Cage) -> None:
    """Wait until cagewrap takes the project for the owner's again."""
    assert wait_until(lambda: marks(cage) == [], SETTLED_S), cage.logs()


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def contents(directory: Path) -> dict[str, str]:
    """Every file below a directory, with what is in it."""
    return {
        str(path.relative_to(directory)): path.read_text()
        for path in directory.rglob("*")
        if path.is_file()
    }


def names(cage: Cage) -> set[str]:
    """What is in the project, beside a git directory."""
    return set(os.listdir(cage.project)) - {".git"}


@pytest.fixture
def claude(cage: Cage) -> Path:
    """The project's own .claude, with something in it."""
    directory = cage.project / ".claude"
    write(directory / "settings.json", "{}\n")
    write(directory / "agents/reviewer.md", "review\n")
    return directory


@pytest.mark.parametrize("user", IDENTITIES)
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_what_an_agent_writes_there_is_its_own(
    make_cage: Callable[..., Cage], user: str, runtime: str
) -> None:
    cage = make_cage("--user", user, "--runtime", runtime)
    write(cage.project / ".claude/settings.json", "{}\n")
    script = (
        "cat .claude/settings.json; echo evil >.claude/settings.json; "
        "echo new >.claude/settings.local.json; echo evil >.vscode/tasks.json"
    )
    assert cage.text("sh", "-c", script) == "{}\n"
    assert contents(cage.project) == {".claude/settings.json": "{}\n"}
    read = "cat .claude/settings.json .claude/settings.local.json .vscode/tasks.json"
    assert cage.text("sh", "-c", read) == "evil\nnew\nevil\n"
    cage.stop()
    assert cage.text("sh", "-c", read) == "evil\nnew\nevil\n", "not kept by a stop"


def test_nothing_appears_on_the_host_while_the_agent_tries(cage: Cage, claude: Path) -> None:
    """Renames, removals, links and a loop that races with the keeper."""
    before = contents(claude)
    script = """
        echo up
        end=$(($(date +%s) + 4))
        while [ "$(date +%s)" -lt $end ]; do
            mv .claude .c2; rm -rf .claude; mkdir -p .claude; ln -sfn evil .claude
            echo evil >.claude/settings.json
            for d in .zed .cursor .idea .codex; do
                mkdir -p $d 2>/dev/null; echo evil >$d/settings.json
            done
            umount .claude; mount -o bind . .claude
        done 2>/dev/null
    """
    seen: set[str] = set()
    with cage.popen("sh", "-c", script, stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"up\n"
        while agent.poll() is None:
            seen |= set(contents(claude).values())
            time.sleep(0.005)
    assert seen == set(before.values())
    settle(cage)
    assert contents(cage.project) == {f".claude/{name}": text for name, text in before.items()}


@pytest.mark.parametrize("path", [".zed", ".github/hooks"])
def test_a_directory_of_an_agents_is_moved_out_and_stays_its_own(cage: Cage, path: str) -> None:
    file = f"{path}/deep/tasks.json"
    done = cage.run("sh", "-c", f"mkdir -p {path}/deep; echo z >{file}; sleep 1.5; cat {file}")
    assert done.out == b"z\n"
    assert f"'{path}' is held back".encode() in done.err
    assert contents(cage.project) == {}
    assert cage.text("sh", "-c", f"cat {file}; echo more >{path}/more") == "z\n"
    assert contents(cage.project) == {}
    cage.stop()
    assert names(cage) == {path.split("/", maxsplit=1)[0]} - {path}


def work(path: str) -> str:
    """What an agent does in a directory that is new, and must be able to."""
    return f"""
        set -e
        for i in 1 2 3 4 5; do
            mkdir -p {path}; echo one >{path}/one; mkdir {path}/two; sleep 0.0$i
            echo two >{path}/two/two; cat {path}/one {path}/two/two
            rm -r {path.split("/", maxsplit=1)[0]}/* || true
        done
    """


@pytest.mark.parametrize("path", [".zed", ".cursor/rules/deep"])
def test_the_agent_does_not_notice(cage: Cage, path: str) -> None:
    """Its directory is taken out while it works in it."""
    for _ in range(3):
        done = cage.run("sh", "-c", work(path))
        assert done.code == 0, done.err
        assert done.out == b"one\ntwo\n" * 5
        assert contents(cage.project) == {}
        assert cage.cagewrap("rm").code == 0


def test_a_directory_of_another_user_of_the_cage(cage: Cage) -> None:
    script = "mkdir x; echo evil >x/tasks.json; chown -R 33:33 x; mv x .zed; sleep 1; cat .zed/*"
    assert cage.text("sh", "-c", script) == "evil\n"
    settle(cage)
    assert contents(cage.project / ".zed") == {}
    assert cage.cagewrap("rm").code == 0
    subprocess.run(
        ["podman", "unshare", "rm", "-rf", *cage.project.glob(".cagewrap-*")], check=True
    )


@pytest.mark.parametrize("wrong", ["chmod 0 .claude", "chown 33:33 .claude", "chmod -R 0 .claude"])
def test_an_agent_that_shuts_the_owner_out_of_its_copy(
    cage: Cage, claude: Path, wrong: str
) -> None:
    cage.text("sh", "-c", f"echo evil >.claude/settings.json; {wrong}")
    settle(cage)
    write(claude / "settings.json", "mine\n")
    assert cage.text("echo", "on") == "on\n"
    assert cage.cagewrap("review").code == 0
    cage.stop()
    assert cage.text("echo", "on") == "on\n"
    assert contents(claude) == {"settings.json": "mine\n", "agents/reviewer.md": "review\n"}
    assert cage.cagewrap("rm").code == 0


def test_what_was_dropped_leaves_no_directory(cage: Cage) -> None:
    cage.text("sh", "-c", "mkdir .zed; echo z >.zed/tasks.json")
    settle(cage)
    assert cage.cagewrap("review", "--drop", ".zed/tasks.json").code == 0
    cage.stop()
    cage.text("true")
    assert names(cage) == {".claude", ".vscode"}


HOLD_OPEN = """
import os, time
os.mkdir(".zed")
seen, end = {}, time.monotonic() + 3
while time.monotonic() < end:
    try:
        fd = os.open(".zed", os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        continue
    number = os.fstat(fd).st_ino
    if number in seen:
        os.close(fd)
    seen.setdefault(number, fd)
    for fd in seen.values():
        try:
            os.close(os.open("tasks.json", os.O_WRONLY | os.O_CREAT, dir_fd=fd))
        except OSError:
            pass
"""


def test_an_agent_that_has_the_new_directory_open_gets_nothing_into_it(cage: Cage) -> None:
    """Between the making of the empty directory and its cover the agent may open it."""
    cage.text("python3", "-c", HOLD_OPEN)
    settle(cage)
    assert contents(cage.project) == {}


def test_the_hosts_edits_reach_the_agent_unless_it_changed_the_same_file(
    cage: Cage, claude: Path
) -> None:
    cage.text("sh", "-c", "echo agent >.claude/settings.json")
    settle(cage)
    write(claude / "settings.json", "host\n")
    write(claude / "agents/reviewer.md", "review well\n")
    write(claude / "skills/new/SKILL.md", "skill\n")
    (claude / "link").symlink_to("settings.json")
    read = (
        "cat .claude/settings.json .claude/agents/*.md .claude/skills/new/*; readlink .claude/link"
    )
    assert cage.text("sh", "-c", read) == "agent\nreview well\nskill\nsettings.json\n"
    (claude / "skills/new/SKILL.md").unlink()
    assert cage.text("sh", "-c", "ls .claude/skills 2>/dev/null; true") == ""
    assert (claude / "settings.json").read_text() == "host\n"


def test_a_directory_that_the_host_replaces_meanwhile_is_covered_again(
    cage: Cage, claude: Path
) -> None:
    """The kernel drops a mount, silently, whose mountpoint the host removes."""
    script = """
        echo up
        while :; do
            mkdir .claude; echo evil >.claude/settings.json; echo evil >.claude/evil.json
        done 2>/dev/null
    """
    with cage.popen("sh", "-c", script, stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"up\n"
        subprocess.run(["rm", "-rf", claude], check=False)
        time.sleep(1.5)
        write(claude / "agents/reviewer.md", "review\n")  # as git checkout would
        time.sleep(1.5)
        agent.kill()
    settle(cage)
    assert contents(claude) == {"agents/reviewer.md": "review\n"}
    cage.text("sh", "-c", "echo evil >.claude/again.json")
    assert contents(claude) == {"agents/reviewer.md": "review\n"}


def test_a_killed_keeper_leaves_nothing_open(cage: Cage, claude: Path) -> None:
    cage.text("true")
    settle(cage)
    with cage.popen("sh", "-c", "echo evil >.mcp.json; mkdir .zed; sleep 60") as agent:
        assert wait_until(lambda: cage.names() and cage.init() and marks(cage), 10)
        time.sleep(0.3)
        os.kill(cage.keeper(), signal.SIGKILL)
        agent.wait(10)
    cage.text("sh", "-c", "echo evil >.claude/settings.json; echo evil >.vscode/tasks.json")
    settle(cage)
    assert contents(cage.project) == {
        ".claude/settings.json": "{}\n",
        ".claude/agents/reviewer.md": "review\n",
    }


@pytest.mark.parametrize("how", ["stop", "rm", "keeper killed, then stop"])
def test_no_empty_directory_is_left(cage: Cage, how: str) -> None:
    cage.text("sh", "-c", "mkdir .zed; sleep 1")
    assert names(cage) == {".claude", ".vscode", ".zed"}
    if how.startswith("keeper"):
        os.kill(cage.keeper(), signal.SIGKILL)
        assert wait_until(lambda: cage.keeper() == 0, 5)
    done = cage.cagewrap("rm" if how == "rm" else "stop")
    assert done.code == 0, done.err
    assert os.listdir(cage.project) == []


def test_one_command_leaves_no_empty_directory(cage: Cage) -> None:
    cage.text("sh", "-c", "ls -A; echo evil >.claude/x", flags=("--rm",))
    assert wait_until(lambda: os.listdir(cage.project) == [], 10)
    assert wait_until(lambda: cage.names() == [], 10)
    assert wait_until(lambda: list(cage.place.state_home.glob("cagewrap/projects/*")) == [], 5)


def test_a_session_that_runs_keeps_its_directories_when_another_stops(cage: Cage) -> None:
    cage.text("true", flags=("--session", "one"))
    cage.text("true", flags=("--session", "two"))
    [one] = [name for name in cage.names() if cage.record(name)["session"] == "one"]
    cage.stop(one)
    assert names(cage) == {".claude", ".vscode"}
    cage.text("sh", "-c", "echo evil >.claude/settings.json", flags=("--session", "two"))
    assert contents(cage.project) == {}
    cage.stop_all()
    assert os.listdir(cage.project) == []


def test_the_owner_edits_while_another_session_works(cage: Cage, claude: Path) -> None:
    """A directory that one cage covers is nobody's but the owner's to the next one."""
    with cage.popen("sleep", "60", flags=("--session", "one")) as agent:
        assert wait_until(lambda: marks(cage) != [], 10)
        time.sleep(0.2)
        write(claude / "settings.json", "edited\n")
        done = cage.run("cat", ".claude/settings.json", flags=("--session", "two"))
        assert (done.out, done.err) == (b"edited\n", b"")
        agent.terminate()
    assert (claude / "settings.json").read_text() == "edited\n"


def test_sessions_have_copies_of_their_own(cage: Cage, claude: Path) -> None:
    for name in ("one", "two"):
        cage.text("sh", "-c", f"echo {name} >.claude/settings.json", flags=("--session", name))
    for name in ("one", "two"):
        assert cage.text("cat", ".claude/settings.json", flags=("--session", name)) == name + "\n"
    assert (claude / "settings.json").read_text() == "{}\n"


def test_a_symlink_to_a_directory_in_the_project_cannot_be_used(cage: Cage) -> None:
    write(cage.project / "config/claude/settings.json", "{}\n")
    (cage.project / ".claude").symlink_to("config/claude")
    cage.text("sh", "-c", "echo evil >.claude/settings.json; rm .claude; mkdir .claude; "
              "echo evil >.claude/settings.local.json; sleep 1")  # fmt: skip
    settle(cage)
    assert contents(cage.project) == {"config/claude/settings.json": "{}\n"}


def test_a_project_whose_git_hooks_lie_in_it(cage: Cage) -> None:
    hooks = write(cage.project / "tools/hooks/pre-commit", "#!/bin/sh\n").parent
    subprocess.run(["git", "init", "-q"], cwd=cage.project, env=cage.env, check=True)
    subprocess.run(
        ["git", "config", "core.hooksPath", "tools/hooks"],
        cwd=cage.project, env=cage.env, check=True,
    )  # fmt: skip
    script = (
        "echo evil >>tools/hooks/pre-commit; echo evil >tools/hooks/post-commit; "
        "mv tools t2; mkdir -p tools/hooks; echo evil >tools/hooks/pre-commit; sleep 1.2"
    )
    cage.text("sh", "-c", script)
    settle(cage)
    assert contents(hooks) in ({"pre-commit": "#!/bin/sh\n"}, {})


def test_ten_thousand_files(cage: Cage, claude: Path) -> None:
    for number in range(10_000):
        write(claude / f"skills/s{number % 100}/f{number}", f"{number}\n")
    began = time.monotonic()
    assert cage.text("sh", "-c", "find .claude -type f | wc -l", timeout_s=60).strip() == "10002"
    first = time.monotonic() - began
    began = time.monotonic()
    cage.text("true")
    assert time.monotonic() - began < first
    write(claude / "skills/s7/added", "new\n")
    assert cage.text("cat", ".claude/skills/s7/added") == "new\n"


def test_what_an_agent_plants_in_the_copy_leads_nowhere(cage: Cage, claude: Path) -> None:
    """Symlinks, FIFOs, devices and depth, when the host's changes are carried into the copy."""
    outside = write(cage.place.root / "outside/secret", "mine\n").parent
    script = f"""
        rm -rf .claude/agents; ln -s {outside} .claude/agents
        rm .claude/settings.json; mkfifo .claude/settings.json
        ln -s {outside}/secret .claude/link
        i=0; while [ $i -lt 300 ]; do mkdir d; cd d; i=$((i+1)); done
    """
    cage.text("sh", "-c", f"cd .claude && {{ {script.replace('.claude/', '')} }}")
    settle(cage)
    write(claude / "agents/reviewer.md", "changed\n")
    write(claude / "settings.json", '{"changed": 1}\n')
    cage.text("true")
    assert contents(outside) == {"secret": "mine\n"}
    done = cage.cagewrap("review", "--json")
    assert done.code == 0, done.err
    assert b"mine" not in done.out


@pytest.fixture
def elsewhere(cage: Cage) -> Iterator[Cage]:
    """A cage whose project is on another file system than cagewrap's own files."""
    cage.project = Path(tempfile.mkdtemp(dir=Path.home(), prefix="project-"))
    assert cage.project.stat().st_dev != cage.place.root.stat().st_dev
    yield cage
    cage.stop_all()
    shutil.rmtree(cage.project)


def test_a_directory_is_moved_out_to_another_file_system(elsewhere: Cage) -> None:
    script = "mkdir -p d/a; echo z >d/a/x; ln -s x d/a/y; mkfifo d/p; mv d .zed; sleep 1"
    elsewhere.text("sh", "-c", script)
    assert names(elsewhere) == {".claude", ".vscode", ".zed"}
    assert contents(elsewhere.project) == {}
    assert elsewhere.text("sh", "-c", "cat .zed/a/y") == "z\n"
    elsewhere.stop()
    assert os.listdir(elsewhere.project) == []


@pytest.mark.parametrize("how", ["hidden", "mounted"])
def test_what_the_owner_put_in_the_place_stays(cage: Cage, tmp_path: Path, how: str) -> None:
    write(cage.project / ".claude/secret", "mine\n")
    data = write(tmp_path / "data/seen", "data\n").parent
    flags = {
        "hidden": ("--hide", ".claude"),
        "mounted": ("--mount", f"source={data},target={cage.project}/.claude"),
    }[how]
    expected = {"hidden": "", "mounted": "seen\n"}[how]
    assert cage.text("sh", "-c", "ls .claude", flags=flags) == expected


def test_what_is_hidden_in_a_directory_is_not_in_the_copy(cage: Cage) -> None:
    write(cage.project / ".idea/secret file", "secret\n")
    write(cage.project / ".idea/deep/key", "secret\n")
    write(cage.project / ".idea/seen", "seen\n")
    script = "cat .idea/* .idea/deep/* 2>/dev/null; true"
    assert cage.text("sh", "-c", script) == "secret\nseen\nsecret\n"
    settle(cage)
    flags = ("--hide", ".idea/secret file", "--hide", ".idea/deep/")
    assert cage.run("true", flags=flags).code == 120
    assert cage.cagewrap("recreate", "--fresh").code == 0
    assert cage.text("sh", "-c", script, flags=flags) == "seen\n"
    write(cage.project / ".idea/seen", "changed\n")
    assert cage.text("sh", "-c", script, flags=flags) == "changed\n"
    assert b"secret" not in cage.cagewrap("review").out
