"""The shim tells nothing to a keeper of another user, and its harness no line that is too long."""

import os
import socket

import pytest

from cagewrap import protocol, shim, warm
from cagewrap.errors import KeeperError


def test_keeper_of_another_user_is_sent_nothing(monkeypatch):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
        with pytest.raises(KeeperError, match="not by you"):
            shim.Shim(ours, warm.Ticket(b"/run/x.sock", []))
        assert theirs.recv(10) == b""


def test_keeper_of_our_own_is_talked_to():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        shim.Shim(ours, warm.Ticket(b"/run/x.sock", [])).send(b"x")
        assert theirs.recv(10) == b"x"


def test_no_line_is_longer_than_harnesses_read():
    long = b"y" * 100_000
    cut = protocol.cut(b"one\n" + long + b"\n" + long)
    assert cut.startswith(b"one\nyyy")
    assert [len(line) for line in cut.split(b"\n")] == [3, 16384, 16384]
    assert protocol.cut(b"one\n") == b"one\n"
    many = b"a line\n" * 20_000
    assert protocol.cut(many) == many
