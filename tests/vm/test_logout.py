"""A user who logs out without linger loses what runs, and has his cage again at the next login."""

from __future__ import annotations

from podman.cages import is_alive

from .machine import LoginUser, sudo

IN_THE_BACKGROUND = ("systemd-run", "--user", "--quiet", "--working-directory=/home/other/project")


def test_logout_ends_all_and_the_next_login_has_the_cage_again(other: LoginUser) -> None:
    assert other.cage("sh", "-c", "echo kept >/kept").code == 0
    other.must(*IN_THE_BACKGROUND, *other.message("sleep", "1000"))
    took = other.wait_until_gone()
    print(f"gone {took:.0f} s after the logout")
    # Not the 90 s for which systemd waits by default.
    assert took < 75
    done = other.cage("cat", "/kept")
    assert (done.code, done.out) == (0, b"kept\n"), done.err


def test_with_linger_a_cage_outlives_the_login(other: LoginUser) -> None:
    other.linger()
    assert other.cage("true").code == 0
    before = other.state()
    assert is_alive(before["keeper_pid"])
    assert other.cage("true").code == 0
    after = other.state()
    assert [after[key] for key in ("keeper_pid", "init_pid")] == [
        before[key] for key in ("keeper_pid", "init_pid")
    ]


def test_user_manager_stopped_and_started_again(other: LoginUser) -> None:
    other.linger()
    assert other.cage("sh", "-c", "echo kept >/kept").code == 0
    sudo("systemctl", "stop", f"user@{other.uid}.service")
    assert not other.processes()
    sudo("systemctl", "start", f"user@{other.uid}.service")
    done = other.cage("cat", "/kept")
    assert (done.code, done.out) == (0, b"kept\n"), done.err
