"""A project whose `.git` is a symlink, which nothing can be mounted on."""

from __future__ import annotations

import contextlib
import os


class GitLink:
    """Puts such a symlink back when an agent has exchanged it."""

    def __init__(self, project: str) -> None:
        """Looks at what the host has."""
        self._path = os.path.join(project, ".git")
        self._text = self._read()
        self._is_told = False

    def hand_on(self) -> tuple[str, bool]:
        """What it leads to, and whether that was told: an agent may exchange it at any time."""
        return self._text, self._is_told

    def go_on(self, text: str, is_told: bool) -> None:  # noqa: FBT001
        """As `hand_on` said."""
        self._text, self._is_told = text, is_told

    @property
    def is_kept(self) -> bool:
        """Whether the project's `.git` is a symlink that is put back."""
        return bool(self._text)

    def keep(self, notes: list[str]) -> None:
        """Look again. What lies there instead stays in the project, under another name."""
        if not self._text:
            return
        if not self._is_told:
            self._is_told = True
            notes.append(
                "this project's .git is a symlink, which an agent can exchange: cagewrap puts it "
                "back a moment later, and in that moment your git may run what lies there. A file "
                f"is as good for git: echo 'gitdir: {os.path.realpath(self._path)}' > .git"
            )
        if self._read() == self._text:
            return
        aside = f"{self._path}.agent-{os.urandom(4).hex()}"
        with contextlib.suppress(OSError):
            if os.path.lexists(self._path):
                os.rename(self._path, aside)
                notes.append(f"the agent has exchanged the symlink .git: what it made is {aside!r}")
            os.symlink(self._text, self._path)

    def _read(self) -> str:
        try:
            return os.readlink(self._path)
        except OSError:
            return ""
