"""The program by itself: the same bytes and the same exit code as without the shim."""

from __future__ import annotations

import pytest
from mock_api import MockApi
from places import Direct, Place

NOBODYS_SESSION = "11111111-2222-4333-8444-555555555555"

CALLS = {
    "version": (["--version"], 0),
    "help": (["--help"], 0),
    "print": (["-p", "say 'it'\n  again ä"], 0),
    "empty argument": (["-p", "--system-prompt", "", "--model", "sonnet", "hello"], 0),
    "subcommand": (["auth", "status", "--json"], 0),
    "unknown flag": (["--no-such-flag"], 1),
    "bad value": (["-p", "--json-schema", "nonsense", "hello"], 1),
    "unknown session": (["-p", "--resume", NOBODYS_SESSION, "hello"], 1),
    "refused by the API": (["-p", "@@status 400"], 1),
}


@pytest.mark.parametrize("call", CALLS)
def test_same_as_direct(place: Place, direct: Direct, api: MockApi, call: str) -> None:
    args, code = CALLS[call]
    expected = direct.claude(*args)
    done = place.claude(*args)
    assert (expected.returncode, done.returncode) == (code, code), done.stderr.decode()
    assert done.stdout == expected.stdout
    assert done.stderr == expected.stderr
