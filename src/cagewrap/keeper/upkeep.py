"""What changed on the host since the container was started, looked at before each message."""

from __future__ import annotations

import os
from collections.abc import Callable

from cagewrap import stamps
from cagewrap.errors import SessionError
from cagewrap.keeper import guest, namespaces
from cagewrap.keeper.inheritance import Known
from cagewrap.sessions import Record

RESOLV_CONF = "/etc/resolv.conf"


class Upkeep:
    """Remembers what the host looked like when the container was started."""

    def __init__(self, record: Record, init_pid: int) -> None:
        """Call it once the container runs."""
        self._record = record
        self._init_pid = init_pid
        self._project_id = _file_id(record.project)
        self._resolv_stamp = stamps.stamp(RESOLV_CONF)

    def hand_on(self) -> Known:
        """For the keeper that goes on as another build."""
        return {"project": self._project_id, "resolv_conf": self._resolv_stamp}

    def go_on(self, known: Known) -> None:
        """As that keeper."""
        device, inode = known.get("project", self._project_id)
        self._project_id = (device, inode)
        found, size, changed = known.get("resolv_conf", stamps.NO_FILE)  # it is written anew then
        self._resolv_stamp = (found, size, changed)

    def is_project_replaced(self) -> bool:
        """Whether another directory lies at the project's path (the cage sees the old one)."""
        return _file_id(self._record.project) != self._project_id

    def check(self, note: Callable[[str], None]) -> None:
        """Renew what can be renewed. Raises SessionError when the project is another directory."""
        if self.is_project_replaced():
            raise SessionError(
                f"The directory {self._record.project} was replaced since the cage was started; "
                "the cage still sees the old one.",
                f"cagewrap stop {self._record.name}, then send the message again",
            )
        stamp = stamps.stamp(RESOLV_CONF)
        if stamp == self._resolv_stamp or self._record.network == "none":
            return
        self._resolv_stamp = stamp
        try:
            self._renew_resolv_conf()
        except OSError as error:
            note(f"the cage's DNS settings could not be renewed: {error}")

    def _renew_resolv_conf(self) -> None:
        host = _content(RESOLV_CONF)
        inside = namespaces.run_inside(
            self._init_pid, ("mnt",), lambda: namespaces.read_regular(RESOLV_CONF)
        )
        guest.write_resolv_conf(self._init_pid, guest.resolv_conf(host, inside))


def _file_id(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0)
    return (found.st_dev, found.st_ino)


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
