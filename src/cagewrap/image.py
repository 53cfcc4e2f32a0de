"""The base image: made from Debian packages on this machine, with no container registry.

mmdebstrap makes a root file system as root of podman's user namespace, `podman import` makes an
image of it. The name moves to the new image in the last step, so a build that fails leaves the
old one.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

from cagewrap import proc
from cagewrap.childenv import search_path
from cagewrap.errors import CagewrapError, ImageMissingError, SessionError, StorageError
from cagewrap.paths import Paths
from cagewrap.runtimes.failures import explain_failure, last_lines

DEFAULT_NAME = "localhost/cagewrap:latest"
SUITES = ("bookworm", "trixie")
DEFAULT_SUITE = "trixie"
RECIPE_LABEL = "cagewrap.recipe"

_PACKAGES_FILE = os.path.join(os.path.dirname(__file__), "images", "base.packages")
_IMAGE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CHANGES = (
    f"ENV PATH={_IMAGE_PATH}",
    "ENV LANG=C.UTF-8",
    "ENV DEBIAN_FRONTEND=noninteractive",  # an agent has no terminal to be asked on
    'CMD ["bash"]',
)
_BOOTSTRAP = (
    "--mode=root",
    "--variant=minbase",
    "--skip=chroot/mount/sys",  # not allowed to root of a user namespace; no package here needs it
    "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-include=/usr/share/doc/*/copyright",
    # Copies of this machine's own; podman gives every container its own.
    '--customize-hook=rm "$1/etc/hostname" "$1/etc/resolv.conf"',
)
_CONTAINED = (
    "setpriv", "--pdeathsig", "TERM", "--",
    "podman", "unshare",
    "setpriv", "--pdeathsig", "KILL", "--",
    "unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--",
)  # fmt: skip
"""Nothing of what runs in this outlives us, however we end: it is a pid namespace of its own."""
_DONE = "done"
"""Made by the build when it got to its end: a `podman unshare` that is killed may exit 0."""
_QUICK_S = 60.0
_IMPORT_S = 1800.0


@dataclass(frozen=True, slots=True)
class Recipe:
    """What goes into an image. `mirrors` and `aptopts` are passed on to mmdebstrap as they are."""

    suite: str = DEFAULT_SUITE
    include: tuple[str, ...] = ()
    mirrors: tuple[str, ...] = ()
    aptopts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ImageEntry:
    """An image that cagewrap made, as podman knows it. `created` is in seconds since 1970."""

    name: str
    id: str
    size_bytes: int
    created: int
    recipe: str


def bootstrap_args(recipe: Recipe, scratch: str) -> tuple[str, ...]:
    """The command that makes `scratch`/root.tar."""
    return (
        *_CONTAINED,
        "sh", "-c", 'mmdebstrap "$@" && : >"$TMPDIR/' + _DONE + '"', "sh",
        *_BOOTSTRAP,
        "--include=" + ",".join(recipe.include),
        *(f"--aptopt={option}" for option in recipe.aptopts),
        "--", recipe.suite, os.path.join(scratch, "root.tar"), *recipe.mirrors,
    )  # fmt: skip


def import_args(name: str, tar_file: str, recipe_id: str) -> tuple[str, ...]:
    """The command that makes an image of a root file system."""
    changes = (*_CHANGES, f"LABEL {RECIPE_LABEL}={recipe_id}")
    options = (word for change in changes for word in ("--change", change))
    return ("podman", "import", "--quiet", *options, "--", tar_file, name)


def recipe_hash(recipe: Recipe) -> str:
    """Twelve hex digits that change when the same recipe would make another image."""
    text = "\0".join((*bootstrap_args(recipe, ""), *_CHANGES))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def read_base_packages() -> tuple[str, ...]:
    """The packages of the base image."""
    with open(_PACKAGES_FILE, encoding="utf-8") as file:
        lines = [line.partition("#")[0].strip() for line in file]
    return tuple(line for line in lines if line)


class Images:
    """The images of one owner, in podman's own storage."""

    def __init__(self, paths: Paths, env: Mapping[str, str]) -> None:
        """Keep where our lock is, and the environment for the programs that are started."""
        self._lock_file = os.path.join(paths.runtime_dir, "image.lock")
        self._env = {**env, "XDG_RUNTIME_DIR": paths.podman_runtime_dir}
        self._scratch_base = env.get("TMPDIR") or "/var/tmp"  # noqa: S108 - often another disk

    def exists(self, name: str) -> bool:
        """Whether podman has an image of this name."""
        outcome = self._podman("image", "exists", "--", name)
        if outcome.returncode not in (0, 1):
            raise _failure(outcome, name)
        return outcome.returncode == 0

    def find_all(self) -> tuple[ImageEntry, ...]:
        """Every image with our label, newest first."""
        outcome = self._podman("images", "--filter", f"label={RECIPE_LABEL}", "--format", "json")
        if outcome.returncode != 0:
            raise _failure(outcome)
        return parse_images(outcome.stdout)

    def remove(self, name: str) -> None:
        """Remove an image that no cage uses."""
        if not self.exists(name):
            raise ImageMissingError(f"There is no image {name}.", "cagewrap image ls")
        outcome = self._podman("rmi", "--", name)
        if outcome.returncode != 0:
            if "in use" in outcome.stderr:
                raise SessionError(
                    f"The image {name} is in use by a container.", "cagewrap ls; cagewrap rm NAME"
                )
            raise _failure(outcome, name)

    def build(self, name: str, recipe: Recipe) -> None:
        """Make the image `name` from Debian packages, or raise and leave the old one."""
        if shutil.which("mmdebstrap", path=search_path(self._env)) is None:
            raise proc.missing_program("mmdebstrap")
        with self._locked(), self._scratch_dir() as scratch:
            argv = bootstrap_args(recipe, scratch)
            code = proc.run(argv, env={**self._env, "TMPDIR": scratch})
            if code != 0 or not os.path.exists(os.path.join(scratch, _DONE)):
                raise ImageMissingError(
                    f"The image {name} was not made: mmdebstrap failed; its own words are above.",
                    "cagewrap doctor",
                )
            self._import(name, os.path.join(scratch, "root.tar"), recipe_hash(recipe))

    def build_from(self, name: str, tar_file: str) -> None:
        """Make the image `name` of a root file system that was packed elsewhere."""
        try:
            with open(tar_file, "rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise ImageMissingError(f"{tar_file} cannot be read: {error.strerror}.") from error
        with self._locked():
            self._import(name, os.path.abspath(tar_file), f"tar-{digest[:12]}")

    def _import(self, name: str, tar_file: str, recipe_id: str) -> None:
        old = self._podman("image", "inspect", "--format", "{{.Id}}", "--", name)
        argv = import_args(name, tar_file, recipe_id)
        outcome = proc.capture(argv, timeout_s=_IMPORT_S, env=self._env)
        if outcome.returncode != 0:
            if "archive/tar" in outcome.stderr:
                raise StorageError(
                    f"{tar_file} is not a root file system that podman can import: "
                    f"{last_lines(outcome.stderr)}",
                    "pack it with: tar --one-file-system -C ROOT -cf FILE .",
                )
            raise _failure(outcome, name)
        old_id, new_id = old.stdout.strip(), outcome.stdout.strip().removeprefix(b"sha256:")
        if old.returncode == 0 and old_id and old_id != new_id:
            # Nameless now. podman keeps it while a cage still stands on it.
            self._podman("rmi", "--", old_id.decode())

    def _podman(self, *words: str) -> proc.Outcome:
        return proc.capture(("podman", *words), timeout_s=_QUICK_S, env=self._env)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One build at a time; the others wait."""
        os.makedirs(os.path.dirname(self._lock_file), mode=0o700, exist_ok=True)
        with open(self._lock_file, "w", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _scratch_dir(self) -> Iterator[str]:
        """A directory that is gone afterwards, as are those of earlier builds that were killed."""
        prefix = f"cagewrap-image-{os.getuid()}-"
        for entry in os.scandir(self._scratch_base):
            if entry.name.startswith(prefix) and entry.stat(follow_symlinks=False).st_uid == (
                os.getuid()
            ):
                self._remove_tree(entry.path)
        with _signals_as_exit():
            scratch = tempfile.mkdtemp(prefix=prefix, dir=self._scratch_base)
            try:
                os.chmod(scratch, 0o711)  # noqa: S103 - apt downloads as a user of its own
                yield scratch
            finally:
                self._remove_tree(scratch)

    def _remove_tree(self, path: str) -> None:
        # Most of it belongs to subordinate users; only root of podman's user namespace can.
        self._podman("unshare", "rm", "-rf", "--", path)


def parse_images(listing: bytes) -> tuple[ImageEntry, ...]:
    """Read what `podman images --format json` prints."""
    entries = [
        ImageEntry(
            name=(image.get("Names") or [""])[0],
            id=image["Id"][:12],
            size_bytes=int(image["Size"]),
            created=int(image["Created"]),
            recipe=image["Labels"][RECIPE_LABEL],
        )
        for image in json.loads(listing or b"[]") or ()
    ]
    return tuple(sorted(entries, key=lambda entry: (-entry.created, entry.name)))


@contextmanager
def _signals_as_exit() -> Iterator[None]:
    """Let TERM and HUP unwind the stack, as ctrl-c does, so that scratch files go."""

    def leave(number: int, _frame: FrameType | None) -> None:
        for name in old:
            signal.signal(name, signal.SIG_IGN)  # once: the unwinding must get to its end
        raise SystemExit(128 + number)

    old = {name: signal.signal(name, leave) for name in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for name, handler in old.items():
            with suppress(ValueError, TypeError):
                signal.signal(name, handler)


def _failure(outcome: proc.Outcome, name: str = "") -> CagewrapError:
    return explain_failure(outcome.argv, outcome.returncode, outcome.stderr, image=name)
