"""Records, locks, and which session a command or a person means."""

import json
import os
import time

import pytest

from cagewrap import sessions
from cagewrap.errors import DirectoryError, SessionError
from cagewrap.paths import Paths
from cagewrap.sessions import Record, State


@pytest.fixture
def paths(tmp_path):
    state, runtime = tmp_path / "state", tmp_path / "run" / "cagewrap"
    found = Paths(
        home=str(tmp_path),
        config_file=str(tmp_path / "cagewrap.toml"),
        state_dir=str(state),
        runtime_dir=str(runtime),
        podman_runtime_dir=str(tmp_path / "run"),
    )
    sessions.make_directories(found)
    return found


def record(name, project="/p", session="", **more):
    values = {
        "created_at": 1.0,
        "image": "img",
        "runtime": "crun",
        "identity": "root",
        "network": "none",
        "config_hash": "0" * 16,
        "home": "/home/me",
        "run_args": ("podman", "run", "img"),
    }
    return Record(name=name, project=project, session=session, **(values | more))


def put(paths, *records):
    for one in records:
        os.makedirs(paths.home_dir(one.name))
        sessions.write_record(paths, one)


def test_record_comes_back_equal(paths):
    one = record("a", publish=((3000, 80),), idle_stop_s=float("inf"), fixed_env=(("A", "ü\n"),))
    put(paths, one)
    assert sessions.read_record(paths, "a") == one


def test_record_of_another_version_is_refused(paths):
    put(paths, record("a", format=99))
    with pytest.raises(SessionError, match="another version"):
        sessions.read_record(paths, "a")


def test_record_of_another_version_is_not_written_over(paths):
    sessions.refuse_foreign(paths, "a")
    put(paths, record("a"))
    sessions.refuse_foreign(paths, "a")
    sessions.write_record(paths, record("a", format=99))
    with pytest.raises(SessionError, match="leaves its session alone"):
        sessions.refuse_foreign(paths, "a")
    records, errors = sessions.read_records(paths)
    assert (records, len(errors)) == ([], 1)


def test_what_a_later_version_wrote_down_stays(paths):
    put(paths, record("a"))
    path = paths.record_file("a")
    with open(path) as file:
        value = json.load(file)
    later = {**value, "later": [1, {"a": None}]}
    with open(path, "w") as file:
        json.dump(later, file)
    assert sessions.read_record(paths, "a") == record("a")
    sessions.write_record(paths, record("a", session="new"))
    with open(path) as file:
        assert json.load(file) == {**later, "session": "new"}


def test_a_record_without_what_every_session_has_is_an_error(paths):
    put(paths, record("a"))
    with open(paths.record_file("a"), "w") as file:
        json.dump({"format": 1, "name": "a"}, file)
    with pytest.raises(SessionError, match="cannot be read"):
        sessions.read_record(paths, "a")


def test_state_of_another_version_says_what_is_known_of_it(paths):
    put(paths, record("a"))
    with open(os.path.join(paths.cage_dir("a"), "state.json"), "w") as file:
        json.dump({"format": 2, "container_id": "abc", "later": 1}, file)
    assert sessions.read_state(paths, "a").container_id == "abc"


def test_record_cut_short_names_the_file(paths):
    put(paths, record("a"))
    with open(paths.record_file("a"), "w") as file:
        file.write('{"format": 1, "na')
    with pytest.raises(SessionError, match=r"record\.json"):
        sessions.read_record(paths, "a")
    assert sessions.list_records(paths) == []


def test_state_that_cannot_be_read_is_an_empty_one(paths):
    put(paths, record("a"))
    sessions.write_state(paths, "a", State(container_id="abc"))
    assert sessions.read_state(paths, "a").container_id == "abc"
    with open(os.path.join(paths.cage_dir("a"), "state.json"), "w") as file:
        file.write("not json")
    assert sessions.read_state(paths, "a") == State()


def test_records_are_listed_oldest_first(paths):
    put(paths, record("b", created_at=2.0), record("a", created_at=3.0), record("c"))
    assert [one.name for one in sessions.list_records(paths)] == ["c", "b", "a"]


def test_find_takes_project_and_session_but_never_a_cage_for_one_command():
    records = [
        record("x", session="s", rm=True),
        record("a", session="s"),
        record("b", project="/q", session="s"),
        record("c"),
    ]
    assert sessions.find_record(records, "/p", "s").name == "a"
    assert sessions.find_record(records, "/p", "").name == "c"
    assert sessions.find_record(records, "/p", "t") is None


def test_select_by_name_session_and_directory():
    records = [
        record("cagewrap-a-1", "/w/a", "one"),
        record("cagewrap-b-2", "/w/b", "one"),
        record("cagewrap-c-3", "/w/a/inner", ""),
    ]
    assert sessions.select(records, "cagewrap-b-2", "/").name == "cagewrap-b-2"
    assert sessions.select(records, "one", "/w/b/src").name == "cagewrap-b-2"
    assert sessions.select(records, "", "/w/a/inner/x").name == "cagewrap-c-3"
    assert sessions.select(records, "", "/w/a").name == "cagewrap-a-1"
    with pytest.raises(SessionError, match="More than one"):
        sessions.select(records, "one", "/elsewhere")
    with pytest.raises(SessionError, match="no session"):
        sessions.select(records, "", "/w/abc")


def test_lock_is_exclusive_and_ends_with_its_holder(paths):
    path = sessions.registry_lock(paths)
    with sessions.locked(path):
        assert sessions.try_lock(path) is None
    fd = sessions.try_lock(path)
    assert fd is not None
    assert not os.get_inheritable(fd)
    os.close(fd)


def test_process_is_told_from_a_later_one_with_its_pid():
    mine, boot = os.getpid(), sessions.boot_id()
    started = sessions.start_time(mine)
    assert sessions.is_alive(mine, started, boot)
    assert not sessions.is_alive(mine, started + 1, boot)
    assert not sessions.is_alive(mine, started, "another boot")
    assert not sessions.is_alive(0, 0, boot)
    assert sessions.start_time(2**22 + 1) == 0


@pytest.fixture
def open_umask():
    old = os.umask(0)
    yield
    os.umask(old)


def unmade(root):
    return Paths(
        home=str(root),
        config_file=str(root / "cagewrap.toml"),
        state_dir=str(root / "a" / "b" / "cagewrap"),
        runtime_dir=str(root / "cagewrap"),
        podman_runtime_dir=str(root),
    )


def test_directories_are_the_owners_alone_whatever_the_umask(tmp_path, open_umask):
    paths = unmade(tmp_path)
    sessions.make_directories(paths)
    sessions.make_private(paths.home_dir("x"))
    for path in ("a", "a/b", "a/b/cagewrap", "a/b/cagewrap/cages/x", "cagewrap"):
        assert (tmp_path / path).stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", ["state_dir", "cages_dir", "runtime_dir"])
@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_directory_that_others_can_write_to_is_refused(tmp_path, name, mode):
    paths = unmade(tmp_path)
    sessions.make_directories(paths)
    directory = getattr(paths, name)
    os.chmod(directory, mode)
    with pytest.raises(DirectoryError) as caught:
        sessions.make_directories(paths)
    assert directory in caught.value.message
    assert caught.value.hint == f"chmod 700 {directory}"


@pytest.mark.parametrize("name", ["state_dir", "cages_dir", "runtime_dir"])
def test_directory_of_another_or_somewhere_else_is_refused(tmp_path, name, monkeypatch):
    paths = unmade(tmp_path)
    sessions.make_directories(paths)
    with monkeypatch.context() as patched:
        patched.setattr(os, "getuid", lambda: os.geteuid() + 1)
        with pytest.raises(DirectoryError, match="belongs to uid"):
            sessions.make_directories(paths)
    directory = getattr(paths, name)
    os.rename(directory, tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", directory)
    with pytest.raises(DirectoryError, match="not a directory itself"):
        sessions.make_directories(paths)


def test_where_cages_write_is_known_once_a_session_is_made(paths):
    mount = 'type=bind,"source=/rw","target=/rw"'
    written = sessions.WrittenByCages(paths)
    assert written() == set()
    os.makedirs(paths.home_dir("a"))  # as it is made: the directory first, its record later
    assert written() == set()
    sessions.write_record(paths, record("a", run_args=("podman", "run", "--mount", mount, "img")))
    assert written() == {"/p", "/rw"}
    put(paths, record("b", project="/q"))
    assert written() == {"/p", "/q", "/rw"}
    time.sleep(0.02)  # two clock ticks
    more = mount.replace("/rw", "/more")  # as `recreate` does with new settings
    sessions.write_record(paths, record("a", run_args=("podman", "run", "--mount", more, "img")))
    assert written() == {"/p", "/q", "/more"}
