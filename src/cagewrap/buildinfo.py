"""Which build of cagewrap this is: what `cagewrap --version` says after the number."""

from __future__ import annotations

import os
from typing import NamedTuple

from cagewrap import proc
from cagewrap.errors import CagewrapError

SOURCE = "source"
_GIT_S = 5.0


class Build(NamedTuple):
    """kind: `source`, `directory` or `single file`. commit: what git calls it, "" if unknown."""

    kind: str
    commit: str


def read_build() -> Build:
    """The build that runs. A frozen one has it in a file that `spec/build` writes; a checkout asks
    git."""
    package = os.path.dirname(os.path.abspath(__file__))
    try:
        with open(os.path.join(package, "build-info"), encoding="utf-8") as file:
            kind, commit = file.read().splitlines()
    except FileNotFoundError:
        return Build(SOURCE, _checkout_commit(os.path.dirname(os.path.dirname(package))))
    return Build(kind, commit)


def describe_build(build: Build) -> str:
    """In words, such as `directory build, commit 0123456789ab`."""
    kind = build.kind if build.kind == SOURCE else f"{build.kind} build"
    return f"{kind}, commit {build.commit}" if build.commit else kind


def _checkout_commit(root: str) -> str:
    if not os.path.exists(os.path.join(root, ".git")):
        return ""
    argv = ("git", "-C", root, "rev-parse", "--short=12", "HEAD")
    try:
        done = proc.capture(argv, timeout_s=_GIT_S, env=os.environ)
    except CagewrapError:  # no git here
        return ""
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else ""
