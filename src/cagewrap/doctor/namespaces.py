"""Whether this user may have a user namespace with more than one id in it."""

from __future__ import annotations

import os
import stat

from cagewrap.doctor.host import Host, file_system_of
from cagewrap.doctor.result import CheckResult, failed, passed, warned
from cagewrap.errors import UserNamespaceError
from cagewrap.runtimes.failure_rules.owner import NEW_PRIVILEGES
from cagewrap.runtimes.failures import last_lines
from cagewrap.runtimes.subids import WANTED_COUNT, SubIds, count_of, free_range, parse_subids

_UNSHARE_S = 10.0
_SYSCTL_FILE = "/etc/sysctl.d/60-cagewrap.conf"
_FORBIDDING = (
    ("user.max_user_namespaces", "0", "15000"),
    ("kernel.unprivileged_userns_clone", "0", "1"),
)
_APPARMOR = "kernel.apparmor_restrict_unprivileged_userns"


def check_user(host: Host) -> CheckResult:
    """An ordinary user: a cage of root's would be root on this machine."""
    wanted = "an ordinary user"
    if host.uid == 0:
        fix = "run cagewrap as the user who owns the project"
        return failed("user", UserNamespaceError, "this is root", wanted, fix)
    return passed("user", f"{host.user} ({host.uid})", wanted)


def check_subids(host: Host) -> CheckResult:
    """Ranges for this user in both files, long enough and nobody else's."""
    wanted = f"{WANTED_COUNT} ids for {host.user} in /etc/subuid and /etc/subgid"
    uids = parse_subids(host.read("/etc/subuid"))
    gids = parse_subids(host.read("/etc/subgid"))
    free = free_range((*uids, *gids))
    fix = (
        f"sudo usermod --add-subuids {free} --add-subgids {free} {host.user} && "
        "podman system migrate"
    )
    counts = [count_of(ranges, name=host.user, uid=host.uid) for ranges in (uids, gids)]
    if 0 in counts and "subid:" in host.read("/etc/nsswitch.conf"):
        return passed("subids", "left to the service named in /etc/nsswitch.conf", wanted)
    found = f"{counts[0]} in /etc/subuid, {counts[1]} in /etc/subgid"
    if 0 in counts:
        return failed("subids", UserNamespaceError, found, wanted, fix)
    if min(counts) < WANTED_COUNT:
        return warned("subids", f"{found}: too few for images with high ids", wanted, fix)
    other = _shared_with(uids, host) or _shared_with(gids, host)
    if other:
        found = f"the ids of {host.user} are also those of {other}, who can reach into its cages"
        return warned("subids", found, wanted, fix)
    return passed("subids", found, wanted)


def check_id_maps(host: Host, program: str) -> CheckResult:
    """newuidmap or newgidmap is there and may do its work."""
    wanted = f"{program}, setuid root or with its file capability"
    place = host.find(program)
    if not place:
        found = f"{program} is not on PATH"
        return failed(program, UserNamespaceError, found, wanted, "sudo apt-get install uidmap")
    info = os.stat(place)
    is_setuid = bool(info.st_mode & stat.S_ISUID) and info.st_uid == 0
    if not is_setuid and not _has_capability(place):
        found = f"{place} is neither setuid root nor has it a file capability"
        return failed(program, UserNamespaceError, found, wanted, f"sudo chmod u+s {place}")
    if "nosuid" in file_system_of(host, os.path.realpath(place)).options:
        found = f"{place} lies on a file system mounted nosuid"
        fix = "mount that file system without nosuid"
        return failed(program, UserNamespaceError, found, wanted, fix)
    return passed(program, place, wanted)


def check_no_new_privileges(host: Host) -> CheckResult:
    """This process may gain privileges by newuidmap's setuid bit."""
    wanted = "setuid programs work for this process"
    if "NoNewPrivs:\t1" in host.read("/proc/self/status"):
        found = "no-new-privileges is set by what started cagewrap, so newuidmap cannot work"
        return failed("no-new-privileges", UserNamespaceError, found, wanted, NEW_PRIVILEGES)
    return passed("no-new-privileges", "not set", wanted)


def check_user_namespaces(host: Host) -> CheckResult:
    """The kernel lets an ordinary user make a user namespace: asked, and tried."""
    wanted = "an ordinary user may make a user namespace"
    for name, forbidden, value in _FORBIDDING:
        if host.sysctl(name) == forbidden:
            found, fix = f"{name} is {forbidden}", _set_sysctl(name, value)
            return failed("user-namespaces", UserNamespaceError, found, wanted, fix)
    if host.find("unshare"):
        outcome = host.run("unshare", "--user", "true", timeout_s=_UNSHARE_S)
        if outcome.returncode:
            found = last_lines(outcome.stderr) or "unshare --user failed"
            fix = (
                _set_sysctl(_APPARMOR, "0")
                if host.sysctl(_APPARMOR) == "1"
                else "start cagewrap outside of the chroot, container or sandbox that forbids it"
            )
            return failed("user-namespaces", UserNamespaceError, found, wanted, fix)
    return passed("user-namespaces", "a user namespace could be made", wanted)


def check_apparmor(host: Host) -> CheckResult:
    """Ubuntu since 23.10 lets only programs with a profile have capabilities in a namespace."""
    wanted = "no AppArmor restriction, or a profile that lets podman make user namespaces"
    if host.sysctl(_APPARMOR) != "1":
        return passed("apparmor", "not restricted", wanted)
    place = os.path.realpath(host.find("podman") or "/usr/bin/podman")
    for profile in ("podman", "usr.bin.podman"):
        text = host.read("/etc/apparmor.d/" + profile)
        if place in text and "userns" in text:
            return passed("apparmor", f"/etc/apparmor.d/{profile} allows {place}", wanted)
    found = f"{_APPARMOR} is 1 and no profile names {place}"
    return warned("apparmor", found, wanted, _set_sysctl(_APPARMOR, "0"))


def _set_sysctl(name: str, value: str) -> str:
    return f"echo {name}={value} | sudo tee {_SYSCTL_FILE} && sudo sysctl --system"


def _has_capability(path: str) -> bool:
    try:
        return bool(os.getxattr(path, "security.capability"))
    except OSError:
        return False


def _shared_with(ranges: tuple[SubIds, ...], host: Host) -> str:
    """Another owner whose range overlaps one of this user's, "" when there is none."""
    names = (host.user, str(host.uid))
    mine = [entry for entry in ranges if entry.owner in names]
    for entry in ranges:
        for own in mine:
            apart = entry.start + entry.size <= own.start or own.start + own.size <= entry.start
            if entry.owner not in names and not apart:
                return entry.owner
    return ""
