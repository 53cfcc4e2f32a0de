"""Somebody who builds images and starts cages from them, on a machine without a network."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from podman.cages import (
    CAGEWRAP,
    RUNTIME_DIR,
    Done,
    Shim,
    all_pids,
    kill_keepers,
    podman,
    read_bytes,
    wait_until,
)

NAME = "localhost/cagewrap:latest"
PACKAGES = Path(os.environ.get("CAGEWRAP_PACKAGES", "/mnt/packages"))
MIRROR = f"deb [trusted=yes] copy:{PACKAGES}/debs ./"
LIMIT_S = 300.0


class Bench:
    """A state directory, a configuration and a scratch directory of a test's own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.scratch = root / "scratch"
        self.config = root / "config"
        self.state = root / "state"
        for path in (self.scratch, self.config, root / "project"):
            path.mkdir(parents=True)
        root.chmod(0o755)
        (self.config / "containers").mkdir()
        self.storage(Path.home() / ".local/share/containers/storage", RUNTIME_DIR / "containers")
        self.env = {
            "HOME": str(Path.home()),
            "USER": "tester",
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "TMPDIR": str(self.scratch),
            "XDG_RUNTIME_DIR": str(RUNTIME_DIR),
            "XDG_STATE_HOME": str(self.state),
            "XDG_CONFIG_HOME": str(self.config),
            "XDG_CACHE_HOME": str(root / "cache"),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(PACKAGES / "wheels"),
        }
        self.settings()

    def storage(self, root: Path, run: Path) -> None:
        """Where podman keeps images. Both are said: `podman commit` of 4.3 wants it so where
        XDG_CONFIG_HOME is set."""
        text = f'[storage]\ndriver = "overlay"\ngraphroot = "{root}"\nrunroot = "{run}"\n'
        (self.config / "containers/storage.conf").write_text(text)

    def settings(self, image: str = "", rest: str = "") -> None:
        """Write the configuration; `image` into its table [image]."""
        base = "" if "base =" in image else 'base = "packages"\n'
        text = f"{rest}\n[image]\nmirrors = [{json.dumps(MIRROR)}]\n{base}{image}\n"
        (self.config / "cagewrap.toml").write_text(text)

    # -- commands --

    def popen(self, *words: str, cwd: Path | None = None, **env: str) -> Shim:
        """cagewrap with these words."""
        return Shim(
            [CAGEWRAP, *words],
            env=self.env | env,
            cwd=cwd or self.root / "project",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, *words: str, **options: Any) -> Done:
        with self.popen(*words, **options) as process:
            out, err = process.communicate(timeout=LIMIT_S)
        return Done(process.returncode, out, err)

    def good(self, *words: str, **options: Any) -> str:
        """What a command that must end well prints."""
        done = self.run(*words, **options)
        assert done.code == 0, (words, done.code, done.out, done.err.decode())
        return done.out.decode()

    def json(self, *words: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.good(*words, "--json"))
        return found

    def cage(self, *argv: str, flags: tuple[str, ...] = (), **options: Any) -> str:
        return self.good("--network", "none", *flags, "--", *argv, **options)

    # -- what there is --

    def left(self) -> list[str]:
        """What builds left on the way: files, containers of steps, nameless images."""
        found = [path.name for path in self.scratch.iterdir()]
        listed = podman("ps", "--all", "--external", "--format", "{{.Names}}").stdout.split()
        found += [name for name in listed if "working-container" in name]
        return found + podman("images", "--quiet", "--filter", "dangling=true").stdout.split()

    def remove(self) -> None:
        self.run("rm", "--all", "--force")
        for name in [path.name for path in (self.state / "cagewrap/cages").glob("*")]:
            kill_keepers(name)
            podman("rm", "--force", "--time", "0", name)
        podman("unshare", "rm", "-rf", str(self.root))


def image_id(name: str = NAME) -> str:
    return podman("image", "inspect", "--format", "{{.Id}}", name).stdout.strip()


def building() -> list[int]:
    """Processes of builds: none may outlive the one that started it."""
    words = (b"mmdebstrap", b"podman\0build", b"apt-get", b"sleep\0001234")
    return [
        pid
        for pid in all_pids()
        if any(word in read_bytes(f"/proc/{pid}/cmdline") for word in words)
    ]


def wait_for_line(bench: Bench, text: str, within_s: float = 120.0) -> None:
    """Until the running build has printed this."""
    log = bench.state / "cagewrap/image.log"
    assert wait_until(lambda: text in read_bytes(log).decode(errors="replace"), within_s), text


class Figures:
    """What was measured; shown after the run."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, what: str, value: object) -> None:
        self.lines.append(f"{what}: {value}")

    def timed(self, what: str, began: float) -> float:
        took = time.monotonic() - began
        self.add(what, f"{took:.2f} s")
        return took


FIGURES = Figures()
