"""Harnesses as services: stopping one must not end the cages of another, whoever started them."""

from __future__ import annotations

import shlex

import pytest

from podman.cages import PROGRAMS, is_alive, seconds_until

from .machine import (
    GONE_S,
    SLOW_S,
    LoginUser,
    ServiceAccount,
    Services,
    SlowCage,
    cgroup_of,
)

HARNESS = str(PROGRAMS / "harness.py")


def message(cage: SlowCage, session: str, *argv: str) -> str:
    return shlex.join([*map(str, cage.command("--session", session)), *argv])


@pytest.mark.parametrize("manager", ["user", "system"])
def test_stopping_the_harness_that_came_first_ends_its_messages_only(
    cage: SlowCage, manager: str
) -> None:
    services = Services(manager)
    first = " && ".join(
        [
            message(cage, "a", "true"),
            message(cage, "b", "true"),
            f"exec python3 {HARNESS} pipes {message(cage, 'a', 'sleep', '1001')}",
        ]
    )
    second = [
        "python3",
        HARNESS,
        "pipes",
        *map(str, cage.command("--session", "b")),
        "sleep",
        "1002",
    ]

    def runs(session: str, word: str) -> bool:
        sessions = [cage.record(name).get("session") for name in cage.names()]
        return session in sessions and bool(cage.inside_programs(word, cage.name_of(session)))

    with services.running("harness-a", ["sh", "-c", first], cage.env, cage.project):
        seconds_until(lambda: runs("a", "1001"), SLOW_S)
        with services.running("harness-b", second, cage.env, cage.project):
            seconds_until(lambda: runs("b", "1002"), SLOW_S)
            a, b = cage.name_of("a"), cage.name_of("b")
            before = [(cage.keeper(name), cage.init(name)) for name in (a, b)]
            for keeper, init in before:
                assert "harness" not in cgroup_of(keeper) + cgroup_of(init)
            services.stop("harness-a")
            assert not services.is_active("harness-a")
            took = seconds_until(lambda: not runs("a", "1001"), GONE_S)
            print(f"gone {took:.1f} s after the stop")
            assert runs("b", "1002")
            assert services.is_active("harness-b")
            assert [(cage.keeper(name), cage.init(name)) for name in (a, b)] == before
            assert all(is_alive(pid) for pair in before for pid in pair)
            cage.text("true", flags=("--session", "a"))
            assert cage.init(a) == before[0][1]


def test_refuses_in_a_service_of_a_user_without_runtime_directory(other: LoginUser) -> None:
    done = other.service(*other.message("true"))
    assert done.code == 119, done.err
    assert done.out == b""
    assert b"enable-linger" in done.err


def test_refuses_with_no_new_privileges_beside_a_user_manager(other: LoginUser) -> None:
    other.linger()
    done = other.service(*other.message("true"), settings=["NoNewPrivileges=yes"])
    assert (done.code, done.out) == (114, b""), done.err
    assert b"NoNewPrivileges" in done.err


def test_refuses_with_no_new_privileges_without_a_user_manager(
    service_account: ServiceAccount,
) -> None:
    done = service_account.cage("true", settings=["NoNewPrivileges=yes"])
    assert (done.code, done.out) == (114, b""), done.err
    assert b"NoNewPrivileges" in done.err


@pytest.mark.parametrize("delegate", ["yes", "no"])
def test_works_in_a_service_of_a_user_without_manager(
    service_account: ServiceAccount, delegate: str
) -> None:
    """The cage ends with the service: there is nowhere else to be. The next one has it again."""
    settings = [f"Delegate={delegate}"]
    done = service_account.cage("sh", "-c", "echo kept >/kept; exit 7", settings=settings)
    assert done.code == 7, done.err
    seconds_until(lambda: not service_account.processes(), SLOW_S)
    done = service_account.cage("cat", "/kept", settings=settings)
    assert (done.code, done.out) == (0, b"kept\n"), done.err
