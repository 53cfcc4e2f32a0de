"""What the machine lacks: network, control groups, storage."""

from __future__ import annotations

from cagewrap.errors import (
    CgroupError,
    NetworkSetupError,
    StorageError,
)
from cagewrap.runtimes.failure_rules.rule import Rule

DELEGATE = (
    "sudo mkdir -p /etc/systemd/system/user@.service.d && "
    "printf '[Service]\\nDelegate=cpu cpuset io memory pids\\n' | "
    "sudo tee /etc/systemd/system/user@.service.d/delegate.conf && "
    "sudo systemctl daemon-reload, then log out and in again"
)
"""Gives the systemd of every user the controllers that limits need."""

UNIFIED = (
    "sudo sed -i 's/^GRUB_CMDLINE_LINUX=\"/&systemd.unified_cgroup_hierarchy=1 /' "
    "/etc/default/grub && sudo update-grub && sudo reboot"
)
"""Boots with control groups of version 2 alone."""

LINGER = "sudo loginctl enable-linger $USER, then log in again"

NETWORK = (
    Rule(
        r"/dev/net/tun\\*\"?\)?: (No such file|No such device)",
        NetworkSetupError,
        "/dev/net/tun is missing, and the cage's network is made with it.",
        "sudo modprobe tun",
    ),
    Rule(
        r"/dev/net/tun\\*\"?\)?: (Permission denied|Operation not permitted)",
        NetworkSetupError,
        "/dev/net/tun may not be opened by this user, and the cage's network is made with it.",
        "sudo chmod 666 /dev/net/tun",
    ),
    Rule(
        r'could not find pasta|exec: "pasta": executable file not found',
        NetworkSetupError,
        "pasta is not installed, and podman makes the cage's network with it.",
        "sudo apt-get install passt",
    ),
    Rule(
        r'could not find slirp4netns|exec: "slirp4netns": executable file not found',
        NetworkSetupError,
        "slirp4netns is not installed, and podman makes the cage's network with it.",
        "sudo apt-get install slirp4netns",
    ),
    Rule(
        r'could not find "(?P<helper>netavark|aardvark-dns)"',
        NetworkSetupError,
        "{helper} is not installed, and this podman does not start without it.",
        "sudo apt-get install {helper}",
    ),
    Rule(
        r"unable to find network with name or ID (?P<net>\S+): network not found",
        NetworkSetupError,
        "This podman has no network named {net}.",
        "leave out --podman-arg=--network={net}",
    ),
    Rule(
        r"cannot expose privileged port (?P<port>\d+)|"
        r"(?:Failed to bind port |Listen failed for HOST \w+ port \S*?/)(?P<b>\d+)"
        r":? \(?Permission denied",
        NetworkSetupError,
        "Port {port}{b} of this machine may not be used by an ordinary user.",
        "publish a port above 1023",
    ),
    Rule(
        r"listen \w+ \S*?:(?P<port>\d+): bind: address already in use|"
        r"(?:Failed to bind port |Listen failed for HOST \w+ port \S*?/)(?P<b>\d+)"
        r":? \(?Address already in use",
        NetworkSetupError,
        "Port {port}{b} of this machine is already used by another program.",
        "ss -ltnp 'sport = :{port}{b}', then stop that program or publish another port",
    ),
    Rule(
        r"pasta failed with exit code \d+:\s*(?P<why>[^\n]+)|"
        r'slirp4netns failed: "(?P<b>[^"\n]{1,200})',
        NetworkSetupError,
        "The cage's network could not be made: {why}{b}.",
        "cagewrap doctor",
    ),
)

NO_CONTROLLER = Rule(
    r"(?:cgroup )?controller `(?P<name>\w+)` is not available|"
    r"cgroup/\S*?/(?P<b>memory|cpu|pids|cpuset|io)\.\S+?: no such file|"
    r"file `(?P<c>memory|cpu|pids|cpuset|io)\.\S+` (?:for writing|not found)|"
    r"cannot set limits without cgroups|Resource limits are not supported and ignored",
    CgroupError,
    "A limit was asked for, but the control group controller for it ({name}{b}{c}) is not "
    "delegated to this user.",
    DELEGATE,
)

CGROUP = (
    Rule(
        r"cgroups in hybrid mode not supported",
        CgroupError,
        "This machine mounts control groups in hybrid mode (version 1 and 2 mixed), which crun "
        "refuses.",
        UNIFIED,
    ),
    NO_CONTROLLER,
    Rule(
        r"sd-bus call: |Failed to connect to (?:user scope )?bus|"
        r"cgroup.*(?:[Pp]ermission denied|Read-only file system)",
        CgroupError,
        "podman cannot make a control group for the cage: no systemd of this user answers, or its "
        "control group is not delegated to it.",
        LINGER,
    ),
)

STORAGE = (
    Rule(
        r"(?i)no space left on device|disk quota exceeded|database or disk is full",
        StorageError,
        "The disk with podman's storage or the session's directory is full (bytes, inodes or "
        "quota).",
        "cagewrap gc && podman image prune --force",
    ),
    Rule(
        r"is not supported over (?P<fs>\w+)|native overlay not supported|"
        r"backing file system is unsupported|kernel does not support overlay",
        StorageError,
        "podman's storage lies on a file system ({fs}) on which the kernel cannot stack layers.",
        "sudo apt-get install fuse-overlayfs",
    ),
    Rule(
        r'database (?P<what>[^"]+) "(?P<old>[^"]+)" does not match our [^"]+"(?P<new>[^"]+)"',
        StorageError,
        "podman's storage was made with {old} as its {what}, and is now told to use {new}.",
        "put {old} back in ~/.config/containers/storage.conf",
    ),
    Rule(
        r"exceeded num_locks",
        StorageError,
        "podman has no lock left for another container: too many stopped ones are kept.",
        "podman container prune",
    ),
    Rule(
        r"failed to open \d+ locks in (?P<name>\S+?):",
        StorageError,
        "podman cannot open its locks {name} in /dev/shm: they are of another user or size.",
        "podman system renumber",
    ),
    Rule(
        r"database is locked",
        StorageError,
        "Another podman holds podman's database, or it lies on a network file system.",
        "podman ps",
    ),
    Rule(
        r"(?i)l?chown (?P<path>/\S+): (?:operation not permitted|invalid argument)",
        StorageError,
        "The file system of podman's storage ({path}) does not keep owners, as NFS and exFAT do "
        "not.",
        "set graphroot to a directory on a local disk in ~/.config/containers/storage.conf",
    ),
    Rule(
        r"(?P<path>/\S+): read-only file system",
        StorageError,
        "podman's storage is on a read-only file system ({path}).",
        "set graphroot to a writable directory in ~/.config/containers/storage.conf",
    ),
)
