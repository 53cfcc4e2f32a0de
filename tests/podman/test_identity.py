"""Who the agent is: files belong to the owner on both sides, and the owner's groups count."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from .cages import PROGRAMS, Cage

REPORT = PROGRAMS / "report.py"


def is_root(cage: Cage) -> bool:
    return "owner" not in cage.flags


def report(cage: Cage) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cage.text("python3", REPORT))
    return found


def test_agent_is_root_or_the_owner(identity_cage: Cage) -> None:
    found = report(identity_cage)
    wanted = (0, 0) if is_root(identity_cage) else (os.getuid(), os.getgid())
    assert (found["uid"], found["gid"]) == wanted
    assert bool(found["capabilities"]) == is_root(identity_cage)


def test_home_agrees_with_the_user_database(identity_cage: Cage) -> None:
    found = report(identity_cage)
    assert found["passwd_home"] == found["env"]["HOME"] == str(Path.home())
    name = "root" if is_root(identity_cage) else "tester"
    assert identity_cage.text("id", "-un") == f"{name}\n"
    assert identity_cage.text("sh", "-c", "cd && pwd && echo ~") == f"{Path.home()}\n" * 2


def test_home_is_writable_private_and_kept(identity_cage: Cage) -> None:
    identity_cage.text("sh", "-c", "mkdir -p ~/.cache/x && echo kept >~/.cache/x/file")
    file = identity_cage.private_home() / ".cache/x/file"
    assert file.read_text() == "kept\n"
    assert file.stat().st_uid == os.getuid()
    assert identity_cage.private_home().stat().st_mode & 0o777 == 0o700
    assert not (Path.home() / ".cache/x").exists()
    assert ".local" not in identity_cage.text("ls", "-A", str(Path.home())).split()


def test_file_made_inside_belongs_to_the_owner(identity_cage: Cage) -> None:
    identity_cage.text("sh", "-c", "mkdir made && echo inside >made/file && ln -s file made/link")
    made = identity_cage.project / "made"
    for path in (made, made / "file", made / "link"):
        found = path.lstat()
        assert (found.st_uid, found.st_gid) == (os.getuid(), os.getgid()), path
    (made / "file").write_text("changed outside")
    shutil.rmtree(made)


def test_file_made_outside_belongs_to_the_agent(identity_cage: Cage) -> None:
    file = identity_cage.project / "outside"
    file.write_text("outside")
    file.chmod(0o600)
    script = "cat outside; echo x >>outside; chmod 644 outside; stat -c %u:%g outside; rm outside"
    wanted = "0:0" if is_root(identity_cage) else f"{os.getuid()}:{os.getgid()}"
    assert identity_cage.text("sh", "-c", script) == f"outside{wanted}\n"
    assert not file.exists()


def test_git_works_in_the_owners_repository(identity_cage: Cage) -> None:
    """No "dubious ownership", and both sides see the other's commits."""
    repository = identity_cage.project / "repo"
    git = ["git", "-c", "user.name=Outside", "-c", "user.email=o@x"]
    subprocess.run(["git", "init", "--quiet", repository], check=True, env=identity_cage.env)
    (repository / "file").write_text("1\n")
    subprocess.run([*git, "-C", repository, "add", "file"], check=True)
    subprocess.run([*git, "-C", repository, "commit", "--quiet", "-m", "outside"], check=True)
    script = (
        "git status --porcelain && echo 2 >>file && "
        "git -c user.name=Inside -c user.email=i@x commit --quiet -am inside && git log --format=%s"
    )
    flags = ("--project", str(identity_cage.project))
    out = identity_cage.text("sh", "-c", script, cwd=repository, flags=flags)
    assert out == "inside\noutside\n"
    log = subprocess.run(
        ["git", "-C", repository, "log", "--format=%s"], capture_output=True, text=True, check=True
    )
    assert log.stdout == "inside\noutside\n"
    shutil.rmtree(repository)


def test_file_only_for_a_group_of_the_owner_is_readable(identity_cage: Cage) -> None:
    """The system's own file, readable by one of the owner's further groups: no right of root
    inside reaches it, only the group does."""
    group = next(group for group in os.getgroups() if group != os.getgid())
    file = identity_cage.project / "group-only"
    file.write_text("for the group\n")
    subprocess.run(["sudo", "-n", "chown", f"0:{group}", file], check=True)
    try:
        subprocess.run(["sudo", "-n", "chmod", "040", file], check=True)
        assert file.read_text() == "for the group\n", "natively"
        assert identity_cage.text("cat", "group-only") == "for the group\n"
        subprocess.run(["sudo", "-n", "chgrp", "0", file], check=True)
        assert identity_cage.run("cat", "group-only").code == 1
    finally:
        file.unlink()


def test_other_users_can_be_become_by_root(shared_cage: Cage) -> None:
    """What package scripts do: useradd, chown, su."""
    script = "useradd -m -u 1500 other && chown 1500 file && su other -c 'id -u' && stat -c %u file"
    (shared_cage.project / "file").touch()
    assert shared_cage.text("sh", "-c", script) == "1500\n1500\n"
    assert (shared_cage.project / "file").stat().st_uid not in (0, os.getuid(), 1500)
    shared_cage.text("chown", "0:0", "file")


def test_owner_inside_has_no_rights_over_others(make_cage: Any) -> None:
    cage = make_cage("--user", "owner")
    assert cage.run("sh", "-c", "touch /etc/x").code != 0
    assert cage.run("chown", "0", ".").code != 0


def test_package_is_installed_by_apt(shared_cage: Cage) -> None:
    """From a file, as there is no network; apt drops to its own user for it."""
    if shared_cage.run("sh", "-c", "command -v hello").code == 0:
        raise AssertionError("the image has it already")
    done = shared_cage.run("apt-get", "install", "--yes", "/opt/debs/hello.deb", timeout_s=60)
    assert done.code == 0, done.err
    assert shared_cage.text("hello", "--greeting=installed") == "installed\n"
