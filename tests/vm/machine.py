"""Cages, services and users of the emulated machine. Time limits are wide: it is slow."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from podman import cages
from podman.cages import Cage, Done, Word, is_alive, seconds_until, wait_until

SLOW_S = 300.0
"""How long anything may take that a real machine does in seconds."""
GONE_S = 3 * 2.0
"""How soon what a killed message started must be gone: 2 s, and three times that when emulated."""

cages.TIMEOUT_S = SLOW_S

USER_MANAGER = "user@1002.service"


class SlowCage(Cage):
    """A place with cages, with the patience emulation asks for."""

    def run(self, *argv: Word, timeout_s: float = SLOW_S, **options: Any) -> Done:
        return super().run(*argv, timeout_s=timeout_s, **options)

    def stop(self, name: str = "") -> None:
        pid = self.keeper(name)
        if pid:
            os.kill(pid, signal.SIGTERM)
            assert wait_until(lambda: not is_alive(pid), SLOW_S), f"keeper {pid} does not end"

    def start(self, *argv: Word, session: str = "", **options: Any) -> subprocess.Popen[bytes]:
        """Start a command that stays, and wait until it runs in the cage."""
        flags = ("--session", session) if session else ()
        before = {name: set(self.inside_pids(name)) for name in self.names()}
        process = self.popen(*argv, flags=flags, stdin=subprocess.DEVNULL, **options)

        def has_started() -> bool:
            assert process.poll() is None, "it ended at once"
            return any(
                set(self.inside_pids(name)) - before.get(name, set()) for name in self.names()
            )

        seconds_until(has_started, SLOW_S)
        return process

    def name_of(self, session: str) -> str:
        [name] = [name for name in self.names() if self.record(name).get("session") == session]
        return name


def cgroup_of(pid: int | str) -> str:
    """The path of a process's cgroup below the mount point."""
    [line] = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    return line.removeprefix("0::")


def cgroup_file(cgroup: str, name: str) -> str:
    return Path(f"/sys/fs/cgroup{cgroup}/{name}").read_text().strip()


def sudo(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sudo", *words], capture_output=True, text=True, timeout=SLOW_S, check=check,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


# --- services -----------------------------------------------------------------------------------


class Services:
    """Units of one manager: "user" (tester's own) or "system" (with User=tester)."""

    def __init__(self, manager: str) -> None:
        self.manager = manager

    def _systemctl(self, *words: str) -> subprocess.CompletedProcess[str]:
        front = ["systemctl", "--user"] if self.manager == "user" else ["sudo", "systemctl"]
        return subprocess.run(
            [*front, *words], capture_output=True, text=True, timeout=SLOW_S, check=False
        )

    @contextlib.contextmanager
    def running(
        self, unit: str, argv: Sequence[Word], env: Mapping[str, str], cwd: Path
    ) -> Iterator[None]:
        """A harness as a service, as a unit file with ExecStart= would start it."""
        front = ["systemd-run", "--user"]
        env = dict(env)
        if self.manager == "system":
            front = ["sudo", "systemd-run", "--uid=tester", "--gid=tester"]
            del env["XDG_RUNTIME_DIR"]
        settings = [f"--setenv={name}={value}" for name, value in env.items()]
        subprocess.run(
            [*front, "--quiet", "--collect", f"--unit={unit}", f"--working-directory={cwd}",
             *settings, *argv],
            check=True, timeout=SLOW_S,
        )  # fmt: skip
        try:
            yield
        finally:
            self.stop(unit)

    def stop(self, unit: str) -> None:
        self._systemctl("stop", unit)

    def is_active(self, unit: str) -> bool:
        return self._systemctl("is-active", "--quiet", unit).returncode == 0


# --- other users ----------------------------------------------------------------------------------


class Account:
    """Another user with a small image of his own, without linger."""

    image = "localhost/small:1"

    def __init__(self, name: str, uid: int) -> None:
        self.name = name
        self.uid = uid
        self.project = f"/home/{name}/project"

    def make(self) -> None:
        sudo("useradd", "--uid", str(self.uid), "--create-home", "--shell", "/bin/bash", self.name)
        config = f"/home/{self.name}/.config"
        for directory in (self.project, config, f"{config}/containers"):
            sudo("install", "-d", "-o", self.name, directory)
        storage = "/home/tester/.config/containers/storage.conf"
        sudo("install", "-o", self.name, storage, f"{config}/containers")
        image = Path("/tmp/small.tar")
        image.write_bytes(small_image())
        self.must("podman", "import", "--quiet", str(image), self.image)

    def run(self, *argv: str, settings: Sequence[str] = ()) -> Done:
        """A command as this user, as a service of the system with these settings; to its end."""
        properties = [f"--property={one}" for one in settings]
        done = subprocess.run(
            ["sudo", "systemd-run", "--quiet", "--wait", "--collect", "--pipe",
             f"--uid={self.name}", f"--gid={self.name}", f"--working-directory={self.project}",
             *properties, *argv],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=SLOW_S, check=False,
        )  # fmt: skip
        return Done(done.returncode, done.stdout, done.stderr)

    def must(self, *argv: str, **options: Any) -> str:
        done = self.run(*argv, **options)
        assert done.code == 0, done.err.decode(errors="replace")
        return done.out.decode()

    def cage(self, *command: str, **options: Any) -> Done:
        """A message in his one cage."""
        return self.run(*self.message(*command), **options)

    def message(self, *command: str) -> list[str]:
        flags = ("--image", self.image, "--network", "none")
        return ["/usr/local/bin/cagewrap", *flags, "--", *command]

    def state(self) -> dict[str, Any]:
        """What the keeper of his one cage wrote down."""
        text = sudo("sh", "-c", f"cat /home/{self.name}/.local/state/cagewrap/cages/*/state.json")
        found: dict[str, Any] = json.loads(text.stdout)
        return found

    def processes(self) -> list[str]:
        """All that runs as this user or as one of his cages' users."""
        first, count = next(
            map(int, line.split(":")[1:])
            for line in Path("/etc/subuid").read_text().splitlines()
            if line.startswith(self.name + ":")
        )
        found = []
        for pid in cages.all_pids():
            try:
                owner = os.stat(f"/proc/{pid}").st_uid
            except OSError:
                continue
            if owner == self.uid or first <= owner < first + count:
                found.append(f"{pid} {cages.command_line(pid)}")
        return found

    def forget_cages(self) -> None:
        """Remove all he has but the image."""
        script = "podman rm --all --force --time 0; rm -rf ~/.local/state/cagewrap"
        self.must("bash", "-c", script)


class LoginUser(Account):
    """Who logs in for each command, and out again."""

    def run(self, *argv: str, settings: Sequence[str] = ()) -> Done:
        session = ("PAMName=login", "Environment=XDG_SESSION_CLASS=user")
        return super().run(*argv, settings=(*session, *settings))

    def service(self, *argv: str, settings: Sequence[str] = ()) -> Done:
        """A command without a login."""
        return super().run(*argv, settings=settings)

    def has_manager(self) -> bool:
        manager = f"user@{self.uid}.service"
        return sudo("systemctl", "is-active", manager, check=False).returncode == 0

    def linger(self) -> None:
        sudo("loginctl", "enable-linger", self.name)
        seconds_until(self.has_manager, SLOW_S)

    def wait_until_gone(self) -> float:
        """Until his manager has ended, which logind does 10 s after the last logout."""
        return seconds_until(lambda: not self.has_manager() and not self.processes(), SLOW_S)

    def forget_cages(self) -> None:
        sudo("loginctl", "disable-linger", self.name)
        super().forget_cages()
        sudo("loginctl", "terminate-user", self.name, check=False)
        self.wait_until_gone()


class ServiceAccount(Account):
    """Who never logs in: his services bring their own runtime directory."""

    def run(self, *argv: str, settings: Sequence[str] = ()) -> Done:
        directory = (
            "RuntimeDirectory=service",
            "RuntimeDirectoryMode=0700",
            "RuntimeDirectoryPreserve=yes",
            "Environment=XDG_RUNTIME_DIR=/run/service",
        )
        return super().run(*argv, settings=(*directory, *settings))


def small_image() -> bytes:
    """A root file system with a shell and a few programs, from this machine's files."""
    programs = ["/bin/sh", "/bin/cat", "/bin/sleep", "/bin/true"]
    linked = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=True).stdout
    libraries = {word for word in linked.split() if word.startswith("/") and ":" not in word}
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for path in (*programs, *sorted(libraries)):
            tar.add(os.path.realpath(path), arcname=path.lstrip("/").removeprefix("usr/"))
        for directory in ("tmp", "etc", "proc", "sys", "dev", "run"):
            entry = tarfile.TarInfo(directory)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
    return content.getvalue()
