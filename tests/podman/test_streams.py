"""Bytes: what goes in and comes out is what an agent without a cage would have read and written."""

from __future__ import annotations


from .cages import Cage


def test_all_byte_values_pass(shared_cage: Cage) -> None:
    data = bytes(range(256)) * 64
    done = shared_cage.run("cat", stdin=data)
    assert (done.code, done.out, done.err) == (0, data, b"")
