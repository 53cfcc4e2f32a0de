"""A user who logs out without linger loses what runs, and has his cage again at the next login."""

from __future__ import annotations

from podman.cages import is_alive, seconds_until

from .machine import SLOW_S, Other, sudo

IN_THE_BACKGROUND = (
    "setsid cagewrap --image localhost/small:1 --network none -- sleep 1000 "
    "</dev/null >/dev/null 2>&1 & sleep 5"
)


def test_logout_ends_all_and_the_next_login_has_the_cage_again(other: Other) -> None:
    assert other.cage("sh", "-c", "echo kept >/kept").code == 0
    other.must("bash", "-c", IN_THE_BACKGROUND)
    seconds_until(lambda: not other.has_manager() and not other.processes(), SLOW_S)
    done = other.cage("cat", "/kept")
    assert (done.code, done.out) == (0, b"kept\n"), done.err


def test_with_linger_cage_and_messages_outlive_the_login(other: Other) -> None:
    sudo("loginctl", "enable-linger", other.name)
    seconds_until(other.has_manager, SLOW_S)
    other.must("bash", "-c", IN_THE_BACKGROUND)
    before = other.state()
    assert is_alive(before["keeper_pid"])
    assert other.cage("true").code == 0
    after = other.state()
    assert [after[key] for key in ("keeper_pid", "init_pid")] == [
        before[key] for key in ("keeper_pid", "init_pid")
    ]


def test_user_manager_stopped_and_started_again(other: Other) -> None:
    sudo("loginctl", "enable-linger", other.name)
    seconds_until(other.has_manager, SLOW_S)
    assert other.cage("sh", "-c", "echo kept >/kept").code == 0
    sudo("systemctl", "stop", f"user@{other.uid}.service")
    seconds_until(lambda: not other.processes(), SLOW_S)
    sudo("systemctl", "start", f"user@{other.uid}.service")
    done = other.cage("cat", "/kept")
    assert (done.code, done.out) == (0, b"kept\n"), done.err
