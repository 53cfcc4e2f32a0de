"""The steps of one build."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress

from cagewrap import proc
from cagewrap.errors import StorageError
from cagewrap.image import commands
from cagewrap.image import recipe as recipes
from cagewrap.image.failures import explain_step
from cagewrap.image.progress import Progress
from cagewrap.image.recipe import Recipe
from cagewrap.image.store import Images, failure
from cagewrap.runtimes.failures import last_lines

_ANSWER_S = 3.0
"""How long a registry may take to answer before the base is made of Debian packages instead."""
_IMPORT_S = 1800.0


class Work:
    """One build, under the lock and with a scratch directory."""

    def __init__(
        self,
        images: Images,
        log: str,
        recipe: Recipe,
        progress: Progress,
        scratch: str,
        *,
        fresh: bool,
    ) -> None:
        """scratch: an empty directory of this build's. log: where all that is printed goes."""
        self.images = images
        self.log = log
        self.recipe = recipe
        self.progress = progress
        self.scratch = scratch
        self.fresh = fresh
        self.env = {**images.env, "TMPDIR": scratch}
        self.asked = asked = recipe.settings
        self.steps = 2 + bool(asked.packages or asked.run) + bool(asked.containerfile)
        text, self.paths = commands.build_environment(images.env)
        self._write("env", text, 0o600)  # an index's URL may have a password

    def build(self) -> None:
        """Make what is not there yet."""
        recipe = self.recipe
        workbench, added, whole = (
            recipes.workbench_hash(recipe),
            recipes.additions_hash(recipe),
            recipes.recipe_hash(recipe),
        )
        if self._is_wanted(workbench):
            base = self._make_base()
            self.progress.step(2, self.steps, f"installing the {self.asked.target}")
            context = os.path.join(self.scratch, "context")
            os.mkdir(context, 0o700)  # who may enter the scratch directory reads nothing of it
            os.mkdir(os.path.join(context, "apt"))
            for name, text in recipes.apt_files(recipe).items():
                self._write(f"context/apt/{name}", text)
            on = recipes.base_tag(base)
            labels = commands.labels(workbench, "", base)
            file = recipes.CONTAINERFILE
            self._podman_build(context, file, on, workbench, labels, self.asked.target)
        entry = self.images.find(recipes.tag(workbench))
        base = entry.base if entry is not None else ""
        if added != workbench and self._is_wanted(added):
            self.progress.step(3, self.steps, "adding your packages and commands")
            context = os.path.join(self.scratch, "additions")
            os.mkdir(context, 0o700)
            self._write("additions/Containerfile", recipes.additions_text(recipe))
            labels = commands.labels(added, workbench, base)
            file = os.path.join(context, "Containerfile")
            self._podman_build(context, file, recipes.tag(workbench), added, labels)
        if whole != added:
            file = self.asked.containerfile
            self.progress.step(self.steps, self.steps, f"building {file}")
            labels = commands.labels(whole, added, base)
            self._podman_build(os.path.dirname(file), file, recipes.tag(added), whole, labels)

    def _is_wanted(self, hash_: str) -> bool:
        return self.fresh or not self.images.exists(recipes.tag(hash_))

    def _podman_build(
        self,
        context: str,
        file: str,
        on: str,
        hash_: str,
        labels: Mapping[str, str],
        target: str = "",
    ) -> None:
        id_file = os.path.join(self.scratch, "id")
        with suppress(FileNotFoundError):
            os.unlink(id_file)
        self._keep_old(recipes.tag(hash_))
        self._tag(on, recipes.BUILDING)
        argv = commands.build_args(
            context, file, base=recipes.BUILDING, target=target, name=recipes.tag(hash_),
            labels=labels, scratch=self.scratch,
            mounts=(*self.paths, *recipes.local_directories(self.recipe)),
        )  # fmt: skip
        self._run(argv, id_file)

    def _tag(self, name: str, other: str) -> None:
        outcome = self.images.podman("tag", name, other)
        if outcome.returncode != 0:
            raise failure(outcome, name)

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
                raise explain_step(f"getting {ref}", self.progress.tail, self.log)
        self._keep_old(name)
        self._tag(ref, name)
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
        import_tar(self.images, name, tar_file, labels)
        os.unlink(tar_file)

    def _run(self, argv: tuple[str, ...], mark: str) -> None:
        """Run a step; it has done its work when `mark` exists."""
        what = self.progress.what
        code = proc.run(argv, env=self.env, line=self.progress.line)
        if code != 0 or not os.path.exists(mark):
            raise explain_step(what, self.progress.tail, self.log)

    def _keep_old(self, name: str) -> None:
        """An image that loses its name to a new one gets another, so that it can be told from
        nameless images of the owner's."""
        old = self.images.id_of(name)
        if old:
            self.images.podman("tag", old, f"{name.rpartition(':')[0]}:{old[:12]}")

    def _write(self, name: str, text: str, mode: int = 0o644) -> None:
        path = os.path.join(self.scratch, name)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with open(fd, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)


def import_tar(images: Images, name: str, tar_file: str, labels: Mapping[str, str]) -> None:
    """`podman import`."""
    argv = commands.import_args(name, tar_file, labels)
    outcome = proc.capture(argv, timeout_s=_IMPORT_S, env=images.env)
    if outcome.returncode == 0:
        return
    if "archive/tar" in outcome.stderr:
        raise StorageError(
            f"{tar_file} is not a root file system that podman can import: "
            f"{last_lines(outcome.stderr)}",
            "pack it with: tar --one-file-system -C ROOT -cf FILE .",
        )
    raise failure(outcome, name)
