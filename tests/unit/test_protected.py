"""Places that no cage may hold."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from cagewrap.errors import MountRefusedError
from cagewrap.model import Mount
from cagewrap.mounts import protected_paths
from cagewrap.protected import HOME_RUNS, HOME_SECRETS, protected_places, refuse_protected
from homes import Machine, settings, write


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def refused(machine: Machine, path: Path | str, *, readonly: bool = False) -> str:
    """The reason why a mount of this path is refused, "" if it is not."""
    places = protected_places(machine.owner, machine.paths, machine.env)
    try:
        refuse_protected("It", str(path), places, readonly=readonly)
    except MountRefusedError as error:
        return error.message if error.hint else "no hint"
    return ""


SYSTEM = [
    "/",
    "/etc",
    "/etc/x",
    "/usr",
    "/usr/local/src",
    "/bin",
    "/lib",
    "/dev",
    "/dev/shm",
    "/proc",
]
SYSTEM += ["/sys", "/boot", "/root", "/root/x", "/run", "/run/user", "/run/user/1000/x", "/var"]
SYSTEM += ["/var/lib/containers/x", "/var/lib/docker", "/run/docker.sock", "/tmp", "/var/tmp"]
SYSTEM += ["/home", "/opt", "/srv", "/mnt", "/tmp/.X11-unix", f"/tmp/tmux-{os.getuid()}"]


@pytest.mark.parametrize("path", SYSTEM)
def test_refuses_system_places(machine: Machine, path: str) -> None:
    assert refused(machine, path)


@pytest.mark.parametrize(
    "path",
    [
        *("/srv/x", "/opt/x", "/mnt/c/x", "/media/x/y", "/run/media/me/disk/x", "/var/www/x"),
        "/tmp/a project",
    ],
)
def test_allows_projects_in_places_meant_for_them(machine: Machine, path: str) -> None:
    assert not refused(machine, path)


@pytest.mark.parametrize(
    "name",
    [
        *("", ".config", ".config/nvim", ".local", ".local/src/x", ".ssh", ".ssh/keys", ".gnupg"),
        *(".claude", ".claude/skills", ".codex", ".pi", ".aws", ".kube", ".docker", ".netrc"),
        *(".password-store", ".mozilla", ".thunderbird", ".bashrc", ".profile", ".zshrc", "bin"),
        *(".local/share/containers", ".local/state/cagewrap/cages/x/home", "go", ".cargo/bin"),
    ],
)
def test_refuses_writable_places_below_home(machine: Machine, name: str) -> None:
    assert "refused" in refused(machine, os.path.normpath(machine.home / name))


@pytest.mark.parametrize(
    "name",
    [
        *(
            "",
            ".config",
            ".config/gh",
            ".local",
            ".local/share",
            ".ssh",
            ".ssh/known_hosts",
            ".gnupg",
        ),
        *(".claude", ".claude/.credentials.json", ".claude/projects", ".codex", ".docker", ".aws"),
        *(".cargo", ".local/state/cagewrap", ".config/cagewrap.toml", ".local/share/containers"),
    ],
)
def test_refuses_secrets_even_readonly(machine: Machine, name: str) -> None:
    assert "refused" in refused(machine, os.path.normpath(machine.home / name), readonly=True)


@pytest.mark.parametrize("path", ["/", "/run", "/run/podman/podman.sock", "/tmp", "/proc", "/dev"])
def test_refuses_sockets_even_readonly(machine: Machine, path: str) -> None:
    assert refused(machine, path, readonly=True)


def test_allows_harmless_places_readonly(machine: Machine) -> None:
    for name in (
        ".claude/skills",
        ".config/nvim",
        ".cargo/registry",
        ".bashrc",
        ".vim",
        ".cache/uv",
    ):
        assert not refused(machine, machine.home / name, readonly=True), name
    for path in ("/etc/ssl/certs", "/usr/share/fonts", "/nix/store"):
        assert not refused(machine, path, readonly=True), path


def test_refusal_names_the_place_and_the_reason(machine: Machine) -> None:
    assert "whole home directory" in refused(machine, machine.home)
    assert f"{machine.home} lies in it" in refused(machine, machine.home.parent)
    assert refused(machine, machine.home / ".ssh/x") == (
        f"It is refused because it lies in {machine.home}/.ssh: it holds secrets of yours."
    )
    assert "leaves the cage" in refused(machine, machine.home / ".local/state/cagewrap")


def test_runtime_and_state_directories_wherever_they_are(machine: Machine) -> None:
    assert refused(machine, machine.runtime)
    assert refused(machine, machine.runtime / "x", readonly=True)
    assert refused(machine, machine.root)


def test_refuses_cagewraps_own_code(machine: Machine) -> None:
    code = Path(protected_places.__code__.co_filename).resolve().parent
    assert "cagewrap's own" in refused(machine, code.parent)
    assert not refused(machine, code, readonly=True)


def test_places_behind_symlinks_are_protected_too(machine: Machine) -> None:
    dotfiles = machine.home / "dotfiles"
    write(dotfiles / "bashrc")
    (machine.home / ".bashrc").symlink_to(dotfiles / "bashrc")
    assert f"{dotfiles}/bashrc lies in it" in refused(machine, dotfiles)
    with pytest.raises(MountRefusedError):
        machine.check(dotfiles)
    assert str(dotfiles / "bashrc") in protected_paths(machine.owner, machine.paths, machine.env)


def test_symlinked_home_protects_both_spellings(machine: Machine) -> None:
    (machine.root / "h").symlink_to(machine.home)
    machine.env["HOME"] = str(machine.root / "h")
    assert refused(machine, machine.home / ".ssh")
    assert refused(machine, machine.root / "h/.ssh")
    assert refused(machine, machine.home)
    assert not refused(machine, machine.project)


def test_a_home_below_a_system_directory_can_have_projects(machine: Machine) -> None:
    machine.env["HOME"] = "/var/lib/ci"
    assert not refused(machine, "/var/lib/ci/work/x")
    assert refused(machine, "/var/lib/ci")
    assert refused(machine, "/var/lib")
    assert refused(machine, "/var/lib/docker/x")


@pytest.mark.parametrize(
    ("name", "value", "path"),
    [
        ("GNUPGHOME", "/srv/keys", "/srv/keys/x"),
        ("CLAUDE_CONFIG_DIR", "/srv/claude", "/srv/claude"),
        ("XDG_CONFIG_HOME", "/srv/config", "/srv/config/git"),
        ("TMPDIR", "/srv/tmp", "/srv/tmp"),
        ("SSH_AUTH_SOCK", "/srv/agent/sock", "/srv/agent"),
        ("DOCKER_HOST", "unix:///srv/engine/sock", "/srv/engine"),
        ("TMUX", "/srv/tmux/default,1,0", "/srv/tmux"),
    ],
)
def test_refuses_places_the_environment_names(
    machine: Machine, name: str, value: str, path: str
) -> None:
    assert not refused(machine, path)
    machine.env[name] = value
    assert name in refused(machine, path)


def test_variables_that_name_home_say_nothing_new(machine: Machine) -> None:
    machine.env["CLAUDE_CONFIG_DIR"] = str(machine.home)
    machine.env["XDG_CONFIG_HOME"] = "/"
    assert not refused(machine, machine.project)


def test_project_below_tmpdir_is_fine(machine: Machine) -> None:
    machine.env["TMPDIR"] = "/srv/tmp"
    assert not refused(machine, "/srv/tmp/x")


def test_refuses_the_same_directory_under_another_path(machine: Machine) -> None:
    """As a bind mount would show it; a hard link to a file stands in for one here."""
    netrc = write(machine.home / ".netrc")
    other = machine.home / "src" / "copy"
    os.link(netrc, other)
    assert "the same directory as" in refused(machine, other, readonly=True)


def test_refuses_a_project_that_is_a_symlink_into_ssh(machine: Machine) -> None:
    (machine.home / ".ssh").mkdir()
    link = machine.home / "src" / "innocent"
    link.symlink_to(machine.home / ".ssh")
    with pytest.raises(MountRefusedError, match=r"\.ssh"):
        machine.check(link)


def test_refuses_a_project_spelled_through_a_protected_place(machine: Machine) -> None:
    (machine.home / ".config").mkdir()
    (machine.home / ".config/app").symlink_to(machine.project)
    with pytest.raises(MountRefusedError, match=r"\.config"):
        machine.check(machine.home / ".config/app")


def test_refuses_home_as_project_and_says_what_to_do(machine: Machine) -> None:
    with pytest.raises(MountRefusedError, match="whole home directory") as caught:
        machine.check(machine.home)
    assert "--project" in caught.value.hint


def mount(source: Path | str, *, readonly: bool = True) -> Mount:
    return Mount(str(source), str(source), readonly)


def test_refuses_a_mount_by_dots(machine: Machine) -> None:
    (machine.home / ".ssh").mkdir()
    sneaky = Mount(f"{machine.home}/src/../.ssh", "/srv/x", readonly=True)
    with pytest.raises(MountRefusedError, match=r"\.ssh"):
        machine.plan(settings(mounts=(sneaky,)))


def test_refuses_a_mount_that_is_a_symlink_to_a_secret(machine: Machine) -> None:
    write(machine.home / ".ssh" / "id_ed25519")
    link = machine.project / "key"
    link.symlink_to(machine.home / ".ssh" / "id_ed25519")
    with pytest.raises(MountRefusedError, match="which is"):
        machine.plan(settings(mounts=(mount(link),)))


def test_refuses_a_mount_that_is_a_symlink_to_a_socket(machine: Machine, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        link = machine.root / "link"
        link.symlink_to(path)
        with pytest.raises(MountRefusedError, match="neither a directory nor a file"):
            machine.plan(settings(mounts=(mount(link),)))


def test_protected_paths_are_sorted_and_absolute(machine: Machine) -> None:
    found = protected_paths(machine.owner, machine.paths, machine.env)
    assert list(found) == sorted(set(found))
    assert all(path.startswith("/") for path in found)
    assert {"/", str(machine.home), str(machine.home / ".ssh"), "/run"} <= set(found)


def test_every_protected_name_is_documented() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "mounts.md"
    text = page.read_text(encoding="utf-8")
    for name in (*HOME_SECRETS.split(), *HOME_RUNS.split()):
        assert f"`{name}`" in text, name
