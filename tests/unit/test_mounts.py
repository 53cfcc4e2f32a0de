"""The plan of a cage's mounts, and podman's arguments for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cagewrap.errors import MountRefusedError
from cagewrap.model import Mount
from cagewrap.mountargs import writable_sources
from cagewrap.mounts import check_sources, mount_args, plan_mounts
from homes import Machine, settings, write


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def asked(source: Path | str, target: str = "", *, readonly: bool = True) -> Mount:
    return Mount(str(source), target or str(source), readonly, why="asked for")


def test_plan_of_a_plain_project(machine: Machine) -> None:
    login = os.path.join(os.path.dirname(machine.home_dir), "login")
    assert machine.plan().mounts == (
        Mount(login, "/run/cagewrap/login", readonly=True, why="login"),
        Mount(machine.home_dir, str(machine.home), readonly=False, why="private HOME"),
        Mount(str(machine.project), str(machine.project), readonly=False, why="project"),
    )
    assert machine.plan().notes == ()


def test_plan_mounts_is_the_plan_without_notes(machine: Machine) -> None:
    project = machine.find(machine.project)
    assert (
        plan_mounts(
            project,
            settings(),
            owner=machine.owner,
            paths=machine.paths,
            home_dir=machine.home_dir,
            env=machine.env,
        )
        == machine.plan().mounts
    )


def test_plan_with_a_symlinked_home(machine: Machine) -> None:
    link = machine.root / "h"
    link.symlink_to(machine.home)
    machine.env["HOME"] = str(link)
    private = os.path.realpath(
        machine.home / ".local/state/cagewrap/cages/cagewrap-proj-12345678/home"
    )
    assert {mount.target: mount.source for mount in machine.plan().mounts} == {
        "/run/cagewrap/login": os.path.join(os.path.dirname(private), "login"),
        str(link): private,
        str(machine.home): private,
        str(link / "src/proj"): str(machine.project),
        str(machine.project): str(machine.project),
    }


def test_outer_mounts_come_first(machine: Machine) -> None:
    src = machine.home / "src"
    (src / "a-lib").mkdir()
    write(machine.project / "x" / ".env")
    found = machine.targets(
        settings(mounts=(asked(src / "a-lib"), asked(src)), hide=("x/.env",)),
    )
    for inner_place, inner in enumerate(found):
        for outer in found[inner_place + 1 :]:
            assert not inner.startswith(outer + "/"), found


def test_asked_mounts(machine: Machine) -> None:
    data = machine.home / "data"
    data.mkdir()
    file = write(machine.home / "notes.txt")
    link = machine.home / "link"
    link.symlink_to(data)
    plan = machine.plan(
        settings(
            mounts=(
                asked(data, "/srv/data", readonly=False),
                asked(file),
                asked(link),
                Mount("", "/srv/scratch", readonly=False, kind="tmpfs"),
            )
        )
    )
    found = {mount.target: mount for mount in plan.mounts}
    assert found["/srv/data"] == Mount(str(data), "/srv/data", readonly=False, why="asked for")
    assert found[str(file)].readonly
    assert found[str(link)].source == str(data)
    assert found["/srv/scratch"].kind == "tmpfs"


@pytest.mark.parametrize("source", ["/nonexistent/x", "gone", "loop"])
def test_refuses_a_source_that_is_not_there(machine: Machine, source: str) -> None:
    (machine.home / "loop").symlink_to("loop")
    path = machine.home / source
    with pytest.raises(MountRefusedError, match="not possible") as caught:
        machine.plan(settings(mounts=(asked(path),)))
    assert str(path) in caught.value.hint


@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_refuses_a_source_that_is_no_file(machine: Machine, kind: str) -> None:
    path = machine.root / "thing"
    if kind == "fifo":
        os.mkfifo(path)
    elif os.getuid() == 0:
        os.mknod(path, 0o020600, os.makedev(1, 3))
    else:
        path.symlink_to("/dev/null")
    with pytest.raises(MountRefusedError, match=r"neither a directory nor a file|/dev"):
        machine.plan(settings(mounts=(asked(path),)))


@pytest.mark.skipif(os.getuid() == 0, reason="root reads everything")
def test_refuses_what_the_owner_cannot_read(machine: Machine) -> None:
    closed = machine.home / "closed"
    closed.mkdir(mode=0)
    with pytest.raises(MountRefusedError, match="cannot be read"):
        machine.plan(settings(mounts=(asked(closed),)))
    with pytest.raises(MountRefusedError, match="cannot be read"):
        machine.check(closed)


COVERING = [
    "/",
    "/usr",
    "/usr/bin",
    "/etc",
    "/home",
    "/proc",
    "/proc/x",
    "/sys/x",
    "/dev",
    "/dev/x",
]
COVERING += ["/tmp", "/run", "/run/cagewrap/x", "/var", "relative", "", "/srv/../etc", "/lib64"]


@pytest.mark.parametrize("target", COVERING)
def test_refuses_a_target_that_covers_the_system(machine: Machine, target: str) -> None:
    data = machine.home / "data"
    data.mkdir()
    mount = Mount(str(data), target or "data", readonly=True)
    with pytest.raises(MountRefusedError, match="target"):
        machine.plan(settings(mounts=(mount,)))


def test_refuses_a_target_that_covers_home_or_project(machine: Machine) -> None:
    data = machine.home / "data"
    data.mkdir()
    for target in (machine.home.parent, machine.home, machine.home / "src", machine.root):
        with pytest.raises(MountRefusedError, match="would cover"):
            machine.plan(settings(mounts=(asked(data, str(target)),)))


def test_allows_the_parent_of_the_project_at_its_own_place(machine: Machine) -> None:
    src = machine.home / "src"
    found = machine.targets(settings(mounts=(asked(src),)))
    assert found[1:] == [str(machine.home), str(src), str(machine.project)]


def test_refuses_two_mounts_at_one_target_and_names_both(machine: Machine) -> None:
    one, two = machine.home / "one", machine.home / "two"
    one.mkdir()
    two.mkdir()
    with pytest.raises(MountRefusedError) as caught:
        machine.plan(settings(mounts=(asked(one, "/srv/x"), asked(two, "/srv/x/"))))
    assert str(one) in caught.value.message
    assert str(two) in caught.value.message
    with pytest.raises(MountRefusedError, match="Two mounts"):
        machine.plan(settings(mounts=(asked(one, str(machine.project)),)))


def test_refuses_a_mount_that_has_no_place_in_the_one_around_it(machine: Machine) -> None:
    outer, inner = machine.home / "outer", machine.home / "inner"
    outer.mkdir()
    inner.mkdir()
    file = write(machine.home / "file")
    with pytest.raises(MountRefusedError, match="without a place"):
        machine.plan(settings(mounts=(asked(outer, "/srv/x"), asked(inner, "/srv/x/y"))))
    with pytest.raises(MountRefusedError, match="without a place"):
        machine.plan(settings(mounts=(asked(file, "/srv/f"), asked(inner, "/srv/f/y"))))
    (outer / "y").mkdir()
    assert "/srv/x/y" in machine.targets(
        settings(mounts=(asked(outer, "/srv/x"), asked(inner, "/srv/x/y")))
    )


@pytest.mark.parametrize("home", ["/", "/usr/sbin", "/bin", "/dev", "/proc/x"])
def test_refuses_a_home_that_is_the_systems(machine: Machine, home: str) -> None:
    machine.env["HOME"] = home
    with pytest.raises(MountRefusedError) as caught:
        machine.plan()
    assert caught.value.hint


NON_UTF8 = os.fsdecode(b"caf\xe9")


@pytest.mark.parametrize(("name", "reason"), [(NON_UTF8, "UTF-8"), ("a\r\nb", "carriage return")])
def test_refuses_names_that_podman_cannot_carry(machine: Machine, name: str, reason: str) -> None:
    path = machine.home / "src" / name
    path.mkdir()
    with pytest.raises(MountRefusedError, match=reason) as caught:
        machine.check(path)
    caught.value.message.encode("utf-8")
    with pytest.raises(MountRefusedError, match=reason):
        machine.plan(settings(mounts=(asked(path),)))
    write(path / ".env")
    write(machine.project / name)
    with pytest.raises(MountRefusedError, match=reason):
        machine.plan(settings(hide=("*a*",)))


def test_sources_are_checked_again(machine: Machine) -> None:
    data = machine.project / "data"
    data.mkdir()
    Path(machine.home_dir).mkdir(parents=True)
    Path(machine.home_dir).with_name("login").mkdir()
    mounts = machine.plan(settings(mounts=(asked(data, "/srv/data"),))).mounts
    check_sources(mounts)
    data.rmdir()
    with pytest.raises(MountRefusedError, match="No such file") as caught:
        check_sources(mounts)
    assert "recreate" in caught.value.hint
    data.symlink_to(machine.home / "src")
    with pytest.raises(MountRefusedError, match="symlink"):
        check_sources(mounts)


def test_mount_args() -> None:
    mounts = (
        Mount("/w/a:b,c\"d e='\n-", "/w/ü\\", readonly=False),
        Mount("/s", "/t", readonly=True),
        Mount("", "/p/secrets", readonly=True, kind="tmpfs"),
        Mount("", "/scratch,x", readonly=False, kind="tmpfs"),
    )
    assert mount_args(mounts) == (
        *("--mount", 'type=bind,"source=/w/a:b,c""d e=\'\n-","target=/w/ü\\"'),
        *("--mount", 'type=bind,"source=/s","target=/t",ro=true'),
        *("--mount", 'type=tmpfs,"target=/p/secrets",notmpcopyup,tmpfs-mode=0555,ro=true'),
        *("--mount", 'type=tmpfs,"target=/scratch,x",notmpcopyup,tmpfs-mode=0755'),
    )
    assert mount_args(()) == ()


def test_what_can_be_written_is_read_back() -> None:
    mounts = (
        Mount('/a,"b"', "/x", readonly=False),
        Mount("/c", "/y", readonly=True),
        Mount("", "/z", readonly=False, kind="tmpfs"),
        Mount("/d\ne", "/w", readonly=False),
    )
    assert writable_sources(("podman", *mount_args(mounts), "image")) == ('/a,"b"', "/d\ne")
