"""The shim tells nothing to a keeper of another user."""

import os
import socket

import pytest

from cagewrap import shim, warm
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
