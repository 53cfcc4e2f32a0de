"""What the sessions of one project share about what is held back of it.

`$XDG_STATE_HOME/cagewrap/projects/KEY/`: the base of the watched files, the names of directories
that were made in the project, and a mark for each session whose agents are at work.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterable

from cagewrap import beneath, sessions
from cagewrap.holding import tree
from cagewrap.holding.directory import key_of, locked
from cagewrap.holding.tree import write_private
from cagewrap.paths import Paths

SLACK_NS = 12_000_000
"""How far behind the clock a file's change time may be: a tick of a kernel with 100 a second."""


class Place:
    """One project's. Callers hold `locked(place.dir)`."""

    def __init__(self, paths: Paths, project: str) -> None:
        """project: real path. Makes nothing."""
        self.paths = paths
        self.project = project
        self.dir = os.path.join(paths.state_dir, "projects", key_of(project))
        self._marks = os.path.join(self.dir, "active")

    def marks(self) -> dict[str, int]:
        """Which sessions' agents may have written since their files were looked at, and since
        when (nanoseconds since the epoch)."""
        found: dict[str, int] = {}
        try:
            names = os.listdir(self._marks)
        except FileNotFoundError:
            return {}
        for name in names:
            try:
                with open(os.path.join(self._marks, name), encoding="ascii") as file:
                    text = file.read()
            except FileNotFoundError:
                continue
            found[name] = int(text) if text.isdigit() else 0
        return found

    def since_ns(self) -> int:
        """Since when agents may have written; far in the future while none does."""
        return min(self.marks().values(), default=1 << 62)

    def mark(self, name: str) -> None:
        """A session's agents begin; a mark that is there says since when already."""
        os.makedirs(self._marks, mode=0o700, exist_ok=True)
        path = os.path.join(self._marks, name)
        if not os.path.exists(path):
            write_private(path, str(time.time_ns() - SLACK_NS).encode())

    def unmark(self, name: str) -> None:
        """All that a session's agents did was looked at; so was what others did that are dead."""
        for one in self.marks():
            if one == name or not self._lives(one):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(self._marks, one))

    def _lives(self, name: str) -> bool:
        """Whether a session may have anything running, or is being started."""
        if os.path.exists(self.paths.socket_file(name)):
            return True
        state = sessions.read_state(self.paths, name)
        return sessions.is_alive(state.init_pid, state.init_start, state.boot_id)

    # -- directories -------------------------------------------------------------------------------

    def known(self) -> set[str]:
        """Directories that are covered in the cages of the project that run."""
        try:
            with open(self._known_file, encoding="utf-8") as file:
                return set(json.load(file))
        except (OSError, ValueError):
            return set()

    def learn(self, paths: Iterable[str]) -> None:
        """Say which these are."""
        wanted = set(paths)
        if wanted != self.known():
            write_private(self._known_file, json.dumps(sorted(wanted)).encode())

    def made(self) -> list[str]:
        """Directories that are in the project because a cage needs them."""
        try:
            with open(self._made_file, encoding="utf-8") as file:
                return list(json.load(file))
        except (OSError, ValueError):
            return []

    def make(self, path: str, root: int = -1) -> None:
        """Make a directory in the project. root: the project's, else it is opened.

        Raises OSError.
        """
        opened = root if root >= 0 else tree.open_project(self.project)
        try:
            with (
                tree.parent(opened, path) as (above, name),
                contextlib.suppress(FileExistsError),
            ):
                os.mkdir(name, 0o755, dir_fd=above)
                self.note_made(path)
                fd = beneath.open_dir(above, (name,))
                os.fchmod(fd, 0o755)
                os.close(fd)
        finally:
            if root < 0:
                os.close(opened)

    def note_made(self, path: str) -> None:
        """A directory was made in the project."""
        write_private(self._made_file, json.dumps(sorted({*self.made(), path})).encode())

    def clear(self, name: str) -> None:
        """The session has stopped: remove what was made, unless it has got a content or another
        session of the project runs."""
        made = self.made()
        others = [
            one.name
            for one in sessions.list_records(self.paths)
            if one.project == self.project and one.name != name
        ]
        if not made or any(self._lives(one) for one in others):
            return
        with contextlib.suppress(OSError):
            root = tree.open_project(self.project)
            for path in made:
                with contextlib.suppress(OSError), tree.parent(root, path) as (above, last):
                    os.rmdir(last, dir_fd=above)
            os.close(root)
        write_private(self._made_file, b"[]")

    @property
    def _known_file(self) -> str:
        return os.path.join(self.dir, "known.json")

    @property
    def _made_file(self) -> str:
        return os.path.join(self.dir, "made.json")


def clear_after(paths: Paths, name: str, project: str) -> None:
    """A session is not running: take its empty directories out of the project."""
    place = Place(paths, project)
    if not os.path.isdir(place.dir):
        return
    with locked(place.dir):
        place.clear(name)


def forget(paths: Paths, project: str, name: str = "") -> None:
    """A session was removed, or `name` will be: forget its project if it was the last."""
    records = sessions.list_records(paths)
    if any(one.project == project and one.name != name for one in records):
        return
    shutil.rmtree(Place(paths, project).dir, ignore_errors=True)


def forget_strays(paths: Paths) -> None:
    """Forget the projects that have no session."""
    known = {key_of(one.project) for one in sessions.list_records(paths)}
    above = os.path.join(paths.state_dir, "projects")
    with contextlib.suppress(FileNotFoundError):
        for key in os.listdir(above):
            if key not in known:
                shutil.rmtree(os.path.join(above, key), ignore_errors=True)
