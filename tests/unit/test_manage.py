"""What the verbs decide without podman."""

import json
import os
import socket
import threading

import pytest

from cagewrap import control, foreign, manage, protocol, sessions
from cagewrap.errors import KeeperError, SessionError
from cagewrap.launch import try_connect
from cagewrap.paths import Paths
from cagewrap.sessions import Record


@pytest.fixture
def paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a socket's name is short, however deep the tests' directory
    found = Paths(str(tmp_path), "c", str(tmp_path / "state"), "run", ".")
    for directory in (found.cages_dir, found.runtime_dir):
        os.makedirs(directory)
    return found


def record(name):
    return Record(
        name=name, project="/p", session=name, created_at=1.0, image="i", runtime="crun",
        identity="root", network="none", config_hash="", home="/h", run_args=(),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (["mine"], {"cagewrap.name": "cagewrap-a-01234567"}),
        (["cagewrap-b-01234567"], {"cagewrap.name": "cagewrap-a-01234567"}),
        (["mine", "cagewrap-a-01234567"], {"cagewrap.name": "cagewrap-a-01234567"}),
        (["mine"], {"cagewrap.name": "mine"}),
        (["cagewrap-a-01234567"], {}),
        (["cagewrap-a-01234567"], None),
        ([], {"cagewrap.name": ""}),
        (None, None),
    ],
)
def test_container_of_the_owner_is_no_cage(names, labels):
    assert manage._name_if_ours({"Names": names, "Labels": labels}) == ""


def test_container_named_as_its_session_is_a_cage():
    name = "cagewrap-my-project-01234567"
    assert manage._name_if_ours({"Names": [name], "Labels": {"cagewrap.name": name}}) == name


@pytest.mark.parametrize(
    "error", [RecursionError("deep"), ValueError("x"), FileNotFoundError(2, "no", "/f")]
)
def test_whatever_one_session_meets_the_others_are_done(error):
    def action(one):
        if one.name == "b":
            raise error
        return manage.Done("removed", one.name)

    done, failure = manage.run_on([record("a"), record("b"), record("c")], action)
    assert [one.name for one in done] == ["a", "c"]
    assert failure is not None
    assert failure.hint


def test_trees_of_agents_are_left_to_programs_that_follow_nothing():
    words = foreign.take_back_args("/p q")
    assert words[:4] == ("podman", "unshare", "find", "/p q")
    assert "-xdev" in words
    assert words[words.index("-execdir") :] == ("-execdir", "chown", "-h", "0:0", "--", "{}", "+")
    assert foreign.remove_args("-x")[-2:] == ("--", "-x")
    assert foreign.parse(b"/a\n\0/b\xff\0") == ("/a\n", "/b\udcff")
    assert foreign.parse(b"") == ()


def listen(paths, name, backlog=5):
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(paths.socket_file(name))
    listener.listen(backlog)
    return listener


def serve(listener, packet):
    def answer():
        connection, _ = listener.accept()
        with connection:
            connection.recv(1000)
            connection.send(packet)

    threading.Thread(target=answer, daemon=True).start()


def test_those_that_answer_are_heard_beside_those_that_do_not(paths, monkeypatch):
    monkeypatch.setattr(control, "ASK_S", 0.5)
    with listen(paths, "well") as well, listen(paths, "odd") as odd, listen(paths, "silent"):
        serve(well, protocol.REPLY + json.dumps({"messages": 2}).encode())
        serve(odd, protocol.ERROR + b"123\0no\0")
        answers, silent = control.ask_all(paths, ["well", "none", "silent", "odd"], {"do": "x"})
    assert answers == {"well": {"messages": 2}}
    assert silent == {"silent", "odd"}


def test_full_queue_is_not_waited_at_for_ever(paths, monkeypatch):
    monkeypatch.setattr(control, "ASK_S", 0.2)
    with listen(paths, "full", backlog=0):
        first = try_connect(paths.socket_file("full"), 0.2)
        assert control.ask_all(paths, ["full", "none"], {}) == ({}, {"full"})
        assert control.is_listening(paths, "full")
        first.close()


def test_session_that_is_gone_is_said_to_be(paths):
    with pytest.raises(SessionError, match="gone already"), control.alone(paths, "nosuch"):
        pass


def test_a_session_whose_locks_are_free_is_alone(paths):
    os.makedirs(paths.cage_dir("a"))
    with control.alone(paths, "a") as is_alone:
        assert is_alone
        assert sessions.try_lock(sessions.cage_lock(paths, "a")) is None
        assert sessions.try_lock(sessions.keeper_lock(paths, "a")) is None
    with listen(paths, "a"), control.alone(paths, "a") as is_alone:
        assert not is_alone


def test_process_that_holds_the_lock_but_is_no_keeper_is_not_killed(paths, monkeypatch):
    monkeypatch.setattr(control, "_LOCK_S", 0.05)
    os.makedirs(paths.cage_dir("a"))
    with sessions.locked(sessions.keeper_lock(paths, "a")):
        assert not control.kill_keeper(paths, "a")
        with pytest.raises(KeeperError, match="held by another"), control.alone(paths, "a"):
            pass
