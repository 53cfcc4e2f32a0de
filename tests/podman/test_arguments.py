"""What a command is given: arguments, directory, mask and limits, unseen and unchanged."""

from __future__ import annotations

import json
import os
import resource
from typing import Any

import pytest

from .cages import PROGRAMS, Cage

REPORT = PROGRAMS / "report.py"
LONGEST = 131071
"""Bytes of one argument, its NUL left out (MAX_ARG_STRLEN)."""


def report(cage: Cage, *argv: str | bytes, **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cage.text("python3", REPORT, *argv, **options))
    return found


NASTY = (
    "", "", " ", "a b", "a\nb", "\n", "'", '"', "\\", "`id`", "$HOME", "$(id)", "*", "?", "~",
    "-", "--", "---", "--rm", "-h", "--help", "--image=x", "=", "a=b", ";", "|", "&", "#", "!",
    "%s%n", "\x01\x7f", "\r\n", "\t", "ünï", "\N{SNOWMAN}\N{PILE OF POO}", "\N{ZERO WIDTH SPACE}",
    '{"terminal": true}', "\x1b[31m", "",
)  # fmt: skip


def test_arguments_arrive_unchanged(identity_cage: Cage) -> None:
    assert report(identity_cage, *NASTY)["argv"] == list(NASTY)


def test_no_argument_is_none(shared_cage: Cage) -> None:
    assert report(shared_cage)["argv"] == []


def test_double_dash_inside_the_command_is_the_commands(shared_cage: Cage) -> None:
    assert shared_cage.text("sh", "-c", 'echo "$#:$*"', "--", "--", "-x", "--") == "3:-- -x --\n"


@pytest.mark.parametrize("size", [100_000, LONGEST])
def test_long_argument_arrives(shared_cage: Cage, size: int) -> None:
    word = "x" * size
    assert report(shared_cage, word)["argv"] == [word]


def test_a_mebibyte_of_arguments_arrives(shared_cage: Cage) -> None:
    words = [f"{number:05d}" + "y" * 1019 for number in range(1024)]
    assert report(shared_cage, *words)["argv"] == words


def test_a_mebibyte_of_environment_arrives(shared_cage: Cage) -> None:
    env = {f"CLAUDE_BIG_{number}": "z" * 100_000 for number in range(10)}
    found = report(shared_cage, env=env)["env"]
    assert {name: found.get(name) for name in env} == env


def test_too_many_arguments_are_refused_with_the_reason(shared_cage: Cage) -> None:
    """What the caller's own stack limit allows, and the cage's does not."""
    limit = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    if resource.getrlimit(resource.RLIMIT_STACK)[1] != resource.RLIM_INFINITY:
        limit = (resource.getrlimit(resource.RLIMIT_STACK)[1],) * 2
    words = ["w" * 100_000 for _ in range(18)]
    done = shared_cage.run(
        "true", *words, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, limit)
    )
    assert done.code == 0
    assert shared_cage.text("echo", "served") == "served\n"


BYTES = b"\xff\xfe \x80'\"\n\xc3"


def test_bytes_that_are_no_utf8_arrive_in_arguments(identity_cage: Cage) -> None:
    out = identity_cage.run("printf", "%s|", b"a" + BYTES, b"", "ünï", b"-n", BYTES).out
    assert out == b"a" + BYTES + b"||" + "ünï".encode() + b"|-n|" + BYTES + b"|"


def test_bytes_that_are_no_utf8_arrive_in_variables(identity_cage: Cage) -> None:
    env = {b"CLAUDE_BYTES": BYTES, b"CLAUDE_PLAIN": b"plain"}
    script = 'printf "%s|%s|" "$CLAUDE_BYTES" "$CLAUDE_PLAIN"'
    assert identity_cage.run("sh", "-c", script, env=env).out == BYTES + b"|plain|"


def test_exit_code_and_signal_arrive_also_with_bytes(identity_cage: Cage) -> None:
    assert identity_cage.run("sh", "-c", "exit 7", BYTES).code == 7
    assert identity_cage.run("sh", "-c", "kill -TERM $$", BYTES).code == -15
    assert identity_cage.run(b"no-such-\xff").code == 127


def test_bytes_change_nothing_else(identity_cage: Cage) -> None:
    """The way round the runtime's JSON: same environment, user, rights, mask and limits."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (123, 456))
        os.umask(0o027)

    plain = report(identity_cage, "x", preexec_fn=limit)
    bytes_too = report(identity_cage, BYTES, preexec_fn=limit)
    for found in (plain, bytes_too):
        del found["argv"], found["pid"]
        for name in ("_", "SHLVL", "OLDPWD"):
            found["env"].pop(name, None)
        for fd in ("0", "1", "2"):
            found["fds"].pop(fd)
    assert bytes_too == plain


# --- directory ----------------------------------------------------------------------------------


def test_directory_below_the_project_is_the_callers(shared_cage: Cage) -> None:
    below = shared_cage.project / "a b" / "ünï"
    below.mkdir(parents=True, exist_ok=True)
    flags = ("--project", str(shared_cage.project))
    found = report(shared_cage, cwd=below, env={"PWD": str(below)}, flags=flags)
    assert (found["cwd"], found["env"]["PWD"]) == (str(below), str(below))
    assert shared_cage.names() == [shared_cage.name()], "the same cage"


def test_spelling_of_a_symlinked_directory_is_kept(cage: Cage) -> None:
    link = cage.place.root / "link"
    link.symlink_to(cage.project)
    found = report(cage, cwd=link, env={"PWD": str(link)})
    assert found["env"]["PWD"] == str(link)
    assert found["cwd"] == str(cage.project)
    assert cage.text("pwd", cwd=link, env={"PWD": str(link)}) == f"{cage.project}\n"
    assert cage.text("sh", "-c", "pwd -L", cwd=link, env={"PWD": str(link)}) == f"{link}\n"
    assert cage.text("ls", "-d", f"{link}/.") == f"{link}/.\n"
    assert len(cage.names()) == 1, "either spelling is the same project"


def test_wrong_pwd_is_not_believed(shared_cage: Cage) -> None:
    for wrong in ("/", "relative", "/nowhere", ""):
        assert report(shared_cage, env={"PWD": wrong})["env"]["PWD"] == str(shared_cage.project)


def test_deleted_directory_is_said(shared_cage: Cage) -> None:
    gone = shared_cage.place.root / "gone"
    gone.mkdir()
    done = shared_cage.run("true", cwd=gone, preexec_fn=gone.rmdir)
    assert (done.code, done.out) == (119, b"")
    assert b"no longer exists" in done.err


# --- mask and limits ------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [0o077, 0o002, 0o022, 0o000])
def test_umask_is_the_callers(identity_cage: Cage, mask: int) -> None:
    made = identity_cage.project / f"made-{mask:o}"
    found = report(identity_cage, preexec_fn=lambda: os.umask(mask))
    assert found["umask"] == mask
    identity_cage.run("touch", made, preexec_fn=lambda: os.umask(mask))
    assert made.stat().st_mode & 0o777 == 0o666 & ~mask


@pytest.mark.parametrize("soft_hard", [(64, 128), (300, 300), (1000, 1024)])
def test_limit_of_open_files_is_the_callers(
    identity_cage: Cage, soft_hard: tuple[int, int]
) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, soft_hard)

    found = report(identity_cage, preexec_fn=limit)
    assert found["limits"]["RLIMIT_NOFILE"] == list(soft_hard)


def test_limit_of_core_files_is_the_callers(shared_cage: Cage) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 4096))

    assert report(shared_cage, preexec_fn=limit)["limits"]["RLIMIT_CORE"] == [0, 4096]


def test_limits_of_the_first_harness_do_not_bind_the_next(cage: Cage) -> None:
    """Its soft ones; a hard one binds all that the first one started, the keeper too."""

    def limit() -> None:
        for number, value in ((resource.RLIMIT_NOFILE, 40), (resource.RLIMIT_FSIZE, 4096)):
            resource.setrlimit(number, (value, resource.getrlimit(number)[1]))
        os.umask(0o027)

    assert report(cage, preexec_fn=limit)["limits"]["RLIMIT_FSIZE"][0] == 4096
    found = report(cage)
    for name in ("RLIMIT_NOFILE", "RLIMIT_FSIZE", "RLIMIT_STACK", "RLIMIT_CORE"):
        assert found["limits"][name] == list(resource.getrlimit(getattr(resource, name))), name
    assert found["umask"] == os.umask(found["umask"])


def test_priority_is_not_lowered_by_the_keeper(shared_cage: Cage) -> None:
    assert shared_cage.text("nice") == "0\n"
