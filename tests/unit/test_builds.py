"""Which build this is, what two builds say to each other, and what a keeper leaves to another."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cagewrap import ahead, builds, protocol
from cagewrap.auth import unpack
from cagewrap.builds import Build
from cagewrap.errors import KeeperError
from cagewrap.keeper.inheritance import (
    Inheritance,
    keep_from_children,
    read_inheritance,
    write_inheritance,
)
from cagewrap.keeper.request import parse_request

SOURCE = Path(__file__).parents[2] / "src"


def test_a_build_is_told_by_its_files(tmp_path, monkeypatch):
    package = tmp_path / "lib/cagewrap"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("one")
    monkeypatch.setattr(builds, "__file__", str(package / "builds.py"))
    first = builds.own_build()
    assert first.root == os.fsencode(tmp_path / "lib")
    (package / "__pycache__").mkdir()
    assert builds.own_build().id == first.id
    (package / "other").write_text("two")
    (package / "other").rename(package / "__init__.py")
    assert builds.own_build().id != first.id
    (package / "__init__.py").unlink()
    assert builds.own_build().id.endswith(b" gone")


def test_a_single_file_is_not_gone_on_as(monkeypatch):
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(sys, "_MEIPASS", "/opt/cagewrap/_internal", raising=False)
    assert builds.own_build().executable == os.fsencode(sys.executable)
    monkeypatch.setattr(sys, "_MEIPASS", "/tmp/_MEIx1y2", raising=False)
    assert builds.own_build().executable == b""


def test_a_program_of_another_build():
    frozen = ahead.self_command("keeper", "3", build=Build(b"2 x", b"/opt/c/cagewrap", b""))
    assert frozen == ["/opt/c/cagewrap", "--cagewrap-internal", "keeper", "3"]
    other = ahead.self_command("keeper", "3", build=Build(b"2 x", b"/v/python", b"/v/it's"))
    assert other[0] == "/v/python"
    assert other[-2:] == ["keeper", "3"]
    own = ahead.self_command("keeper", "3", build=builds.own_build())
    assert own == ahead.self_command("keeper", "3")


def test_the_envelope_comes_back_and_may_grow():
    build = (b"1 x", b"/python", b"/lib")
    packet = protocol.pack_request(7, build)
    assert protocol.unpack_request(packet[1:]) == (7, protocol.OLDEST, build)
    assert protocol.unpack_request(packet[1:] + b"\0more\0") == (7, protocol.OLDEST, build)
    for other in (b"", b"cagewrap-3", b"cagewrap\0x\0y", b'{"do": "status"}'):
        with pytest.raises(ValueError, match=r"version|literal"):
            protocol.unpack_request(other)


@pytest.mark.parametrize(
    ("ours", "theirs", "common"),
    [((4, 4), (4, 4), 4), ((4, 6), (3, 5), 5), ((5, 6), (3, 4), 0), ((3, 4), (5, 6), 0)],
)
def test_the_newest_version_that_both_speak(monkeypatch, ours, theirs, common):
    monkeypatch.setattr(protocol, "OLDEST", ours[0])
    monkeypatch.setattr(protocol, "NEWEST", ours[1])
    assert protocol.common_version(*theirs) == common


def test_a_request_of_an_older_and_of_a_younger_shim():
    whole = [[b"streams"], [b"a"], [b"A=b"], [b"/w"], [b"TERM"], [], [], [], [b"{}"], [b"a=host"]]
    assert parse_request(protocol.pack_sections(whole)).agents == (("a", "host"),)
    younger = parse_request(protocol.pack_sections([*whole, [b"new"]]))
    assert younger == parse_request(protocol.pack_sections(whole))
    older = parse_request(protocol.pack_sections(whole[:5]))
    assert (older.passed, older.agents) == (("TERM",), ())
    with pytest.raises(KeeperError, match="login"):  # it must not be guessed
        unpack(older.login)


def test_a_login_with_an_unknown_restriction_is_refused():
    with pytest.raises(KeeperError, match="login"):
        unpack(b'{"mode":"auto","claude":"","token_command":[],"agents":[],"directory":"","x":1}')


def inherited(fd: int) -> Inheritance:
    return Inheritance(
        name="n", version="1", lock=fd, listener=fd, connections=[], expected={"/p": (1, 2)},
        lingering=["/sys/fs/cgroup/m1"], notes=["ü"], running={"ports": {"published": [[1, 2]]}},
        cares={"login": {"is_published": True}}, descriptors=[fd],
    )  # fmt: skip


READ = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from cagewrap.keeper.inheritance import read_inheritance
left = read_inheritance(int(sys.argv[2]))
os.lseek(left.lock, 0, os.SEEK_SET)
print(json.dumps([os.read(left.lock, 9).decode(), os.get_inheritable(left.lock), left.cares]))
"""


def test_what_is_left_is_there_in_the_program_executed_next(tmp_path):
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    os.write(lock, b"the lock")
    left = inherited(lock)
    fd = write_inheritance(left)
    done = subprocess.run(
        [sys.executable, "-c", READ, SOURCE, str(fd)],
        close_fds=False, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == ["the lock", False, {"login": {"is_published": True}}]
    keep_from_children(left, fd)
    assert not os.get_inheritable(lock)
    os.close(lock)


def document(**value) -> int:
    fd = os.memfd_create("document")
    os.write(fd, json.dumps(value).encode())
    return fd


def test_a_document_of_another_version():
    needed = {"format": 1, "name": "n", "lock": 1, "listener": 2, "expected": {}, "descriptors": []}
    left = read_inheritance(document(**needed, new_in_a_later_one=[1]))
    assert (left.name, left.cares, left.lingering) == ("n", {}, [])
    with pytest.raises(ValueError, match="format 2"):
        read_inheritance(document(**needed | {"format": 2}))
    with pytest.raises(KeyError):
        read_inheritance(document(format=1, name="n"))


def test_a_keeper_has_read_in_all_of_cagewrap_that_it_may_need():
    """Its files may be another version's, or gone, when it does."""
    program = (
        f"import sys; sys.path.insert(0, {str(SOURCE)!r}); import cagewrap.keeper.main; "
        "from cagewrap.keeper import service; service._import_rest(); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True
    )
    loaded = {name for name in done.stdout.split() if name.startswith("cagewrap")}
    assert "cagewrap.egress.gate" in loaded
    missing = {
        (name, wanted)
        for name in loaded
        for wanted in imported_later(SOURCE / (name.replace(".", "/") + ".py"))
        if wanted not in loaded
    }
    assert missing == set()


def imported_later(path: Path) -> set[str]:
    """Modules of ours that functions of a module import."""
    tree = ast.parse(path.read_text()) if path.exists() else ast.Module([], [])
    functions = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)]
    found = [one for function in functions for one in ast.walk(function)]
    names = {one.module for one in found if isinstance(one, ast.ImportFrom) and one.module}
    names |= {name.name for one in found if isinstance(one, ast.Import) for name in one.names}
    return {name for name in names if name.startswith("cagewrap.")}
