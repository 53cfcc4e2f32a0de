"""Which of an agent's conversations of one project go from the host into a cage, and out of it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence

from cagewrap import beneath, transcripts
from cagewrap.twins import MOST_ENTRIES, Side, Twins, open_side

HEAD_BYTES = 256 * 1024
"""Where a transcript says its working directory."""
MAX_NEW = 2000
"""How many conversations one keeper makes on the host."""
OLD_S = 30 * 86400.0
"""Older ones come into the cage only when asked for: claude itself removes them by default."""


class Exchange:
    """Between a project's transcripts on the host and those in the cage.

    brought: ids of the conversations that came from the host; kept by the caller. is_ours: whether
    a working directory lies in the project.
    """

    def __init__(
        self,
        projects_dir: str,
        home_dir: str,
        is_ours: Callable[[str], bool],
        twins: Twins,
        brought: set[str],
    ) -> None:
        """Nothing is done yet."""
        self.projects_dir = projects_dir
        self.home_dir = home_dir
        self.is_ours = is_ours
        self.twins = twins
        self.brought = brought
        self.foreign: dict[str, str] = {}
        """Slugs that another directory shares with this project, and one of its conversations."""
        self.made = 0
        self._verdicts: dict[tuple[str, int], tuple[bool | None, int]] = {}
        self._judged: dict[str, set[str]] = {}
        self._touched: set[str] = set()

    def carry(self, cwds: Sequence[str], wanted: str, until: float, *, fully: bool = False) -> bool:
        """Carry what is new of the conversations begun in these directories; whether all was.

        wanted: the id of one that goes first, however old. until: monotonic time to stop at.
        fully: look beside the transcripts of this keeper's time too, whether they grew or not.
        Raises OSError when there is no such directory on the host.
        """
        with contextlib.ExitStack() as stack:
            root = beneath.open_root(self.projects_dir)
            stack.callback(os.close, root)
            home = beneath.open_root(self.home_dir)
            stack.callback(os.close, home)
            is_all = True
            for slug in self._slugs(home, cwds):
                is_all &= self._carry_slug(stack, (root, home), slug, wanted, until, fully=fully)
            return is_all

    def is_known(self, slug: str) -> bool:
        """Whether the host has conversations of this project, and no others, under that name."""
        return bool(self._judged.get(slug)) and slug not in self.foreign

    def _slugs(self, home: int, cwds: Sequence[str]) -> list[str]:
        """The directories to look at: on either side those of `cwds`, in the cage those below."""
        form = self.twins.form
        inside = _cage_slugs(home, form.parts)
        below = tuple(form.slug(cwd) + "-" for cwd in cwds)
        chosen = {name for name in inside if name.startswith(below)}
        for name in (*inside, *os.listdir(self.projects_dir)):
            if any(form.is_slug(name, cwd) for cwd in cwds):
                chosen.add(name)
        return sorted(chosen)

    def _carry_slug(
        self,
        stack: contextlib.ExitStack,
        roots: tuple[int, int],
        slug: str,
        wanted: str,
        until: float,
        *,
        fully: bool,
    ) -> bool:
        host = open_side(stack, roots[0], (slug,), make=False)
        if host is not None and self._is_foreign(host, slug):
            return True
        parts = (*self.twins.form.parts, slug)
        cage = open_side(stack, roots[1], parts, make=host is not None)
        if cage is None:
            return True
        for one in self._news(host, cage, slug, wanted, fully=fully):
            key = f"{slug}/{one}"
            if time.monotonic() > until:
                return False
            if not self._is_of_project(host, cage, one):
                continue
            host = host or open_side(stack, roots[0], (slug,), make=True)
            if host is None:
                return True
            if one + ".jsonl" in cage.files:
                self._touched.add(key)
            self._carry_conversation(stack, host, cage, key, one, until)
        return True

    def _is_foreign(self, host: Side, slug: str) -> bool:
        """Whether the host's directory of that name holds conversations of another directory."""
        if slug in self.foreign:
            return True
        judged = self._judged.setdefault(slug, set())
        for name in host.files.keys() - judged:
            one = self.twins.form.stem(name)
            verdict = self._verdict(host, one) if one else True
            if verdict is False:
                self.foreign[slug] = one
                self.twins.notes.append(
                    f"{self.twins.form.agent} keeps conversations of another directory under the "
                    f"same name as this project's ({slug}, {one}): "
                    "none of them is shared with the cage"
                )
                return True
            if verdict:
                judged.add(name)
        return False

    def _is_of_project(self, host: Side | None, cage: Side, one: str) -> bool:
        """Whether a conversation is of this project, and may be made on the host if it is not."""
        if host is not None and one + ".jsonl" in host.files:
            return self._verdict(host, one) is True
        return self.made < MAX_NEW and self._verdict(cage, one) is True

    def _verdict(self, side: Side, one: str) -> bool | None:
        """Whether a conversation was begun in this project; None if it does not say (yet)."""
        found = side.files[one + ".jsonl"]
        key = (one, found.inode)
        is_ours, size = self._verdicts.get(key, (None, -1))
        if is_ours is None and size != min(found.size, HEAD_BYTES):
            try:
                with open(beneath.open_regular(side.fd, one + ".jsonl"), "rb") as file:
                    cwd = transcripts.recorded_cwd(file.read(HEAD_BYTES // 16))
                    if not cwd:
                        file.seek(0)
                        cwd = transcripts.recorded_cwd(file.read(HEAD_BYTES))
            except OSError:
                return None
            is_ours = self.is_ours(cwd) if cwd else None
            self._verdicts[key] = (is_ours, min(found.size, HEAD_BYTES))
        return is_ours

    def _news(
        self, host: Side | None, cage: Side, slug: str, wanted: str, *, fully: bool
    ) -> list[str]:
        """The conversations that one side has more of than was carried: the wanted one, then the
        latest first."""
        found: dict[str, int] = {}
        ours = host.files if host else {}
        oldest = (time.time() - OLD_S) * 1e9
        for name in {*ours, *cage.files}:
            here, there = ours.get(name), cage.files.get(name)
            key = f"{slug}/{name[:-6]}"
            known = self.twins.positions.get(key)
            if here and there:
                as_known = known == (here[0], here[1], there[0], there[1])
                is_news = not as_known or (fully and key in self._touched)
            elif here:
                is_news = here.mtime_ns > oldest or name[:-6] == wanted
            else:
                # The owner removed it on the host: it comes back only when it goes on in the cage.
                is_news = known is None or (there is not None and there.size > known[3])
            if is_news and self.twins.form.stem(name):
                found[name[:-6]] = max(file.mtime_ns for file in (here, there) if file)
        return sorted(found, key=lambda one: (one == wanted, found[one]), reverse=True)

    def _carry_conversation(
        self,
        stack: contextlib.ExitStack,
        host: Side,
        cage: Side,
        key: str,
        one: str,
        until: float,
    ) -> None:
        name = one + ".jsonl"
        if name not in host.files:
            self.made += 1
        if name not in cage.files and key not in self.twins.positions:
            self.brought.add(one)
        self.twins.carry_lines(host, cage, key, name, until)
        for part in self.twins.form.beside:
            self._carry_beside(stack, host, cage, (one, part), key, until)

    def _carry_beside(
        self,
        stack: contextlib.ExitStack,
        host: Side,
        cage: Side,
        parts: tuple[str, str],
        key: str,
        until: float,
    ) -> None:
        """What lies in a directory beside a transcript."""
        ours = open_side(stack, host.fd, parts, make=False)
        theirs = open_side(stack, cage.fd, parts, make=ours is not None)
        if theirs is None:
            return
        ours = ours or open_side(stack, host.fd, parts, make=True)
        if ours is None:
            return
        for name in sorted(ours.files.keys() | theirs.files.keys())[:MAX_NEW]:
            path = f"{key}/{parts[1]}/{name}"
            kind = transcripts.kind_beside(parts[1], name)
            if kind == "lines":
                self.twins.carry_lines(ours, theirs, path, name, until)
            elif kind:
                self.twins.carry_small(ours, theirs, path, name, kind)


def _cage_slugs(home: int, parts: tuple[str, ...]) -> list[str]:
    try:
        fd = beneath.open_dir(home, parts)
    except OSError:
        return []
    try:
        return os.listdir(fd)[:MOST_ENTRIES]
    finally:
        os.close(fd)
