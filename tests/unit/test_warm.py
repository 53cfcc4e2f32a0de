"""Tickets hold only as long as nothing they depend on has changed."""

import os

import pytest

from cagewrap import protocol, warm


@pytest.fixture
def place(tmp_path, monkeypatch):
    for name in list(os.environ):
        if name.startswith("CAGEWRAP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PWD", "/w")
    (tmp_path / "cagewrap").mkdir()
    config = tmp_path / "cagewrap.toml"
    config.write_text("")
    return os.fsencode(config)


def write(config, names=(b"MY_SESSION",), cwd=b"/w", flags=(b"--rm",)):
    ticket = warm.Ticket(b"/run/x.sock", [[b"TERM"], [], [b"a", b""], []])
    warm.write_ticket(cwd, list(flags), (config, warm.stamp(config)), ticket, list(names))


def read(cwd=b"/w", flags=(b"--rm",)):
    return warm.read_ticket(cwd, list(flags))


def test_ticket_comes_back(place):
    assert read() is None
    write(place)
    found = read()
    assert found.socket == b"/run/x.sock"
    assert found.policy == [[b"TERM"], [], [b"a", b""], []]


def test_variables_of_two_harnesses_stay_known(place, monkeypatch):
    for name in ("ONE", "TWO"):
        monkeypatch.setenv(name, "a")
        write(place, [name.encode()], flags=[b"--session-env", name.encode()])
    write(place, [], flags=[])
    for name in ("ONE", "TWO"):
        flags = [b"--session-env", name.encode()]
        write(place, [name.encode()], flags=flags)
        write(place, [], flags=[])
        assert read(flags=flags) is not None
        assert read(flags=[]) is not None
        monkeypatch.setenv(name, "b")
        assert read(flags=flags) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MY_SESSION", "s"),
        ("CAGEWRAP_IMAGE", "x"),
        ("HOME", "/elsewhere"),
        ("PWD", "/link"),
        ("XDG_CONFIG_HOME", "/c"),
        ("XDG_STATE_HOME", "/s"),
    ],
)
def test_ticket_does_not_hold_for_another_environment(place, monkeypatch, name, value):
    write(place)
    monkeypatch.setenv(name, value)
    assert read() is None


def test_ticket_does_not_hold_for_other_flags_or_directories(place):
    write(place)
    assert read(cwd=b"/w/x") is None
    assert read(flags=()) is None
    assert read(flags=(b"--rm", b"")) is None


def test_ticket_does_not_hold_after_the_configuration_changed(place):
    write(place)
    with open(place, "a") as file:
        file.write("# touched")
    assert read() is None
    write(place)
    assert read() is not None
    os.unlink(place)
    assert read() is None


def test_ticket_cut_short_is_none(place, tmp_path):
    write(place)
    (file,) = (tmp_path / "cagewrap" / "tickets").iterdir()
    whole = file.read_bytes()
    for size in range(0, len(whole), 7):
        file.write_bytes(whole[:size])
        assert read() is None


def test_ticket_is_for_the_owner_alone(place, tmp_path):
    write(place)
    assert (tmp_path / "cagewrap" / "tickets").stat().st_mode & 0o077 == 0


def test_sections_come_back():
    for sections in ([], [[]], [[b"a", b"", b"b"], [], [b"12"]], [[b""]]):
        assert protocol.unpack_sections(protocol.pack_sections(sections)) == (sections or [])


@pytest.mark.parametrize("body", [b"x", b"2\0a", b"1\0a\0q"])
def test_sections_refuse_what_is_not_theirs(body):
    with pytest.raises(ValueError):
        protocol.unpack_sections(body)
