"""Which session a command that resumes a conversation goes on in."""

import json
import os

import pytest

from cagewrap import sessions
from cagewrap.paths import Paths
from cagewrap.resumed import find_resumed, resumed_conversation, resumed_pi_conversation
from cagewrap.sessions import Record

ID = "3f2504e0-4f89-11d3-9a0c-0305e82c3301"
STEM = f"2026-11-29T10-00-00-000Z_{ID}"


@pytest.fixture
def paths(tmp_path):
    return Paths(
        home="/h",
        config_file="/h/.config/cagewrap.toml",
        state_dir=str(tmp_path / "state"),
        runtime_dir=str(tmp_path / "run"),
        podman_runtime_dir="/run",
    )


def put(paths, *names, project="/p"):
    for name in names:
        os.makedirs(paths.home_dir(name))
        args = ("podman", "create", "image")
        one = Record(
            name=name, project=project, session=name, created_at=1.0, image="i", runtime="crun",
            identity="root", network="none", config_hash="h", home="/h", run_args=args,
        )  # fmt: skip
        sessions.write_record(paths, one)


def say(paths, name, agent, slug, file, *, brought=False):
    """A conversation that a cage's HOME has."""
    tree = {"Claude": ".claude/projects", "pi": ".pi/agent/sessions"}[agent]
    directory = os.path.join(paths.home_dir(name), tree, slug)
    os.makedirs(directory, exist_ok=True)
    open(os.path.join(directory, file + ".jsonl"), "w").close()
    if brought:
        with open(sessions.conversations_file(paths, name, agent), "w") as kept:
            json.dump({"brought": [file]}, kept)


def name_of(paths, *command, project="/p"):
    found = find_resumed(paths, sessions.list_records(paths), project, list(command))
    return found.name if found else None


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["claude", "--resume", "id-1"], "id-1"),
        (["claude", "--resume=id-2", "-p"], "id-2"),
        (["claude", "-r", "id-3"], "id-3"),
        (["claude", "--resume", "--print"], ""),
        (["claude", "--resume"], ""),
        (["claude", "-p", "resume"], ""),
    ],
)
def test_resumed_conversation_is_read_from_the_command(words, found):
    assert resumed_conversation(words) == found


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["pi", "--mode", "rpc", "--session", f"/h/.pi/agent/sessions/--p--/{STEM}.jsonl"], STEM),
        (["pi", "--session", ID], ID),
        (["pi", "--session", "../../etc/passwd"], ""),
        (["opencode", "run", "--session", "ses_123"], ""),
        (["pi", "--session"], ""),
        (["pi"], ""),
    ],
)
def test_resumed_conversation_of_pi_is_read_from_the_command(words, found):
    assert resumed_pi_conversation(words) == found


def test_found_in_the_one_home_that_knows_it(paths):
    put(paths, "a", "b")
    put(paths, "c", project="/q")
    for name, conversation in (("a", "id1"), ("b", "id2"), ("a", "both"), ("b", "both")):
        say(paths, name, "Claude", "-p", conversation)
    assert name_of(paths, "claude", "-r", "id1") == "a"
    assert name_of(paths, "claude", "-r", "id2") == "b"
    assert name_of(paths, "claude", "-r", "id1", project="/q") is None
    assert name_of(paths, "claude", "-r", "both") is None
    assert name_of(paths, "claude", "-r", "nowhere") is None
    assert name_of(paths, "claude", "-r", "../../a/home/.claude/projects/-p/id1") is None


@pytest.mark.parametrize("how", [f"/h/.pi/agent/sessions/--p--/{STEM}.jsonl", ID])
def test_pi_is_found_by_file_and_by_id(paths, how):
    put(paths, "a", "b")
    say(paths, "a", "pi", "--p--", STEM)
    say(paths, "b", "pi", "--p--", STEM, brought=True)
    assert name_of(paths, "pi", "--session", how) == "a"
    say(paths, "a", "pi", "--p--", STEM, brought=True)
    assert name_of(paths, "pi", "--session", how) is None


def test_one_that_came_from_the_host_alone_is_nobodys(paths):
    put(paths, "a")
    say(paths, "a", "Claude", "-p", "id1", brought=True)
    assert name_of(paths, "claude", "-r", "id1") is None
