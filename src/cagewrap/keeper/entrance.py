"""What is done inside a container as soon as it runs, by one child that may be made beforehand."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cagewrap.errors import MountRefusedError
from cagewrap.keeper import covers, guest, namespaces
from cagewrap.keeper.covers import Cover, Identity
from cagewrap.keeper.guest import Owner


class Entered(NamedTuple):
    """seen: what is to be seen now in the wanted places, nothing at all if one could not be
    mounted. failed: why HOME could not be set, or ""."""

    seen: tuple[Identity, ...]
    failed: str


class Entrance:
    """The way into one container, taken once."""

    def __init__(
        self, expected: Mapping[str, Identity], owner: Owner, wanted: Sequence[Cover]
    ) -> None:
        """expected: what must be mounted, by place inside. wanted: what to mount besides."""
        self._expected = dict(expected)
        self._owner = owner
        self._wanted = tuple(wanted)
        self._child = namespaces.Waiting(self._work)

    def enter(self, init_pid: int) -> Entered:
        """See that what is mounted is what was looked at before podman was started, mount what is
        wanted, and set HOME.

        podman resolves the sources of mounts later than we looked, and an agent of another cage
        may swap a directory for a symlink in between. No agent runs in this cage yet. Raises
        MountRefusedError or OSError.
        """
        answer = json.loads(self._child.ask(str(init_pid).encode()))
        if "differs" in answer:
            raise MountRefusedError(
                f"What is mounted at {answer['differs']} in the cage is not what was there when it "
                "was started: something was swapped in between. An agent may have done it.",
                "look at the directory, then send the message again",
            )
        seen = tuple((int(device), int(inode)) for device, inode in answer["seen"])
        return Entered(seen, answer["failed"])

    def close(self) -> None:
        """The container does not come."""
        self._child.close()

    def _work(self, question: bytes) -> bytes:
        """In the child."""
        init_pid = int(question)
        user = namespaces.podman_user_namespace(init_pid)
        mounts, own_user = (
            os.open(f"/proc/{init_pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
            for kind in ("mnt", "user")
        )
        is_nested = os.fstat(own_user).st_ino != os.fstat(user).st_ino
        namespaces.enter(user)
        try:
            clones = covers.clone(self._wanted) if self._wanted else []
        except OSError:
            clones = []
        namespaces.enter(mounts)
        for target, expected in self._expected.items():
            found = os.stat(target, follow_symlinks=False)
            if (found.st_dev, found.st_ino) != expected:
                return json.dumps({"differs": target}).encode()
        seen = self._attach(clones)
        if is_nested:  # files of root's inside are not podman's
            namespaces.enter(own_user)
        failed = ""
        try:
            guest.set_home(self._owner)
        except OSError as error:
            failed = str(error)
        return json.dumps({"seen": seen, "failed": failed}).encode()

    def _attach(self, clones: Sequence[int]) -> list[Identity]:
        try:
            return covers.attach_clones(clones, self._wanted)
        except (OSError, ValueError):  # whoever wanted it tries again, and says why it fails
            return [(0, 0)] * len(self._wanted)
