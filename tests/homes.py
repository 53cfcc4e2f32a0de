"""A home directory with a project in it, for the tests of what is mounted."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from cagewrap.model import (
    EnvPolicy,
    Identity,
    Limits,
    Mount,
    NetworkMode,
    Owner,
    Settings,
    Share,
)
from cagewrap.mounts import MountPlan, build_mount_plan, check_project
from cagewrap.paths import Paths
from cagewrap.project import Project, find_project


def settings(
    *,
    mounts: tuple[Mount, ...] = (),
    hide: tuple[str, ...] = (),
    share: Share | None = None,
) -> Settings:
    return Settings(
        image="image",
        runtime="crun",
        identity=Identity.ROOT,
        network=NetworkMode.NONE,
        session="",
        project="",
        rm=False,
        mounts=mounts,
        hide=hide,
        env=EnvPolicy(),
        limits=Limits(),
        devices=(),
        publish=(),
        host_ports=(),
        podman_args=(),
        share=share or Share(),
        session_env=(),
        idle_stop_s=1800.0,
        keep_for_s=1.0,
    )


class Machine:
    """`home` is a real directory with ~/src/proj, a git repository, and a runtime directory."""

    def __init__(self, root: Path) -> None:
        self.root = Path(os.path.realpath(root))
        self.home = self.root / "home" / "me"
        self.runtime = self.root / "run"
        self.project = self.home / "src" / "proj"
        self.project.mkdir(parents=True)
        self.runtime.mkdir()
        self.env = {"HOME": str(self.home), "XDG_RUNTIME_DIR": str(self.runtime)}
        self.git("init", "-q", str(self.project))

    @property
    def owner(self) -> Owner:
        return Owner(os.getuid(), os.getgid(), "me", self.env["HOME"])

    @property
    def paths(self) -> Paths:
        home = self.env["HOME"]
        return Paths(
            home=home,
            config_file=f"{home}/.config/cagewrap.toml",
            state_dir=f"{home}/.local/state/cagewrap",
            runtime_dir=f"{self.runtime}/cagewrap",
            podman_runtime_dir=str(self.runtime),
        )

    @property
    def home_dir(self) -> str:
        return self.paths.home_dir("cagewrap-proj-12345678")

    def git(self, *words: str, cwd: Path | None = None) -> str:
        return subprocess.run(
            [
                "git",
                *("-c", "user.name=Me", "-c", "user.email=me@example.com"),
                *("-c", "protocol.file.allow=always"),
                *words,
            ],
            cwd=cwd or self.home,
            env={"HOME": str(self.home), "PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1"},
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    def find(self, cwd: Path | str, override: str = "", known: tuple[str, ...] = ()) -> Project:
        return find_project(str(cwd), self.env["HOME"], override, known=known)

    def check(self, cwd: Path | str, override: str = "") -> Project:
        project = self.find(cwd, override)
        check_project(project, owner=self.owner, paths=self.paths, env=self.env)
        return project

    def plan(self, wanted: Settings | None = None, cwd: Path | str = "") -> MountPlan:
        return build_mount_plan(
            self.find(cwd or self.project),
            wanted or settings(),
            owner=self.owner,
            paths=self.paths,
            home_dir=self.home_dir,
            env=self.env,
        )

    def targets(self, wanted: Settings | None = None, cwd: Path | str = "") -> list[str]:
        return [mount.target for mount in self.plan(wanted, cwd).mounts]


def write(path: Path, text: str = "x\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path
