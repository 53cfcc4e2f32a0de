"""podman's pause process, where it would keep a service from stopping.

A service or login that stops sends SIGTERM once to all it has, the pause process too. The podman
that then stops the container starts another, which nobody tells to end: systemd waits for it (90 s
for a service) and kills it. Measured on podman 5.4 and systemd 257.
"""

from __future__ import annotations

import os
import signal

from cagewrap.keeper import cgroups
from cagewrap.sessions import start_time

_PAUSE = b"catatonit\0-P\0"


def end_younger_pause(since_s: float) -> None:
    """End a pause process in our cgroup that was started after `since_s` (seconds since boot).

    One that is older was not killed, so we were stopped alone, and other cages need it.
    """
    since = since_s * os.sysconf("SC_CLK_TCK")
    for pid in cgroups.members(cgroups.cgroup_of("self")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if file.read() == _PAUSE and start_time(pid) >= since:
                    os.kill(pid, signal.SIGKILL)
        except OSError:
            continue
