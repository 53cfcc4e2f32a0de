"""Builds the workbench image: a base, the workbench on it, what the owner adds on that.

One build at a time for a user. The name moves to the new image in the last step, so a build that
fails or is killed leaves the old one; what it left is cleared away by the next.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import signal
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from cagewrap import sessions
from cagewrap.childenv import search_path
from cagewrap.errors import (
    CagewrapError,
    ConfigInvalidError,
    ImageMissingError,
    InternalError,
    StorageError,
)
from cagewrap.image import commands, tidy
from cagewrap.image import recipe as recipes
from cagewrap.image.places import Places
from cagewrap.image.progress import Progress, Show
from cagewrap.image.recipe import Recipe
from cagewrap.image.store import Images, failure
from cagewrap.image.work import Work, import_tar
from cagewrap.paths import Paths
from cagewrap.waypoints import leads_through


class Builder:
    """Builds images for one owner."""

    def __init__(self, paths: Paths, env: Mapping[str, str], show: Show) -> None:
        """env: the caller's. show: is told how far the build is."""
        self.paths = paths
        self.places = Places(paths)
        self._written = sessions.written_by_cages(paths)
        self.env = {
            **_without_written(env, self._written),
            "PATH": search_path(env, self._written),
            "XDG_RUNTIME_DIR": paths.podman_runtime_dir,
        }
        self.images = Images(self.env)
        self._show = show

    def build(
        self, recipe: Recipe, name: str, *, fresh: bool = False, if_missing: bool = False
    ) -> bool:
        """Make the image `name`, or raise and leave the old one. False: it was there already.

        fresh: nothing of an earlier build is used. if_missing: only when there is no such image.
        """
        with self._locked():
            if if_missing and self.images.exists(name):
                return False
            with self._reporting() as progress:
                self._refuse_written(recipe)
                with self._scratch_dir() as scratch:
                    log = self.places.log
                    work = Work(self.images, log, recipe, progress, scratch, fresh=fresh)
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
            import_tar(self.images, name, os.path.abspath(tar_file), labels)
            if old and old != self.images.id_of(name):
                # Nameless now. podman keeps it while a cage still stands on it.
                self.images.podman("rmi", "--", old)
            self.places.write(name, {"recipe": digest})
            progress.end(image=name)

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

    def fail(self, error: CagewrapError) -> NoReturn:
        """There is no recipe: raise the error, and tell it to everyone who waits."""
        with self._locked(), self._reporting():
            raise error

    def _refuse_written(self, recipe: Recipe) -> None:
        path = recipe.settings.containerfile
        place = leads_through(path, self._written) if path else ""
        if place:
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
        with open(self.places.lock, "a", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._show({"event": "waiting", "elapsed_s": 0.0})
                fcntl.flock(file, fcntl.LOCK_EX)
            file.truncate(0)  # not before: the build that is waited for has its pid there
            file.write(f"{os.getpid()}\n")
            file.flush()
            try:
                yield
            finally:
                file.truncate(0)

    @contextmanager
    def _scratch_dir(self) -> Iterator[str]:
        """A directory that is gone afterwards; first, what killed builds left goes."""
        base = tidy.scratch_base(self.env)
        tidy.clear_killed(self.images, base)
        try:
            scratch = tempfile.mkdtemp(prefix=tidy.scratch_prefix(), dir=base)
        except OSError as error:
            raise StorageError(
                f"No directory can be made in {base}: {error.strerror}.",
                "make room there, or name another disk: TMPDIR=DIR cagewrap image build",
            ) from error
        try:
            os.chmod(scratch, 0o711)  # noqa: S103 - apt downloads as a user of its own
            yield scratch
        finally:
            tidy.clear_killed(self.images, base)


def _without_written(env: Mapping[str, str], written: Collection[str]) -> Mapping[str, str]:
    """The environment, less a TMPDIR in which an agent could change what an image is made of."""
    if leads_through(env.get("TMPDIR") or "/", written):
        return {name: value for name, value in env.items() if name != "TMPDIR"}
    return env


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
