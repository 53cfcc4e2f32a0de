"""Builds the workbench image: a base, the workbench on it, what the owner adds on that.

One build at a time for a user. The name moves to the new image in the last step, so a build that
fails or is killed leaves the old one; what it left is cleared away by the next.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType

from cagewrap import proc, sessions
from cagewrap.childenv import search_path
from cagewrap.errors import (
    CagewrapError,
    ConfigInvalidError,
    ImageMissingError,
    InternalError,
    StorageError,
)
from cagewrap.image import commands
from cagewrap.image import recipe as recipes
from cagewrap.image.failures import explain_step
from cagewrap.image.places import Places
from cagewrap.image.progress import Progress, Show
from cagewrap.image.recipe import Recipe
from cagewrap.image.store import Images, failure
from cagewrap.paths import Paths
from cagewrap.runtimes.failures import last_lines

_ANSWER_S = 3.0
"""How long a registry may take to answer before the base is made of Debian packages instead."""
_IMPORT_S = 1800.0


class Builder:
    """Builds images for one owner."""

    def __init__(self, paths: Paths, env: Mapping[str, str], show: Show) -> None:
        """env: the caller's. show: is told how far the build is."""
        self.paths = paths
        self.places = Places(paths)
        self._written = sessions.written_by_cages(paths)
        self.env = {
            **env,
            "PATH": search_path(env, self._written),
            "XDG_RUNTIME_DIR": paths.podman_runtime_dir,
        }
        self.images = Images(self.env)
        self._show = show
        self._scratch_base = env.get("TMPDIR") or "/var/tmp"  # noqa: S108 - often another disk

    def build(
        self, recipe: Recipe, name: str, *, fresh: bool = False, if_missing: bool = False
    ) -> bool:
        """Make the image `name`, or raise and leave the old one. False: it was there already.

        fresh: nothing of an earlier build is used. if_missing: only when there is no such image.
        """
        self._refuse_written(recipe)
        with self._locked():
            if if_missing and self.images.exists(name):
                return False
            with self._reporting() as progress, self._scratch_dir() as scratch:
                work = _Work(self, recipe, progress, scratch, fresh=fresh)
                work.build()
                self._give_name(recipes.tag(recipes.recipe_hash(recipe)), name)
                self._note(name, recipe, progress)
            return True

    def build_from(self, name: str, tar_file: str) -> None:
        """Make the image `name` of a root file system that was packed elsewhere."""
        try:
            with open(tar_file, "rb") as file:
                digest = "tar-" + hashlib.file_digest(file, "sha256").hexdigest()[:12]
        except OSError as error:
            raise ImageMissingError(f"{tar_file} cannot be read: {error.strerror}.") from error
        with self._locked(), self._reporting() as progress:
            progress.step(1, 1, f"making {name} of {tar_file}")
            labels = commands.labels(digest, "", "")
            old = self.images.id_of(name)
            self.import_tar(name, os.path.abspath(tar_file), labels)
            if old and old != self.images.id_of(name):
                # Nameless now. podman keeps it while a cage still stands on it.
                self.images.podman("rmi", "--", old)
            self.places.write(name, {"recipe": digest})
            progress.end(image=name)

    def import_tar(self, name: str, tar_file: str, labels: Mapping[str, str]) -> None:
        """`podman import`."""
        argv = commands.import_args(name, tar_file, labels)
        outcome = proc.capture(argv, timeout_s=_IMPORT_S, env=self.env)
        if outcome.returncode == 0:
            return
        if "archive/tar" in outcome.stderr:
            raise StorageError(
                f"{tar_file} is not a root file system that podman can import: "
                f"{last_lines(outcome.stderr)}",
                "pack it with: tar --one-file-system -C ROOT -cf FILE .",
            )
        raise failure(outcome, name)

    def _give_name(self, made: str, name: str) -> None:
        outcome = self.images.podman("tag", made, name)
        if outcome.returncode != 0:
            raise failure(outcome, name)
        self.images.remove_superseded()

    def _note(self, name: str, recipe: Recipe, progress: Progress) -> None:
        hash_ = recipes.recipe_hash(recipe)
        id_ = self.images.id_of(name)
        self.places.write(name, {"recipe": hash_, "id": id_})
        entry = self.images.find(name)
        size = entry.size_bytes if entry is not None else 0
        progress.end(image=name, id=id_[:12], recipe=hash_, size_bytes=size)

    def _refuse_written(self, recipe: Recipe) -> None:
        path = (
            os.path.realpath(recipe.settings.containerfile) if recipe.settings.containerfile else ""
        )
        for place in self._written:
            if path and (path + "/").startswith(place.rstrip("/") + "/"):
                raise ConfigInvalidError(
                    f"The Containerfile {path} lies in {place}, where an agent can write to it, "
                    "and every cage would be made of what it wrote.",
                    "move it to a place that no cage sees, such as ~/.config, and correct "
                    "containerfile in the table [image]",
                )

    @contextmanager
    def _reporting(self) -> Iterator[Progress]:
        """Tell everyone who waits how the build goes, and how it ends."""
        progress = Progress(self.places.events, self.places.log, self._show)
        try:
            with _signals_as_exit():
                yield progress
        except CagewrapError as error:
            progress.fail(error)
            raise
        except Exception as error:
            progress.fail(InternalError(f"A bug: {error!r}.", "report it with --debug"))
            raise
        except BaseException:
            interrupted = "The build of the image was interrupted."
            progress.fail(ImageMissingError(interrupted, "cagewrap image build"))
            raise
        finally:
            progress.close()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One build at a time; the others wait."""
        with open(self.places.lock, "w", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(f"{os.getpid()}\n")
            file.flush()
            yield

    @contextmanager
    def _scratch_dir(self) -> Iterator[str]:
        """A directory that is gone afterwards, as are those of earlier builds that were killed,
        with what those left in podman's storage."""
        prefix = f"cagewrap-image-{os.getuid()}-"
        for entry in os.scandir(self._scratch_base):
            if entry.name.startswith(prefix) and entry.stat(follow_symlinks=False).st_uid == (
                os.getuid()
            ):
                self._remove_tree(entry.path)
        self.images.remove_parts()
        try:
            scratch = tempfile.mkdtemp(prefix=prefix, dir=self._scratch_base)
        except OSError as error:
            raise StorageError(
                f"No directory can be made in {self._scratch_base}: {error.strerror}.",
                "make room there, or name another disk: TMPDIR=DIR cagewrap image build",
            ) from error
        try:
            os.chmod(scratch, 0o711)  # noqa: S103 - apt downloads as a user of its own
            yield scratch
        finally:
            self._remove_tree(scratch)
            self.images.remove_parts()

    def _remove_tree(self, path: str) -> None:
        # Most of it belongs to subordinate users; only root of podman's user namespace can.
        self.images.podman("unshare", "rm", "-rf", "--", path)


class _Work:
    """One build, under the lock and with a scratch directory."""

    def __init__(
        self, builder: Builder, recipe: Recipe, progress: Progress, scratch: str, *, fresh: bool
    ) -> None:
        self.builder = builder
        self.images = builder.images
        self.recipe = recipe
        self.progress = progress
        self.scratch = scratch
        self.fresh = fresh
        self.env = {**builder.env, "TMPDIR": scratch}
        self.asked = asked = recipe.settings
        self.steps = 2 + bool(asked.packages or asked.run) + bool(asked.containerfile)
        text, self.paths = commands.build_environment(builder.env)
        self._write("env", text)

    def build(self) -> None:
        """Make what is not there yet."""
        workbench = recipes.workbench_hash(self.recipe)
        whole = recipes.recipe_hash(self.recipe)
        if self.fresh or not self.images.exists(recipes.tag(workbench)):
            base = self._make_base()
            self.progress.step(2, self.steps, f"installing the {self.asked.target}")
            self._keep_old(recipes.tag(workbench))
            context = os.path.join(self.scratch, "context")
            os.makedirs(os.path.join(context, "apt"))
            for name, text in recipes.apt_files(self.recipe).items():
                self._write(f"context/apt/{name}", text)
            self._podman_build(
                context, recipes.CONTAINERFILE, recipes.base_tag(base), self.asked.target,
                workbench, commands.labels(workbench, workbench, base),
            )  # fmt: skip
        if whole != workbench:
            self._add(workbench, whole)

    def _add(self, workbench: str, whole: str) -> None:
        """The owner's packages and commands, and then his Containerfile."""
        entry = self.images.find(recipes.tag(workbench))
        labels = commands.labels(whole, workbench, entry.base if entry is not None else "")
        self._keep_old(recipes.tag(whole))
        on = recipes.tag(workbench)
        text = recipes.additions_text(self.recipe)
        if text:
            self.progress.step(3, self.steps, "adding your packages and commands")
            context = os.path.join(self.scratch, "additions")
            os.makedirs(context)
            self._write("additions/Containerfile", text)
            self._podman_build(
                context, os.path.join(context, "Containerfile"), on, "", whole, labels
            )
            on = recipes.tag(whole)
        if self.asked.containerfile:
            file = self.asked.containerfile
            self.progress.step(self.steps, self.steps, f"building {file}")
            self._podman_build(os.path.dirname(file), file, on, "", whole, labels)

    def _podman_build(
        self, context: str, file: str, base: str, target: str, hash_: str, labels: dict[str, str]
    ) -> None:
        id_file = os.path.join(self.scratch, "id")
        with suppress(FileNotFoundError):
            os.unlink(id_file)
        argv = commands.build_args(
            context, file, base=base, target=target, name=recipes.tag(hash_), labels=labels,
            scratch=self.scratch, mounts=(*self.paths, *recipes.local_directories(self.recipe)),
        )  # fmt: skip
        self._run(argv, id_file)

    def _make_base(self) -> str:
        """The base's hash, once there is such an image."""
        wanted = self.asked.base
        kinds = {recipes.AUTO: (self.recipe.registry_ref, recipes.PACKAGES)}.get(wanted, (wanted,))
        bases = {kind: recipes.base_hash(self.recipe, kind) for kind in kinds}
        for base in () if self.fresh else bases.values():
            if self.images.exists(recipes.base_tag(base)):
                return base
        for kind, base in bases.items():
            if kind == recipes.PACKAGES:
                self._bootstrap(base)
                return base
            if self._fetch(kind, base, is_optional=wanted == recipes.AUTO):
                return base
        raise AssertionError(kinds)

    def _fetch(self, ref: str, base: str, *, is_optional: bool) -> bool:
        """Take the base from this machine or from a registry. False: none answers, or it fails,
        and it `is_optional`."""
        name = recipes.base_tag(base)
        was_there = self.images.exists(ref)
        if not was_there or (self.fresh and not ref.startswith("localhost/")):
            if is_optional and not self._answers(ref):
                self.progress.line(f"no registry answers within {_ANSWER_S:.0f} s for {ref}")
                return False
            self.progress.step(1, self.steps, f"getting {ref}")
            code = proc.run(("podman", "pull", ref), env=self.env, line=self.progress.line)
            if code != 0 and is_optional:
                return False
            if code != 0:
                raise explain_step(f"getting {ref}", self.progress.tail, self.builder.places.log)
        self._keep_old(name)
        outcome = self.images.podman("tag", ref, name)
        if outcome.returncode != 0:
            raise failure(outcome, ref)
        if not was_there:
            self.images.podman("untag", ref, ref)
        return True

    def _answers(self, ref: str) -> bool:
        """Whether a registry has this image, and says so at once."""
        argv = ("podman", "manifest", "inspect", "--", ref)
        return proc.capture(argv, timeout_s=_ANSWER_S, env=self.env).returncode == 0

    def _bootstrap(self, base: str) -> None:
        self.progress.step(1, self.steps, f"making a base of Debian {self.asked.suite} packages")
        if shutil.which("mmdebstrap", path=self.env["PATH"]) is None:
            raise proc.missing_program("mmdebstrap")
        argv = commands.bootstrap_args(self.recipe, self.scratch)
        self._run(argv, os.path.join(self.scratch, commands.DONE))
        name, tar_file = recipes.base_tag(base), os.path.join(self.scratch, "root.tar")
        self._keep_old(name)
        labels = {**commands.labels("", "", base), recipes.STAGE_LABEL: "base"}
        self.builder.import_tar(name, tar_file, labels)
        os.unlink(tar_file)

    def _run(self, argv: tuple[str, ...], mark: str) -> None:
        """Run a step; it has done its work when `mark` exists."""
        what = self.progress.what
        code = proc.run(argv, env=self.env, line=self.progress.line)
        if code != 0 or not os.path.exists(mark):
            raise explain_step(what, self.progress.tail, self.builder.places.log)

    def _keep_old(self, name: str) -> None:
        """An image that loses its name to a new one gets another, so that it can be told from
        nameless images of the owner's."""
        old = self.images.id_of(name)
        if old:
            self.images.podman("tag", old, f"{name.rpartition(':')[0]}:{old[:12]}")

    def _write(self, name: str, text: str) -> None:
        path = os.path.join(self.scratch, name)
        with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)


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
