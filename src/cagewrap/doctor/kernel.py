"""What the kernel and the machine's set-up give: the tun device and control groups."""

from __future__ import annotations

import os

from cagewrap.doctor.host import Host, file_system_of
from cagewrap.doctor.result import CheckResult, failed, passed, warned
from cagewrap.errors import CgroupError, NetworkSetupError
from cagewrap.runtimes.failure_rules.machine import LINGER, UNIFIED

_MOUNT = "/sys/fs/cgroup"


def check_tun(host: Host) -> CheckResult:
    """/dev/net/tun can be opened; opening alone makes no interface."""
    wanted = "/dev/net/tun, which this user may open"
    try:
        os.close(os.open(host.path("/dev/net/tun"), os.O_RDWR | os.O_CLOEXEC))
    except PermissionError:
        found, fix = "/dev/net/tun may not be opened", "sudo chmod 666 /dev/net/tun"
        return failed("tun", NetworkSetupError, found, wanted, fix)
    except OSError as error:
        found = f"/dev/net/tun: {error.strerror}"
        return failed("tun", NetworkSetupError, found, wanted, "sudo modprobe tun")
    return passed("tun", "/dev/net/tun", wanted)


def check_cgroup_version(host: Host, runtime: str) -> CheckResult:
    """Control groups of version 2 alone; crun refuses controllers of both versions at once."""
    wanted = "control groups of version 2"
    if file_system_of(host, _MOUNT).kind == "cgroup2":
        return passed("cgroups", "version 2", wanted)
    controllers = host.read(_MOUNT + "/unified/cgroup.controllers").strip()
    if controllers and runtime == "crun":
        found = f"hybrid: version 1 mounted, and {controllers} in version 2, which crun refuses"
        return failed("cgroups", CgroupError, found, wanted, UNIFIED)
    found = "version 1: no limits, and podman 6 does not support it"
    return warned("cgroups", found, wanted, UNIFIED)


def check_cgroup_writable(host: Host) -> CheckResult:
    """A message's processes can be put into a cgroup of their own, and so be ended together."""
    wanted = "a control group that this user may divide"
    own = _own_cgroup(host)
    if host.root:
        return passed("cgroup-delegation", own, wanted)
    if os.path.exists(os.path.join(host.env.get("XDG_RUNTIME_DIR", ""), "systemd/private")):
        return passed("cgroup-delegation", "systemd of this user makes one", wanted)
    attempt = f"{own}/cagewrap-doctor-{os.getpid()}"
    try:
        if not own:
            raise FileNotFoundError
        os.mkdir(attempt)
        os.rmdir(attempt)
    except OSError:
        found = (
            f"{own or 'the control group'} cannot be divided: a daemon that the agent starts may "
            "outlive a cancelled message"
        )
        return warned("cgroup-delegation", found, wanted, LINGER)
    return passed("cgroup-delegation", own, wanted)


def _own_cgroup(host: Host) -> str:
    for line in host.read("/proc/self/cgroup").splitlines():
        if line.startswith("0::"):
            return _MOUNT + line.removeprefix("0::").rstrip("/")
    return ""
