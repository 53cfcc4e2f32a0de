"""Which cage a command runs in: by project, by session name, by the conversation it resumes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from .cages import Cage, keepers, podman, wait_until

CROWD = 20
IS_CI_ON_OLDEST = bool(os.environ.get("CI")) and " 4." in podman("--version").stdout
ROUNDS = int(os.environ.get("CAGEWRAP_RACE_ROUNDS") or (25 if IS_CI_ON_OLDEST else 3))
"""How often a crowd comes for a session that does not exist yet. A round takes 3 to 5 s."""


def container_name(cage: Cage, *flags: str, **options: object) -> str:
    """The name of the cage that a command with these flags runs in."""
    return cage.text("uname", "-n", flags=flags, **options).strip()


def test_directory_and_session_name_choose_the_cage(cage: Cage) -> None:
    plain = container_name(cage)
    assert container_name(cage) == plain
    one = container_name(cage, "--session", "one")
    two = container_name(cage, "--session", "two")
    assert len({plain, one, two}) == 3
    assert container_name(cage, "--session", "one") == one
    assert container_name(cage, env={"CAGEWRAP_SESSION": "two"}) == two
    assert container_name(cage) == plain
    assert cage.names() == sorted({plain, one, two})
    assert cage.record(one)["session"] == "one"
    for name in (plain, one, two):
        labels = cage.container(name)["Config"]["Labels"]
        assert labels["cagewrap.name"] == name
        assert labels["cagewrap.project"] == str(cage.project)


def test_same_session_name_in_two_projects_is_two_cages(cage: Cage) -> None:
    other = cage.place.root / "other"
    other.mkdir()
    one = container_name(cage, "--session", "same")
    assert container_name(cage, "--session", "same", cwd=other) != one


def test_session_named_by_the_harnesss_variable(cage: Cage) -> None:
    (cage.place.config_home / "cagewrap.toml").write_text('session_env = ["MY_HARNESS_SESSION"]\n')
    named = container_name(cage, env={"MY_HARNESS_SESSION": "s-1"})
    assert cage.record(named)["session"] == "s-1"
    assert container_name(cage, env={"MY_HARNESS_SESSION": "s-1"}) == named
    assert container_name(cage, env={"MY_HARNESS_SESSION": "s-2"}) != named
    assert container_name(cage, "--session", "s-1", env={"MY_HARNESS_SESSION": "s-2"}) == named


def test_private_homes_are_apart(cage: Cage) -> None:
    for name in ("one", "two"):
        cage.text("sh", "-c", f"echo {name} >~/mine; touch /opt/{name}", flags=("--session", name))
    script = "cat ~/mine; ls /opt"
    assert "one\n" in cage.text("sh", "-c", script, flags=("--session", "one"))
    assert "two" not in cage.text("sh", "-c", script, flags=("--session", "one"))


def test_subdirectory_of_the_work_tree_is_the_same_project(cage: Cage) -> None:
    subprocess.run(["git", "init", "--quiet", cage.project], check=True, env=cage.env)
    below = cage.project / "src/deep"
    below.mkdir(parents=True)
    top = container_name(cage)
    assert container_name(cage, cwd=below) == top
    assert cage.text("pwd", cwd=below) == f"{below}\n"


def test_directory_without_work_tree_is_its_own_project(cage: Cage) -> None:
    below = cage.place.root / "plain/below"
    below.mkdir(parents=True)
    assert container_name(cage, cwd=below) != container_name(cage, cwd=below.parent)


def test_directory_below_one_that_has_a_cage_is_in_that_cage(cage: Cage) -> None:
    below = cage.project / "below"
    below.mkdir()
    assert container_name(cage) == container_name(cage, cwd=below)


# --- renamed sessions ----------------------------------------------------------------------------

CONVERSATION = "3f2504e0-4f89-11d3-9a0c-0305e82c3301"


def plant(cage: Cage, name: str, conversation: str = CONVERSATION) -> None:
    """What the agent leaves in its HOME of a conversation."""
    file = cage.private_home(name) / f".claude/projects/-a-project/{conversation}.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text("{}\n")


@pytest.mark.parametrize(
    "words",
    [("--resume", CONVERSATION), (f"--resume={CONVERSATION}",), ("-r", CONVERSATION)],
    ids=["two words", "one word", "short"],
)
def test_renamed_session_that_resumes_keeps_its_cage(cage: Cage, words: tuple[str, ...]) -> None:
    old = container_name(cage, "--session", "old")
    container_name(cage, "--session", "bystander")
    plant(cage, old)
    script = ("sh", "-c", "uname -n", "claude", *words)
    assert cage.text(*script, flags=("--session", "new")).strip() == old
    assert cage.record(old)["session"] == "new"
    assert container_name(cage, "--session", "new") == old
    assert container_name(cage, "--session", "old") != old, "the old name is free again"


def test_unnamed_session_that_gets_a_name_keeps_its_cage(cage: Cage) -> None:
    plain = container_name(cage)
    plant(cage, plain)
    script = ("sh", "-c", "uname -n", "claude", "--resume", CONVERSATION)
    assert cage.text(*script, flags=("--session", "named")).strip() == plain


def test_resumed_conversation_of_another_project_is_not_ours(cage: Cage) -> None:
    other = cage.place.root / "other"
    other.mkdir()
    foreign = container_name(cage, "--session", "s", cwd=other)
    plant(cage, foreign)
    script = ("sh", "-c", "uname -n", "claude", "--resume", CONVERSATION)
    assert cage.text(*script, flags=("--session", "t")).strip() != foreign


def test_unknown_conversation_makes_a_new_cage(cage: Cage) -> None:
    old = container_name(cage, "--session", "old")
    script = ("sh", "-c", "uname -n", "claude", "--resume", "../../../etc/passwd")
    assert cage.text(*script, flags=("--session", "new")).strip() != old


# --- cages for one command -----------------------------------------------------------------------


def test_rm_cage_is_gone_with_all_it_had(cage: Cage) -> None:
    done = cage.run("sh", "-c", "echo $HOME; sleep 0.3; uname -n; exit 4", flags=("--rm",))
    assert done.code == 4
    name = done.out.decode().split()[-1]
    assert wait_until(lambda: not cage.names() and not keepers(name), 5), cage.names()
    assert podman("container", "exists", name).returncode == 1


def test_rm_cages_are_never_shared(cage: Cage) -> None:
    with ThreadPoolExecutor(4) as pool:
        names = list(pool.map(lambda _: container_name(cage, "--rm"), range(4)))
    assert len(set(names)) == 4
    assert wait_until(lambda: not cage.names(), 10), cage.names()


def test_killed_shim_of_a_rm_cage_leaves_nothing(cage: Cage) -> None:
    with cage.popen("sleep", "1000", flags=("--rm",)) as process:
        assert wait_until(lambda: cage.names() and cage.init() and cage.inside_pids(), 10)
        process.kill()
    assert wait_until(lambda: not cage.names(), 6), cage.names()


# --- settings that change ------------------------------------------------------------------------


def test_changed_settings_do_not_change_a_cage_that_is(cage: Cage) -> None:
    first = container_name(cage)
    started = cage.container()["State"]["StartedAt"]
    done = cage.run("uname", "-n", flags=("--shm-size", "32m"))
    assert (done.code, done.out.decode().strip()) == (0, first)
    assert cage.container()["State"]["StartedAt"] == started
    assert cage.record()["wanted_args"], "written down, for `ls` and `recreate`"
    (cage.place.config_home / "cagewrap.toml").write_text('hide = ["secret"]\n')
    assert container_name(cage) == first
    assert cage.container()["State"]["StartedAt"] == started


def test_settings_changed_back_leave_nothing_to_do(cage: Cage) -> None:
    cage.text("true")
    cage.text("true", flags=("--shm-size", "32m"))
    assert cage.record()["wanted_args"]
    cage.stop()
    cage.text("true")
    assert not cage.record()["wanted_args"]


def test_environment_settings_take_effect_at_once(cage: Cage) -> None:
    config = cage.place.config_home / "cagewrap.toml"
    assert cage.text("sh", "-c", "echo [$ADDED]") == "[]\n"
    config.write_text('env.ADDED = "yes"\n')
    assert cage.text("sh", "-c", "echo [$ADDED]") == "[yes]\n"


# --- many at once --------------------------------------------------------------------------------


def crowd(cage: Cage, *flags: str) -> None:
    """20 shims at once, each with its own question."""

    def ask(number: int) -> tuple[int, bytes, bytes]:
        done = cage.run("sh", "-c", f"cat; uname -n; exit {number}",
                        stdin=b"%d\n" % number, flags=flags)  # fmt: skip
        return (done.code, done.out, done.err)

    with ThreadPoolExecutor(CROWD) as pool:
        answers = list(pool.map(ask, range(CROWD)))
    [name] = cage.names()
    assert answers == [
        (number, b"%d\n%s\n" % (number, name.encode()), b"") for number in range(CROWD)
    ]
    assert cage.keeper(name) != 0
    listed = podman("ps", "--all", "--quiet", "--filter", f"label=cagewrap.project={cage.project}")
    assert len(listed.stdout.split()) == 1


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_crowd_at_a_session_that_does_not_exist_yet_gets_one_cage(cage: Cage, round_: int) -> None:
    crowd(cage, "--session", f"race-{round_}")


def test_crowd_at_a_stopped_cage_starts_it_once(cage: Cage) -> None:
    cage.text("touch", "/opt/installed")
    cage.stop()
    crowd(cage)
    assert cage.text("ls", "/opt/installed") == "/opt/installed\n"


def test_crowd_at_a_cage_that_is_just_stopping_is_served(cage: Cage) -> None:
    cage.text("true", flags=("--idle-stop", "1s"))
    assert wait_until(lambda: "leaves" in cage.log() or not keepers(cage.name()), 5)
    for _ in range(3):
        with ThreadPoolExecutor(4) as pool:
            for done in pool.map(lambda _: cage.run("echo", "x"), range(8)):
                assert (done.code, done.out, done.err) == (0, b"x\n", b"")


def test_two_projects_start_at_once(make_cage: Callable[..., Cage]) -> None:
    cages = [make_cage() for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        names = list(pool.map(container_name, cages))
    assert len(set(names)) == 3
