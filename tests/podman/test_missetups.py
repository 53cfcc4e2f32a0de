"""Every mis-setup, made for real: what `cagewrap -- true` and `cagewrap doctor` say and exit with.

The machine is broken with sudo before a test and mended after it. The user namespace that podman
keeps (its pause process) is ended first, or it would hide what is broken.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from cagewrap import errors

from .cages import CAGEWRAP, IMAGE, RUNTIME_DIR, Cage, Done, podman

AS_TESTER = "setpriv --reuid=1002 --regid=1002 --init-groups"
HELPERS = ("pasta", "pasta.avx2", "slirp4netns")


@dataclass(frozen=True)
class Broken:
    """What one mis-setup must lead to.

    check: the doctor's first failing check. words, fix: parts of the sentence and of the fix that
    the wrap path prints. breaking, mending: run as root. inside: put before cagewrap's own words.
    without: programs to leave out of PATH. env: changes; None removes a name.
    """

    error: type[errors.CagewrapError]
    check: str
    words: str
    fix: str
    breaking: str = ""
    mending: str = ""
    inside: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    env: tuple[tuple[str, str | None], ...] = ()
    flags: tuple[str, ...] = ()


def away(*paths: str) -> dict[str, str]:
    """Move files away and back."""
    names = " ".join(paths)
    return {
        "breaking": f"for f in {names}; do [ ! -e $f ] || mv $f $f.away; done",
        "mending": f"for f in {names}; do [ ! -e $f.away ] || mv $f.away $f; done",
    }


def in_mounts(script: str) -> tuple[str, ...]:
    """In a mount namespace of its own, changed by root."""
    script += f'; exec {AS_TESTER} --reset-env env "$@"'
    return ("sudo", "-n", "unshare", "--mount", "sh", "-euc", script, "sh")


USERNS, NETWORK, DIRECTORY = (
    errors.UserNamespaceError,
    errors.NetworkSetupError,
    errors.DirectoryError,
)
MISSETUPS = {
    "no-podman": Broken(
        errors.PodmanMissingError,
        "podman",
        "podman is not on PATH",
        "sudo apt-get install podman",
        without=("podman",),
    ),
    "no-crun": Broken(
        errors.PodmanMissingError,
        "runtime",
        "crun is not",
        "sudo apt-get install crun",
        **away("/usr/bin/crun"),
    ),
    "no-conmon": Broken(
        errors.PodmanMissingError,
        "podman-info",
        "conmon is not",
        "sudo apt-get install conmon",
        **away("/usr/bin/conmon"),
    ),
    "no-catatonit": Broken(
        errors.PodmanMissingError,
        "init",
        "catatonit",
        "sudo apt-get install catatonit",
        **away("/usr/bin/catatonit"),
    ),
    "no-subids": Broken(
        USERNS,
        "subids",
        "User tester has no ranges",
        "usermod --add-subuids 100000-165535",
        breaking="cp /etc/subuid /etc/subuid.away; cp /etc/subgid /etc/subgid.away; "
        "sed -i /^tester:/d /etc/subuid /etc/subgid",
        mending="mv /etc/subuid.away /etc/subuid; mv /etc/subgid.away /etc/subgid",
    ),
    "no-newuidmap": Broken(
        USERNS,
        "newuidmap",
        "newuidmap is not installed",
        "sudo apt-get install uidmap",
        **away("/usr/bin/newuidmap"),
    ),
    "newuidmap-not-setuid": Broken(
        USERNS,
        "newuidmap",
        "setuid root",
        "sudo chmod u+s /usr/bin/newuidmap",
        breaking="chmod u-s /usr/bin/newuidmap",
        mending="chmod u+s /usr/bin/newuidmap",
    ),
    "newgidmap-not-setuid": Broken(
        USERNS,
        "newgidmap",
        "setuid root",
        "sudo chmod u+s /usr/bin/newgidmap",
        breaking="chmod u-s /usr/bin/newgidmap",
        mending="chmod u+s /usr/bin/newgidmap",
    ),
    "no-new-privileges": Broken(
        USERNS,
        "no-new-privileges",
        "no-new-privileges",
        "NoNewPrivileges=no",
        inside=("setpriv", "--no-new-privs"),
    ),
    "userns-forbidden": Broken(
        USERNS,
        "user-namespaces",
        "does not let an ordinary user make a user namespace",
        "chroot",
        # The kernel refuses user namespaces to a process whose root is not that of its mounts.
        inside=(
            "sudo",
            "-n",
            "unshare",
            "--mount",
            "sh",
            "-euc",
            (
                'mount --rbind / /mnt; cd "$PWD"; exec chroot --userspec=1002:1002 /mnt '
                'env --chdir="$PWD" "$@"'
            ),
            "sh",
        ),
    ),
    "proc-covered": Broken(
        USERNS,
        "probe",
        "/proc of this machine",
        "unmask=ALL",
        inside=in_mounts("mount --bind /dev/null /proc/filesystems"),
    ),
    "no-tun": Broken(
        NETWORK,
        "tun",
        "/dev/net/tun is missing",
        "sudo modprobe tun",
        flags=("--network", "open"),
        **away("/dev/net/tun"),
    ),
    "tun-forbidden": Broken(
        NETWORK,
        "tun",
        "/dev/net/tun may not be opened",
        "sudo chmod 666 /dev/net/tun",
        flags=("--network", "open"),
        breaking="chmod 600 /dev/net/tun",
        mending="chmod 666 /dev/net/tun",
    ),
    "no-network-helper": Broken(
        NETWORK,
        "network-helper",
        "is not installed, and podman makes the cage's network with it",
        "sudo apt-get install",
        flags=("--network", "open"),
        **away(*(f"/usr/bin/{name}" for name in HELPERS)),
    ),
    "no-netavark": Broken(
        NETWORK,
        "podman-info",
        "netavark is not installed",
        "sudo apt-get install netavark",
        **away("/usr/lib/podman/netavark"),
    ),
    "hybrid-cgroups": Broken(
        errors.CgroupError,
        "cgroups",
        "hybrid mode",
        "unified_cgroup_hierarchy=1",
        inside=in_mounts(
            "mount -t tmpfs none /sys/fs/cgroup; mkdir /sys/fs/cgroup/unified; "
            "mount -t cgroup2 none /sys/fs/cgroup/unified"
        ),
    ),
    "image-missing": Broken(
        errors.ImageMissingError,
        "image",
        "The image localhost/nosuch:1 is not on this machine",
        "cagewrap image build --name localhost/nosuch:1",
        flags=("--image", "localhost/nosuch:1"),
    ),
    "runtime-dir-missing": Broken(
        DIRECTORY,
        "runtime-dir",
        "XDG_RUNTIME_DIR is '/nonexistent'",
        "",
        env=(("XDG_RUNTIME_DIR", "/nonexistent"),),
    ),
    "runtime-dir-of-another": Broken(
        DIRECTORY,
        "runtime-dir",
        "'/run' is not a directory of uid 1002",
        "export XDG_RUNTIME_DIR=/run/user/1002",
        env=(("XDG_RUNTIME_DIR", "/run"),),
    ),
    "runtime-dir-unset": Broken(
        DIRECTORY,
        "runtime-dir",
        "XDG_RUNTIME_DIR is not set and /run/user/1002 does not exist",
        "loginctl enable-linger",
        env=(("XDG_RUNTIME_DIR", None),),
        inside=in_mounts("mount -t tmpfs -o mode=755 none /run/user"),
    ),
    "home-unset": Broken(
        DIRECTORY, "home", "HOME is not set", "export HOME", env=(("HOME", None),)
    ),
    "home-missing": Broken(
        DIRECTORY, "home", "'/nonexistent'", "export HOME", env=(("HOME", "/nonexistent"),)
    ),
    "bad-config": Broken(
        errors.ConfigInvalidError,
        "config",
        "imgae",
        "edit ",
        env=(("XDG_CONFIG_HOME", "{bad_config}"),),
    ),
}


@contextmanager
def broken_machine(breaking: str, mending: str) -> Iterator[None]:
    end_pause_process()
    try:
        as_root(breaking)
        yield
    finally:
        as_root(mending)
        end_pause_process()


def as_root(script: str) -> None:
    if script:
        subprocess.run(["sudo", "-n", "sh", "-euc", script], check=True, timeout=30)


def end_pause_process() -> None:
    """podman joins the user namespace of this process, and makes another when there is none."""
    file = RUNTIME_DIR / "libpod/tmp/pause.pid"
    if file.exists():
        with suppress(ProcessLookupError, ValueError):
            os.kill(int(file.read_text()), signal.SIGKILL)
        file.unlink()


def path_without(names: Sequence[str], place: Path) -> str:
    """A directory of links to every program of PATH but some."""
    place.mkdir()
    for directory in reversed(os.environ["PATH"].split(":")):
        for program in Path(directory).iterdir() if Path(directory).is_dir() else ():
            link = place / program.name
            link.unlink(missing_ok=True)
            if program.name not in names:
                link.symlink_to(program)
    return str(place)


def run(
    cage: Cage,
    words: Sequence[str],
    *,
    inside: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Done:
    """cagewrap with an environment of exactly `env`, whatever stands before it."""
    pairs = [f"{name}={value}" for name, value in (cage.env if env is None else env).items()]
    command = ["env", "-i", *pairs, CAGEWRAP, *words]
    if inside[:1] == ("sudo",) and "--reset-env" in " ".join(inside):
        command = [*inside, *command[1:]]  # `in_mounts` puts its own `env` before
    else:
        command = [*inside, *command]
    done = subprocess.run(
        command, cwd=cwd or cage.project, stdin=subprocess.DEVNULL, capture_output=True,
        timeout=60, check=False,
    )  # fmt: skip
    return Done(done.returncode, done.stdout, done.stderr)


def expect(done: Done, error: type[errors.CagewrapError], words: str, fix: str) -> None:
    """One sentence and one fix on stderr, the error's code, nothing on stdout."""
    text = done.err.decode()
    assert done.code == error.exit_code, text
    assert done.out == b""
    lines = [line for line in text.splitlines() if line.startswith(("cagewrap: ", "  fix: "))]
    assert [line[:8] for line in lines] == ["cagewrap", "  fix: " + lines[1][7:8]], text
    assert words in lines[0]
    assert fix in lines[1]
    assert "Traceback" not in text


def diagnose(cage: Cage, **options: object) -> tuple[int, list[dict[str, object]]]:
    """The doctor's exit code and those checks that failed."""
    image = ["--image", str(options.pop("image", IMAGE))]
    done = run(cage, ["doctor", "--json", *image], **options)  # type: ignore[arg-type]
    document = json.loads(done.out)
    assert set(document) == {"cagewrap", "ok", "checks"}
    failed = [check for check in document["checks"] if check["status"] == "fail"]
    assert document["ok"] == (not failed)
    return done.code, failed


@pytest.mark.parametrize("case", MISSETUPS.values(), ids=MISSETUPS)
def test_mis_setup_is_named_with_its_fix(
    make_cage: Callable[..., Cage], tmp_path: Path, case: Broken
) -> None:
    cage = make_cage(*case.flags)
    bad_config = tmp_path / "bad"
    shutil.copytree(cage.place.config_home, bad_config)
    (bad_config / "cagewrap.toml").write_text('imgae = "x"\n')
    env = dict(cage.env)
    for name, value in case.env:
        if value is None:
            del env[name]
        else:
            env[name] = value.format(bad_config=bad_config)
    if case.without:
        env["PATH"] = path_without(case.without, tmp_path / "programs")
    image = case.flags[1] if case.flags[:1] == ("--image",) else IMAGE
    with broken_machine(case.breaking, case.mending):
        done = run(cage, [*cage.flags, "--", "true"], inside=case.inside, env=env)
        code, failed = diagnose(cage, inside=case.inside, env=env, image=image)
    assert failed, "the doctor found nothing"
    assert failed[0]["id"] == case.check, failed
    assert code == failed[0]["exit_code"] == case.error.exit_code
    assert failed[0]["fix"]
    assert case.fix.split(" ")[-1] in str(failed[0]["fix"])
    expect(done, case.error, case.words, case.fix)
    assert len(done.err.splitlines()) == 2, done.err


def test_home_that_cannot_be_written(cage: Cage, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(0o500)
    env = {name: value for name, value in cage.env.items() if name != "XDG_STATE_HOME"}
    env["HOME"] = str(home)
    expect(run(cage, [*cage.flags, "--", "true"], env=env), DIRECTORY, str(home), "")
    code, failed = diagnose(cage, env=env)
    assert (code, failed[0]["id"]) == (119, "home")


def test_current_directory_that_is_gone(cage: Cage, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    script = f'mkdir {gone}; cd {gone}; rmdir {gone}; exec "$@"'
    inside = ("sh", "-euc", script, "sh")
    expect(
        run(cage, [*cage.flags, "--", "true"], inside=inside), DIRECTORY, "no longer exists", "cd"
    )
    code, failed = diagnose(cage, inside=inside)
    assert (code, failed[0]["id"]) == (119, "cwd")


def test_podman_too_old(cage: Cage, tmp_path: Path) -> None:
    """A podman 3.4, as Ubuntu 22.04 has it, by what it answers."""
    path = path_without(("podman",), tmp_path / "programs")
    old = Path(path) / "podman"
    old.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && { echo podman version 3.4.4; exit; }\n'
        "echo 'Error: unknown flag: --pidfile' >&2\nexit 125\n"
    )
    old.chmod(0o755)
    env = cage.env | {"PATH": path}
    expect(
        run(cage, [*cage.flags, "--", "true"], env=env),
        errors.PodmanMissingError,
        "older than 4.3",
        "apt-get install podman",
    )
    code, failed = diagnose(cage, env=env)
    assert (code, failed[0]["id"]) == (113, "podman")
    assert "3.4.4 is too old" in str(failed[0]["found"])


@contextmanager
def storage_on(mount: str, tmp_path: Path, cage: Cage) -> Iterator[dict[str, str]]:
    """A home and a runtime directory of their own, so that podman has another storage."""
    home = tmp_path / "other-home"
    home.mkdir()
    runtime = Path(tempfile.mkdtemp(prefix="run-"))  # a socket's path must be short
    as_root(f"{mount} {home}; chown 1002:1002 {home}")
    env = cage.env | {"HOME": str(home), "XDG_RUNTIME_DIR": str(runtime)}
    config = home / ".config/containers"
    shutil.copytree(Path.home() / ".config/containers", config)
    try:
        yield env
    finally:
        subprocess.run(["podman", "system", "reset", "--force"], env=env, check=False, timeout=60)
        pause = runtime / "libpod/tmp/pause.pid"
        if pause.exists():
            subprocess.run(["kill", "-9", pause.read_text().strip()], check=False)
        as_root(f"umount --lazy {home}")


def test_storage_that_cannot_stack_layers(cage: Cage, tmp_path: Path) -> None:
    """On another overlay, as inside of a container, and without fuse-overlayfs."""
    mount = (
        "mkdir -p /run/ov/l /run/ov/u /run/ov/w; "
        "mount -t overlay -o lowerdir=/run/ov/l,upperdir=/run/ov/u,workdir=/run/ov/w overlay"
    )
    with (
        storage_on(mount, tmp_path, cage) as env,
        broken_machine(**away("/usr/bin/fuse-overlayfs")),
    ):
        done = run(cage, [*cage.flags, "--", "true"], env=env)
        code, failed = diagnose(cage, env=env)
    expect(done, errors.StorageError, "stack layers", "sudo apt-get install fuse-overlayfs")
    assert (code, failed[0]["id"]) == (117, "podman-info")


@pytest.mark.slow
def test_disk_of_the_storage_full(cage: Cage, tmp_path: Path) -> None:
    with storage_on("mount -t tmpfs -o size=700m none", tmp_path, cage) as env:
        archive = tmp_path / "image.tar"
        assert podman("save", "--quiet", "--output", str(archive), IMAGE).returncode == 0
        load = ["podman", "load", "--quiet", "--input", str(archive)]
        subprocess.run(load, env=env, check=True, capture_output=True, timeout=90)
        archive.unlink()
        fill_up(Path(env["HOME"]))
        done = run(cage, [*cage.flags, "--", "true"], env=env)
        code, failed = diagnose(cage, env=env)
        (Path(env["HOME"]) / "filling").unlink()
    expect(done, errors.StorageError, "full", "cagewrap gc")
    assert (code, failed[0]["id"]) in ((117, "space"), (117, "podman-info"))


def test_disk_of_the_sessions_full(cage: Cage) -> None:
    """The state directory: nothing can be written down about a session."""
    state = cage.place.state_home
    state.mkdir()
    as_root(f"mount -t tmpfs -o size=64k none {state}; chown 1002:1002 {state}")
    try:
        fill_up(state)
        done = run(cage, [*cage.flags, "--", "true"])
    finally:
        as_root(f"umount --lazy {state}")
    assert "a bug" not in done.err.decode()
    assert done.code == errors.StorageError.exit_code, done.err.decode()
    assert done.out == b""


def fill_up(directory: Path) -> None:
    with (directory / "filling").open("wb", buffering=0) as file:
        try:
            while file.write(bytes(1 << 16)):
                pass
        except OSError:
            return


def test_reboot_with_a_runtime_dir_on_disk(cage: Cage, tmp_path: Path) -> None:
    """podman 5 writes the boot id down and refuses another one."""
    if podman("--version").stdout.split()[2].startswith("4."):
        pytest.skip("podman 4 does not look at the boot id")
    with storage_on("mount -t tmpfs none", tmp_path, cage) as env:
        subprocess.run(["podman", "ps"], env=env, check=True, capture_output=True)
        alive = Path(env["XDG_RUNTIME_DIR"]) / "libpod/tmp/alive"
        kept = alive.read_text()
        alive.write_text("11111111-2222-3333-4444-555555555555")
        done = run(cage, [*cage.flags, "--", "true"], env=env)
        code, failed = diagnose(cage, env=env)
        alive.write_text(kept)
    expect(done, DIRECTORY, "over a reboot", "rm -rf ")
    assert (code, failed[0]["id"]) == (119, "podman-info")


@pytest.mark.parametrize(
    ("command", "error", "words"),
    [
        (["nosuch"], errors.AgentNotFoundError, "nosuch is not in the cage"),
        (["/no/such"], errors.AgentNotFoundError, "/no/such is not in the cage"),
        (["/etc"], errors.AgentNotExecutableError, "/etc in the cage is a directory"),
        (["/etc/passwd"], errors.AgentNotExecutableError, "may not be executed"),
        (["./wrong-machine"], errors.AgentNotExecutableError, "another processor"),
        (["./no-interpreter"], errors.AgentNotExecutableError, "interpreter"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_command_that_cannot_run(
    cage: Cage, command: list[str], error: type[errors.CagewrapError], words: str
) -> None:
    for name, content in (("wrong-machine", b"\x7fELF no"), ("no-interpreter", b"#!/no/such\n")):
        (cage.project / name).write_bytes(content)
        (cage.project / name).chmod(0o755)
    expect(run(cage, [*cage.flags, "--", *command]), error, words, "")


def test_doctor_of_a_machine_in_order(cage: Cage) -> None:
    code, failed = diagnose(cage)
    assert (code, failed) == (0, [])
    table = run(cage, ["doctor", "--image", IMAGE])
    assert table.code == 0
    assert table.err == b""
    assert " 0 failures" in table.out.decode().splitlines()[-1]


def test_doctor_without_a_probe_starts_no_container(cage: Cage) -> None:
    done = run(cage, ["doctor", "--json", "--no-probe", "--image", IMAGE])
    checks = {check["id"] for check in json.loads(done.out)["checks"]}
    assert "image" in checks
    assert not checks & {"probe", "probe-network"}


def test_every_fix_is_one_line_that_a_shell_can_read(cage: Cage) -> None:
    done = run(cage, ["doctor", "--json", "--image", IMAGE])
    for check in json.loads(done.out)["checks"]:
        assert "\n" not in check["fix"]
        if check["fix"].startswith("sudo "):
            assert shlex.split(check["fix"])
