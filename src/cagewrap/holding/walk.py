"""Looking through a whole project for what an agent has planted below its root.

Only what was written since it began to work is looked at: a file's change time cannot be set by
anybody. Runs in a process of its own.
"""

from __future__ import annotations

import json
import os
import stat
import time

from cagewrap import beneath
from cagewrap.holding import repositories, tree
from cagewrap.holding.names import DIRECTORIES, ENDINGS, NESTED, NESTED_KNOWN, is_nested
from cagewrap.holding.shelf import hold

WALK_S = 30.0
"""How long one walk may take, and how many directories it looks into."""
WALK_DIRECTORIES = 500_000
FINDINGS = 1000

_TABLES = (*NESTED, *NESTED_KNOWN)
_BY_NAME = {path.rpartition("/")[2] for path in _TABLES}
_LINKS = {path.rpartition("/")[0] for path in _TABLES if "/" in path} | {".git"}
_ENDINGS = tuple(ENDINGS)


class Findings:
    """new: watched files that were written meanwhile. old: others, the owner's. tamed: what was
    changed in repositories. links: symlinks that lead to files of cages. is_whole: whether all was
    looked at."""

    def __init__(
        self,
        new: list[str] | None = None,
        old: list[str] | None = None,
        tamed: list[str] | None = None,
        *,
        is_whole: bool = True,
        seconds: float = 0.0,
    ) -> None:
        """Empty, unless it is said."""
        self.new: list[str] = [] if new is None else new
        self.old: list[str] = [] if old is None else old
        self.tamed: list[str] = [] if tamed is None else tamed
        self.is_whole = is_whole
        self.seconds = seconds

    def dump(self) -> bytes:
        """As JSON, for another process."""
        return json.dumps(vars(self)).encode()


def load(data: bytes) -> Findings:
    """What `Findings.dump` gave."""
    return Findings(**json.loads(data))


class Walk:
    """One walk through a project."""

    def __init__(
        self,
        project: str,
        since_ns: int,
        state_dir: str,
        files: str,
        limit_s: float = WALK_S,
    ) -> None:
        """since_ns: when the agent began. state_dir: cagewrap's own; nothing may lead there.
        files: where what is taken out is kept."""
        self._limit_s = limit_s
        self._project = project
        self.since_ns = since_ns
        self._state_dir = os.path.realpath(state_dir)
        self._files = files
        self._root = -1
        self.found = Findings()

    def run(self) -> Findings:
        """Look at everything."""
        began = time.monotonic()
        self._root = tree.open_project(self._project)
        try:
            self._walk(began)
        finally:
            os.close(self._root)
        self.found.seconds = time.monotonic() - began
        return self.found

    def _walk(self, began: float) -> None:
        count = 0
        todo = [""]
        while todo:
            count += 1
            if count > WALK_DIRECTORIES or time.monotonic() - began > self._limit_s:
                self.found.is_whole = False
                break
            path = todo.pop()
            todo += self._look(path)

    def _look(self, path: str) -> list[str]:
        """Look at one directory; those in it that are to be looked at."""
        try:
            fd = beneath.open_dir(self._root, path.split("/") if path else ())
        except OSError:
            return []
        try:
            with os.scandir(fd) as entries:
                found = {entry.name: entry for entry in entries}
        except OSError:
            return []
        finally:
            os.close(fd)
        if path and "HEAD" in found and ("commondir" in found or {"objects", "refs"} <= set(found)):
            self._tame(path)
        return [below for entry in found.values() if (below := self._look_at(path, entry))]

    def _look_at(self, path: str, entry: os.DirEntry[str]) -> str:
        """Look at something in a directory; its path if it is to be looked into."""
        name = entry.name
        below = f"{path}/{name}" if path else name
        if entry.is_symlink():
            self._look_at_link(path, name, below)
        elif entry.is_dir(follow_symlinks=False):
            if name == ".git" and path:
                self._tame(below)
            elif name != ".git" and (path or name not in DIRECTORIES):
                return below
        elif name in _BY_NAME or name.endswith(_ENDINGS):
            self._look_at_file(below)
        elif name == ".git" and path:
            self._look_at_git_file(path, below)
        return ""

    def _tame(self, path: str) -> None:
        def keep(one: str) -> None:
            hold(self._root, one, self._files)

        if len(self.found.tamed) < FINDINGS:
            self.found.tamed += repositories.tame(self._root, path, self.since_ns, keep)

    def _look_at_file(self, below: str) -> None:
        if not is_nested(below, known=True):
            return
        stamp = tree.stamp_at(self._root, below)
        if stamp is None or len(self.found.new) + len(self.found.old) >= FINDINGS:
            return
        (self.found.new if stamp[4] >= self.since_ns else self.found.old).append(below)

    def _look_at_git_file(self, path: str, below: str) -> None:
        """A `.git` file may lead to a directory in the project, which is looked at itself, or is
        the project's own repository; not elsewhere."""
        stamp = tree.stamp_at(self._root, below)
        if stamp is None or stamp[4] < self.since_ns:
            return
        content = tree.read(self._root, below) if stamp[2] < 8192 else None
        named = os.fsdecode(content or b"").removeprefix("gitdir:").strip()
        real = os.path.realpath(os.path.join(self._project, path, named))
        if not stat.S_ISREG(stamp[0]) or not real.startswith(self._project + "/"):
            self._take(below)

    def _look_at_link(self, path: str, name: str, below: str) -> None:
        """A symlink to a directory of cages, whose repositories and settings are an agent's, or
        one in the place of a directory with settings."""
        stamp = tree.stamp_at(self._root, below)
        if stamp is None or stamp[4] < self.since_ns:
            return
        real = os.path.realpath(os.path.join(self._project, below))
        leads_out = not real.startswith(self._project + "/")
        if (real + "/").startswith(self._state_dir + "/") or (
            path and name in _LINKS and leads_out
        ):
            self._take(below)

    def _take(self, path: str) -> None:
        try:
            hold(self._root, path, self._files)
        except OSError:
            return
        self.found.tamed.append(path)
