"""What podman makes of a plan of mounts: nasty names, hidden paths, git, both spellings."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from cagewrap.model import Mount, Settings, Share
from cagewrap.mounts import check_sources, empty_file, mount_args
from cagewrap.shares import render_gitconfig, share_env
from homes import Machine, settings, write

pytestmark = pytest.mark.podman

IMAGE = "localhost/cagewrap-test:latest"

NASTY = {
    "space": "a b",
    "spaces around": " a ",
    "colon": "a:b",
    "comma": "a,b",
    "quote": 'a"b',
    "quotes": '""',
    "apostrophe": "it's",
    "newline": "a\nb",
    "newline last": "a\n",
    "carriage return": "a\rb",
    "tab": "a\tb",
    "backslash": "a\\b",
    "octal": "a\\040b",
    "dash": "-a",
    "option": "--help",
    "equals": "a=b",
    "field": "target=x,ro",
    "dollar": "$HOME",
    "command": "`id`;$(id)",
    "percent": "%s%n",
    "star": "*",
    "brackets": "[a]{b}",
    "hash": "#a",
    "tilde": "~",
    "dots": "...",
    "unicode": "ünï\N{SNOWMAN}\N{PILE OF POO}",
    "combining": "u\N{COMBINING DIAERESIS}",
    "escape": "a\x1bb\x7f",
    "long": "x" * 255,
}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    Path(made.home_dir).mkdir(parents=True)
    Path(made.home_dir).with_name("login").mkdir()
    empty = Path(empty_file(made.home_dir))
    empty.touch()
    empty.chmod(0o444)
    return made


def run(
    machine: Machine,
    script: str,
    wanted: Settings | None = None,
    *,
    cwd: Path | str = "",
    env: tuple[tuple[str, str], ...] = (),
) -> tuple[str, str]:
    """`sh -c script` in a new container with the planned mounts, in the caller's directory.

    What it writes goes to files: `podman run` itself loses output now and then (podman 4.3).
    """
    plan = machine.plan(wanted, cwd)
    check_sources(plan.mounts)
    out = machine.root / "out"
    out.mkdir(exist_ok=True)
    done = subprocess.run(
        [
            *("podman", "run", "--rm", "--pull=never", "--network=none"),
            *mount_args((*plan.mounts, Mount(str(out), "/out", readonly=False))),
            *("--workdir", os.path.realpath(cwd or machine.project)),
            *("--env", f"HOME={machine.env['HOME']}"),
            *(word for name, value in env for word in ("--env", f"{name}={value}")),
            *(IMAGE, "sh", "-c", f"exec >/out/out 2>/out/err; {script}"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stderr == ""
    assert done.returncode == 0, (out / "err").read_text()
    return (out / "out").read_bytes().decode(), (out / "err").read_text()


def said(machine: Machine, script: str, wanted: Settings | None = None, **rest: object) -> str:
    out, err = run(machine, script, wanted, **rest)  # type: ignore[arg-type]
    assert err == ""
    return out


@pytest.mark.parametrize("name", NASTY.values(), ids=NASTY)
def test_project_and_mount_with_a_nasty_name(machine: Machine, name: str) -> None:
    project = machine.home / "src" / name
    write(project / "seen", "of the project\n")
    data = write(machine.home / "data" / name / "seen", "of the mount\n").parent
    mount = Mount(str(data), f"/srv/{name}", readonly=True)
    script = "pwd -P; cat seen /srv/..?*/seen /srv/[!.]*/seen 2>/dev/null; touch made"
    out = said(machine, script, settings(mounts=(mount,)), cwd=project)
    assert out == f"{project}\nof the project\nof the mount\n"
    assert (project / "made").stat().st_uid == os.getuid()


@pytest.mark.parametrize("name", NASTY.values(), ids=NASTY)
def test_hidden_path_with_a_nasty_name(machine: Machine, name: str) -> None:
    write(machine.project / "file" / name, "secret\n")
    write(machine.project / "dir" / name / "key", "secret\n")
    literal = "".join(f"[{letter}]" if letter in "*[?" else letter for letter in name)
    out = said(
        machine,
        "find dir file -type f -exec cat {} +; "
        "find dir file -type f -print0 | tr -dc '\\0' | wc -c",
        settings(hide=(f"file/{literal}", f"dir/{literal}/")),
    )
    assert out == "1\n"


def test_hidden_paths_cannot_be_uncovered(machine: Machine) -> None:
    for name in (".env", "a/b/.env", "secrets/key"):
        write(machine.project / name, "secret\n")
    (machine.project / "link").symlink_to("a/b/.env")
    script = """
        cat .env a/b/.env link; ls -A secrets
        for path in .env a/b/.env secrets a a/b; do
            mv $path away 2>&1 && echo MOVED $path
            rm -rf $path 2>/dev/null && echo REMOVED $path
            umount $path 2>/dev/null && echo UNMOUNTED $path
        done
        ln a/b/.env other 2>/dev/null && echo LINKED
        echo x > .env && echo WRITTEN
        touch secrets/x && echo CREATED
        unshare -Urm sh -c 'umount .env secrets a/b/.env; cat .env a/b/.env; ls secrets' 2>/dev/null
        grep -r secret . && echo FOUND
        true
    """
    out, _ = run(machine, script, settings(hide=("**/.env", "secrets/")))
    assert not [word for word in out.split() if word.isupper()], out
    assert "key" not in out
    for name in (".env", "a/b/.env", "secrets/key"):
        assert (machine.project / name).read_text() == "secret\n"
    assert not (machine.project / "other").exists()


def podman(*words: str) -> str:
    done = subprocess.run(
        ["podman", *words], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("pinned", [True, False])
def test_renaming_the_directory_does_not_uncover_after_a_restart(
    machine: Machine, *, pinned: bool
) -> None:
    """Without the mounts that hold directories in place it does: that is why they are there."""
    write(machine.project / "a" / ".env", "secret\n")
    mounts = tuple(
        mount
        for mount in machine.plan(settings(hide=("a/.env",))).mounts
        if pinned or "in its place" not in mount.why
    )
    name = f"mounts-{uuid4()}"
    options = ("--pull=never", "--network=none", "--workdir", str(machine.project), "--init")
    podman("run", "-d", "--name", name, *options, *mount_args(mounts), IMAGE, "sleep", "inf")
    try:
        podman("exec", name, "sh", "-c", "mv a b 2>/dev/null; mkdir -p a; cat ?/.env > out 2>&1; :")
        podman("restart", "--time", "0", name)
        podman("exec", name, "sh", "-c", "cat ?/.env >> out 2>&1; :")
    finally:
        podman("rm", "--force", "--time", "0", name)
    assert ("secret" in (machine.project / "out").read_text()) is not pinned


def test_hidden_in_every_spelling(machine: Machine) -> None:
    write(machine.project / "in" / ".env", "secret\n")
    link = machine.root / "link"
    link.symlink_to(machine.project)
    out = said(
        machine,
        f"cat {link}/in/.env {machine.project}/in/.env; ls {link} {machine.project}",
        settings(hide=("**/.env",)),
        cwd=link,
    )
    assert "secret" not in out
    assert out.count("in\n") == 2


def test_both_spellings_of_a_symlinked_cwd_and_home(machine: Machine) -> None:
    (machine.root / "h").symlink_to(machine.home)
    machine.env["HOME"] = str(machine.root / "h")
    spelled = machine.root / "h/src/proj"
    out = said(
        machine,
        f"pwd -P; pwd; cd {spelled} && touch by-link; cd {machine.project} && touch by-path; "
        f"touch {machine.home}/private; ls {machine.root}/h",
        cwd=spelled,
        env=(("PWD", str(spelled)),),
    )
    assert out == f"{machine.project}\n{spelled}\nprivate\nsrc\n"
    assert (machine.project / "by-link").exists()
    assert (machine.project / "by-path").exists()
    assert Path(machine.home_dir, "private").exists()
    assert not (machine.home / "private").exists()


def test_readonly_and_writable_mounts(machine: Machine) -> None:
    data = machine.home / "data"
    write(data / "seen")
    script = "cat /srv/r?/seen; touch /srv/rw/made; touch /srv/ro/no 2>&- || echo refused"
    mounts = (
        Mount(str(data), "/srv/ro", readonly=True),
        Mount(str(data), "/srv/rw", readonly=False),
    )
    assert run(machine, script, settings(mounts=mounts))[0] == "x\nx\nrefused\n"
    assert {entry.name for entry in data.iterdir()} == {"seen", "made"}


def commit(machine: Machine, where: Path) -> None:
    machine.git("commit", "-q", "--allow-empty", "-m", "first", cwd=where)


COMMIT = (
    "git config user.name Me && git config user.email me@example.com && "
    "touch new && git add new && git commit -q -m inside && git status --short && "
    "git log --format=%s"
)


def test_git_in_a_linked_worktree(machine: Machine) -> None:
    commit(machine, machine.project)
    worktree = machine.home / "src" / "wt"
    machine.git("worktree", "add", "-q", str(worktree), cwd=machine.project)
    assert said(machine, COMMIT, cwd=worktree) == "inside\nfirst\n"
    assert machine.git("log", "--format=%s", "wt", cwd=machine.project) == "inside\nfirst\n"


def test_git_in_a_submodule(machine: Machine) -> None:
    other = machine.home / "src" / "other"
    machine.git("init", "-q", str(other))
    commit(machine, other)
    machine.git("submodule", "add", "-q", str(other), "sub", cwd=machine.project)
    sub = machine.project / "sub"
    assert said(machine, COMMIT, cwd=sub) == "inside\nfirst\n"
    assert machine.git("log", "--format=%s", cwd=sub) == "inside\nfirst\n"


@pytest.mark.parametrize("seeded", [True, False])
def test_gc_in_the_cage_keeps_worktrees_it_does_not_see(machine: Machine, *, seeded: bool) -> None:
    """Without the seeded setting git forgets them: that is why it is there."""
    commit(machine, machine.project)
    worktree = machine.home / "src" / "wt"
    machine.git("worktree", "add", "-q", str(worktree), cwd=machine.project)
    entry = machine.project / ".git" / "worktrees" / "wt"
    for path in (*entry.rglob("*"), entry):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    if seeded:
        write(Path(machine.home_dir, ".gitconfig"), render_gitconfig("Me", "me@example.com"))
    run(machine, "git gc -q")
    assert entry.exists() is seeded


def test_shared_gitconfig_leaves_the_cages_own_writable(machine: Machine) -> None:
    write(machine.home / ".gitconfig", "[user]\n\tname = Me\n[alias]\n\tst = status\n")
    write(machine.home / ".config/git/ignore", "*.log\n")
    write(machine.home / ".config/git/credentials", "secret\n")
    write(machine.project / "x.log")
    out = said(
        machine,
        "git config --global alias.ci commit; git config user.name; git config alias.ci; "
        "git st --short; ls ~/.config/git; touch /etc/gitconfig 2>/dev/null || echo refused",
        settings(share=Share(gitconfig=True)),
    )
    assert out == "Me\ncommit\nignore\nrefused\n"
    assert "ci" in Path(machine.home_dir, ".gitconfig").read_text()


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Path]:
    """A real ssh-agent with a key in it."""
    path = tmp_path / "agent"
    server = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL)
    try:
        key = tmp_path / "key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        subprocess.run(
            ["ssh-add", "-q", key], env={**os.environ, "SSH_AUTH_SOCK": str(path)}, check=True
        )
        yield path
    finally:
        server.kill()
        server.wait()


def test_ssh_agent_answers_in_the_cage(machine: Machine, agent: Path) -> None:
    machine.env["SSH_AUTH_SOCK"] = str(agent)
    share = Share(ssh_agent=True)
    assert "ED25519" in said(machine, "ssh-add -l", settings(share=share), env=share_env(share))
    assert said(machine, "ls /run/cagewrap") == "login\n"  # which each cage has, empty


def test_nothing_else_of_home_is_there(machine: Machine) -> None:
    write(machine.home / ".ssh" / "id", "secret\n")
    write(machine.home / "src" / "other" / "file", "secret\n")
    out = said(machine, f"find {machine.root} -not -path '*/.git/*' -type f; ls -A ~ ~/src")
    assert "id" not in out.split()
    assert out.split() == [f"{machine.home}:", "src", f"{machine.home}/src:", "proj"]


def test_a_symlink_in_the_place_of_a_source_is_noticed_before_the_start(machine: Machine) -> None:
    """podman follows it: that is why the sources are checked again."""
    data = machine.project / "data"
    data.mkdir()
    secret = write(machine.home / ".ssh" / str(uuid4()))
    mounts = machine.plan(settings(mounts=(Mount(str(data), "/srv/x", readonly=True),))).mounts
    data.rmdir()
    data.symlink_to(secret.parent)
    done = subprocess.run(
        [
            *("podman", "run", "--rm", "--pull=never", "--network=none"),
            *(*mount_args(mounts), IMAGE, "ls", "/srv/x"),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{secret.name}\n"
    with pytest.raises(Exception, match="symlink"):
        check_sources(mounts)


def test_socket_in_the_project_is_the_projects_own(machine: Machine) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(machine.project / "s"))
        assert said(machine, "test -S s && echo socket") == "socket\n"
