"""Whether an agent means to have what is put back: one who tries often enough has it for a while.

What is put back is there for a moment each time, and a file can be exchanged for the owner's again
before it is looked at. So what is counted is what was taken out, and what was written without
leaving anything to take out.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection

SPAN_S = 10.0
ONE, ALL, ROUNDS = 8, 24, 60
"""So often within SPAN_S: the same path was put back; any in the root was; names in the root were
made or exchanged (a `git rebase` brings versions of the owner's, too)."""


class Insistence:
    """Of the agents of one cage."""

    def __init__(self) -> None:
        """Nothing was tried yet."""
        self.why = ""
        """Why the cage must not go on; "" when it may."""
        self._times: dict[str, deque[float]] = {}

    def put_back(self, path: str, *, is_near: bool) -> None:
        """Something was. is_near: at the root of the project, where the host looks at any time."""
        if self._count(path) >= ONE:
            self.why = f"{path!r} was put back {ONE} times in {SPAN_S:.0f} s, and comes again"
        elif is_near and self._count("") >= ALL:
            self.why = f"files like {path!r} were put back {ALL} times in {SPAN_S:.0f} s"

    def written(self, names: Collection[bytes]) -> None:
        """Files were opened in their place and written, whatever is in them now."""
        for name in names:
            self.put_back(name.decode(errors="replace"), is_near=True)

    def made(self) -> None:
        """Some were made or exchanged."""
        if self._count("/") >= ROUNDS:
            self.why = f"files that this machine may run came {ROUNDS} times in {SPAN_S:.0f} s"

    def _count(self, key: str) -> int:
        now = time.monotonic()
        times = self._times.setdefault(key, deque(maxlen=ROUNDS))
        times.append(now)
        while times[0] < now - SPAN_S:
            times.popleft()
        return len(times)
