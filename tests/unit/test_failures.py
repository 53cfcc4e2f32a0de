# ruff: noqa: E501 - the texts are kept as they were printed
"""Texts of podman and of OCI runtimes, each recorded on the version named before it."""

from __future__ import annotations

import re
import string
from pathlib import Path

import pytest

from cagewrap import errors
from cagewrap.keeper.processes import never_executed
from cagewrap.runtimes.failure_rules import EXEC_RULES, RULES, WARNING_RULES
from cagewrap.runtimes.failures import (
    FILLERS,
    explain_exec_failure,
    explain_failure,
    explain_never_executed,
    explain_warning,
    image_fix,
    last_lines,
    shorten,
)
from cagewrap.runtimes.subids import count_of, free_range, parse_subids

RUN = (
    "podman",
    "--runtime",
    "crun",
    "run",
    "--detach",
    "--pull=never",
    "localhost/cagewrap:latest",
)
NO_SUBUID = (
    'time="2026-11-29T16:08:42Z" level=error msg="cannot find UID/GID for user tester: no subuid '
    'ranges found for user \\"tester\\" in /etc/subuid - check rootless mode in man pages."\n'
    'time="2026-11-29T16:08:42Z" level=warning msg="Using rootless single mapping into the '
    "namespace. This might break some images. Check /etc/subuid and /etc/subgid for adding "
    'sub*ids if not using a network user"\n'
)
UNPACK = (
    "potentially insufficient UIDs or GIDs available in user namespace (requested 0:42 for "
    "/etc/gshadow): Check /etc/subuid and /etc/subgid if configured locally and run "
)
SLIRP_TUN = (
    'Error: /usr/bin/slirp4netns failed: "open(\\"/dev/net/tun\\"): {}\\nWARNING: Support '
    'for seccomp is experimental\\nWARNING: Support for IPv6 is experimental\\nchild failed(1)\\n"'
)
PASTA_TUN = (
    "Error: pasta failed with exit code 1:\nFailed to open() /dev/net/tun: {}\n"
    "Failed to set up tap device in namespace\n\n"
)
OLD_CGROUPS = (
    'time="T" level=warning msg="Using cgroups-v1 which is deprecated in favor of cgroups-v2 with '
    "Podman v5 and will be removed in a future version. Set environment variable "
    '`PODMAN_IGNORE_CGROUPSV1_WARNING` to hide this warning."\n'
)
HYBRID = (
    "Error: OCI runtime error: crun: cgroups in hybrid mode not supported, drop all controllers "
    "from cgroupv2"
)
REBOOT = (
    "Error: current system boot ID differs from cached boot ID; an unhandled reboot has occurred. "
    'Please delete directories "/run/user/1002/containers" and "/run/user/1002/libpod/tmp" and '
    "re-run Podman"
)
NO_OVERLAY = (
    "'overlay' is not supported over overlayfs, a mount_program is required: backing file system "
    "is unsupported for this graph driver"
)
IN_USE = (
    'Error: creating container storage: the container name "n1" is already in use by 53abec6e. You '
    "have to remove that container to be able to reuse that name: that name is already in use"
)

# (where seen, return code, text, error, words of the message, words of the hint)
FAILURES = [
    ("4.3 5.4 5.8", 0, NO_SUBUID, errors.UserNamespaceError, "User tester has no", "usermod"),
    (
        "4.3",
        125,
        (
            'Error: writing blob: adding layer with blob "sha256:d0": ApplyLayer stdout:  stderr: '
            f"{UNPACK}podman-system-migrate: lchown /etc/gshadow: invalid argument exit status 1"
        ),
        errors.UserNamespaceError,
        "too small",
        "usermod",
    ),
    (
        "5.4 5.8",
        125,
        (
            'Error: writing blob: adding layer with blob "sha256:d0"/""/"sha256:d0": unpacking failed '
            f'(error: exit status 1; output: {UNPACK}"podman system migrate": lchown /etc/gshadow: '
            "invalid argument)"
        ),
        errors.UserNamespaceError,
        "too small",
        "usermod",
    ),
    (
        "4.3 5.4 5.8",
        125,
        (
            'Error: command required for rootless mode with multiple IDs: exec: "newuidmap": '
            "executable file not found in $PATH"
        ),
        errors.UserNamespaceError,
        "newuidmap is not installed",
        "apt-get install uidmap",
    ),
    (
        "4.3 5.4 5.8",
        125,
        (
            'time="T" level=error msg="running `/usr/bin/newuidmap 58 0 1002 1 1 165536 65536`: '
            'newuidmap: write to uid_map failed: Operation not permitted\\n"\n'
            'Error: cannot set up namespace using "/usr/bin/newuidmap": should have setuid or have '
            "filecaps setuid: exit status 1"
        ),
        errors.UserNamespaceError,
        "setuid root",
        "chmod u+s /usr/bin/newuidmap",
    ),
    (
        "4.3 5.4 5.8",
        125,
        (
            'Error: cannot set up namespace using "/usr/bin/newgidmap": should have setgid or have '
            "filecaps setgid: exit status 1"
        ),
        errors.UserNamespaceError,
        "setuid root",
        "chmod u+s /usr/bin/newgidmap",
    ),
    (
        "4.3 5.4 5.8",
        125,
        (
            'time="T" level=error msg="running `/usr/bin/newuidmap 55 0 1002 1 1 165536 65536`: '
            'newuidmap: write to uid_map failed: Operation not permitted\\n"\n'
            'Error: cannot set up namespace using "/usr/bin/newuidmap": exit status 1'
        ),
        errors.UserNamespaceError,
        "no-new-privileges",
        "NoNewPrivileges=no",
    ),
    (
        "4.3 5.4, a stopped container exists",
        1,
        (
            'time="T" level=error msg="running `/usr/bin/newuidmap 107 0 1002 1 1 165536 65536`: '
            'newuidmap: write to uid_map failed: Operation not permitted\\n"\n'
            'time="T" level=error msg="invalid internal status, try resetting the pause process with '
            '\\"podman system migrate\\": cannot set up namespace using \\"/usr/bin/newuidmap\\": '
            'exit status 1"'
        ),
        errors.UserNamespaceError,
        "no-new-privileges",
        "NoNewPrivileges=no",
    ),
    (
        "4.3 5.4 5.8",
        125,
        "cannot clone: Operation not permitted\nError: cannot re-exec process",
        errors.UserNamespaceError,
        "does not let an ordinary user",
        "",
    ),
    (
        "bug reports",
        125,
        (
            "cannot clone: Invalid argument\nuser namespaces are not enabled in "
            "/proc/sys/user/max_user_namespaces\nError: could not get runtime: cannot re-exec process"
        ),
        errors.UserNamespaceError,
        "no more user namespaces",
        "user.max_user_namespaces",
    ),
    (
        "bug reports",
        125,
        "cannot clone: No space left on device\nError: cannot re-exec process",
        errors.UserNamespaceError,
        "no more user namespaces",
        "user.max_user_namespaces",
    ),
    (
        "4.3",
        126,
        "Error: crun: mount `proc` to `proc`: Operation not permitted: OCI permission denied",
        errors.UserNamespaceError,
        "/proc of this machine",
        "unmask=ALL",
    ),
    (
        "bug reports",
        126,
        (
            "Error: runc: unable to join session keyring: unable to create session key: keyring "
            "disk quota exceeded: OCI runtime error"
        ),
        errors.StorageError,
        "keyrings",
        "kernel.keys.maxkeys",
    ),
    (
        "4.3",
        1,
        "error getting current working directory: No such file or directory",
        errors.DirectoryError,
        "current directory",
        "cd ~",
    ),
    (
        "5.4 5.8",
        125,
        REBOOT,
        errors.DirectoryError,
        "over a reboot",
        "rm -rf /run/user/1002/containers /run/user/1002/libpod/tmp",
    ),
    (
        "4.3",
        125,
        (
            'Error: invalid internal status, try resetting the pause process with "podman system '
            'migrate": could not find any running process: no such process'
        ),
        errors.DirectoryError,
        "pause process",
        "podman system migrate",
    ),
    (
        "4.3",
        127,
        (
            "Error: crun: create directory `/nonexist`: No such file or directory: OCI runtime "
            "attempted to invoke a command that was not found"
        ),
        errors.DirectoryError,
        "runtime directory /nonexist",
        "XDG_RUNTIME_DIR",
    ),
    (
        "4.3",
        1,
        (
            'time="T" level=error msg="XDG_RUNTIME_DIR directory \\"/run\\" is not owned by the '
            'current user"'
        ),
        errors.DirectoryError,
        "XDG_RUNTIME_DIR is /run,",
        "XDG_RUNTIME_DIR",
    ),
    (
        "4.3",
        1,
        'time="T" level=error msg="mkdir /tmp/xx/libpod: permission denied"',
        errors.DirectoryError,
        "runtime directory /tmp/xx ",
        "XDG_RUNTIME_DIR",
    ),
    (
        "5.4 5.8",
        1,
        "Failed to obtain podman configuration: lstat /nonexist: no such file or directory",
        errors.DirectoryError,
        "runtime directory /nonexist",
        "XDG_RUNTIME_DIR",
    ),
    (
        "4.3 5.4 5.8",
        125,
        (
            'time="T" level=warning msg="RunRoot is pointing to a path (/run/user/1002/containers) '
            'which is not writable. Most likely podman will fail."\n'
            "Error: creating events dirs: mkdir /run/user/1002: permission denied"
        ),
        errors.DirectoryError,
        "/run/user/1002/containers",
        "enable-linger",
    ),
    (
        "4.3 5.4 5.8",
        1,
        "cannot resolve /nonexist: lstat /nonexist: no such file or directory",
        errors.DirectoryError,
        "HOME",
        "export HOME",
    ),
    (
        "4.3",
        125,
        "Error: creating runtime static files directory: mkdir /.local: permission denied",
        errors.DirectoryError,
        "HOME",
        "export HOME",
    ),
    (
        "5.4 5.8",
        1,
        "stat /.config: no such file or directory",
        errors.DirectoryError,
        "HOME",
        "export HOME",
    ),
    (
        "4.3",
        127,
        (
            "Error: crun: error opening file `/tmp/rd2/crun/c201ea05/status`: No such file or "
            "directory: OCI runtime attempted to invoke a command that was not found"
        ),
        errors.DirectoryError,
        "below /tmp/rd2",
        "XDG_RUNTIME_DIR",
    ),
    (
        "5.8",
        127,
        (
            "Error: crun: container `c201ea05` does not exist: open `/tmp/rd2/crun/c201ea05/status`: "
            "No such file or directory: OCI runtime attempted to invoke a command that was not found"
        ),
        errors.DirectoryError,
        "below /tmp/rd2",
        "XDG_RUNTIME_DIR",
    ),
    (
        "4.3 5.4 5.8",
        127,
        SLIRP_TUN.format("No such file or directory"),
        errors.NetworkSetupError,
        "/dev/net/tun is missing",
        "modprobe tun",
    ),
    (
        "5.4 5.8",
        127,
        PASTA_TUN.format("No such file or directory"),
        errors.NetworkSetupError,
        "/dev/net/tun is missing",
        "modprobe tun",
    ),
    (
        "4.3 5.4 5.8",
        126,
        SLIRP_TUN.format("Permission denied"),
        errors.NetworkSetupError,
        "may not be opened",
        "chmod 666 /dev/net/tun",
    ),
    (
        "5.4 5.8",
        126,
        PASTA_TUN.format("Permission denied"),
        errors.NetworkSetupError,
        "may not be opened",
        "chmod 666 /dev/net/tun",
    ),
    (
        "4.3",
        127,
        (
            "Error: could not find slirp4netns, the network namespace can't be configured: exec: "
            '"slirp4netns": executable file not found in $PATH'
        ),
        errors.NetworkSetupError,
        "slirp4netns is not installed",
        "apt-get install slirp4netns",
    ),
    (
        "5.4 5.8",
        127,
        (
            "Error: could not find pasta, the network namespace can't be configured: exec: "
            '"pasta": executable file not found in $PATH'
        ),
        errors.NetworkSetupError,
        "pasta is not installed",
        "apt-get install passt",
    ),
    (
        "4.3 5.4 5.8",
        125,
        (
            'Error: could not find "netavark" in one of [/usr/local/libexec/podman '
            "/usr/local/lib/podman /usr/libexec/podman /usr/lib/podman].  To resolve this error, set "
            "the helper_binaries_dir key in the `[engine]` section of containers.conf to the directory "
            "containing your helper binaries."
        ),
        errors.NetworkSetupError,
        "netavark is not installed",
        "apt-get install netavark",
    ),
    (
        "4.3",
        125,
        "Error: unable to find network with name or ID pasta: network not found",
        errors.NetworkSetupError,
        "no network named pasta",
        "--network=pasta",
    ),
    (
        "4.3",
        126,
        (
            "Error: rootlessport cannot expose privileged port 80, you can add "
            "'net.ipv4.ip_unprivileged_port_start=80' to /etc/sysctl.conf (currently 1024), or choose "
            "a larger port number (>= 1024): listen tcp 0.0.0.0:80: bind: permission denied"
        ),
        errors.NetworkSetupError,
        "Port 80 of this machine may not",
        "above 1023",
    ),
    (
        "4.3",
        126,
        "Error: rootlessport listen tcp 127.0.0.1:8080: bind: address already in use",
        errors.NetworkSetupError,
        "Port 8080 of this machine is already",
        "ss -ltnp",
    ),
    (
        "5.4",
        126,
        (
            "Error: pasta failed with exit code 1:\nFailed to bind port 8080 (Address already in use) "
            "for option '-t 127.0.0.1/8080-8080:80-80'\n\n"
        ),
        errors.NetworkSetupError,
        "Port 8080 of this machine is already",
        "ss -ltnp",
    ),
    (
        "5.8",
        126,
        (
            "Error: pasta failed with exit code 1:\nListen failed for HOST TCP port 127.0.0.1/8080: "
            "Address already in use\nCouldn't listen on requested ports\n\n"
        ),
        errors.NetworkSetupError,
        "Port 8080 of this machine is already",
        "ss -ltnp",
    ),
    (
        "5.8",
        126,
        (
            "Error: pasta failed with exit code 1:\nListen failed for HOST TCP port */80: Permission "
            "denied\nCouldn't listen on requested ports\n\n"
        ),
        errors.NetworkSetupError,
        "Port 80 of this machine may not",
        "above 1023",
    ),
    (
        "bug reports",
        125,
        "Error: pasta failed with exit code 1:\nCouldn't get any nameserver address\n",
        errors.NetworkSetupError,
        "Couldn't get any nameserver address",
        "cagewrap doctor",
    ),
    ("4.3", 126, HYBRID, errors.CgroupError, "hybrid", "unified_cgroup_hierarchy=1"),
    ("5.4 5.8", 126, OLD_CGROUPS + HYBRID, errors.CgroupError, "hybrid", "update-grub"),
    (
        "4.3 5.4 5.8",
        127,
        (
            "Error: runc: runc create failed: unable to start container process: error during "
            "container init: error setting cgroup config for procHooks process: openat2 "
            "/sys/fs/cgroup/c9fa9d8d1dd0/memory.swap.max: no such file or directory: OCI runtime "
            "attempted to invoke a command that was not found"
        ),
        errors.CgroupError,
        "(memory) is not delegated",
        "Delegate=",
    ),
    (
        "bug reports",
        126,
        "Error: OCI runtime error: crun: the requested cgroup controller `cpu` is not available",
        errors.CgroupError,
        "(cpu) is not delegated",
        "Delegate=",
    ),
    (
        "4.3 5.4 5.8",
        0,
        "Resource limits are not supported and ignored on cgroups V1 rootless systems",
        errors.CgroupError,
        "for it is not delegated",
        "Delegate=",
    ),
    (
        "4.3",
        125,
        (
            'Error: writing blob: adding layer with blob "sha256:d0": ApplyLayer stdout:  stderr: '
            "write /usr/bin/perl: no space left on device exit status 1"
        ),
        errors.StorageError,
        "full",
        "cagewrap gc",
    ),
    (
        "5.8",
        125,
        (
            'Error: writing blob: adding layer with blob "sha256:d0"/""/"sha256:d0": unpacking failed '
            "(error: exit status 2; output: )\nexhausting input failed (error: write "
            "/tmp/full/.local/share/containers/storage/overlay-layers/tmp/temp-dir-41/0-addition: "
            "no space left on device)"
        ),
        errors.StorageError,
        "full",
        "cagewrap gc",
    ),
    (
        "5.8",
        125,
        "Error: beginning transaction: database or disk is full",
        errors.StorageError,
        "full",
        "cagewrap gc",
    ),
    ("4.3", 125, "Error: " + NO_OVERLAY, errors.StorageError, "(overlayfs)", "fuse-overlayfs"),
    (
        "5.4",
        125,
        "Error: configure storage: " + NO_OVERLAY,
        errors.StorageError,
        "(overlayfs)",
        "fuse-overlayfs",
    ),
    (
        "5.8",
        125,
        (
            "Error: configure storage: native overlay not supported and fuse-overlayfs not found: "
            "backing file system is unsupported for this graph driver"
        ),
        errors.StorageError,
        "on which the kernel cannot stack",
        "fuse-overlayfs",
    ),
    (
        "4.3",
        125,
        (
            "Error: database storage temporary directory (runroot) "
            '"/run/user/1002/containers" does not match our storage temporary directory (runroot) '
            '"/tmp/rr": database configuration mismatch'
        ),
        errors.StorageError,
        "(runroot)",
        "put /run/user/1002/containers back",
    ),
    (
        "5.4 5.8",
        125,
        (
            'Error: database run root "/run/user/1002/containers" does not match our run root '
            '"/tmp/rr": database configuration mismatch'
        ),
        errors.StorageError,
        "/tmp/rr",
        "put /run/user/1002/containers back",
    ),
    (
        "4.3 5.4 5.8",
        125,
        "Error: localhost/nosuch:1: image not known",
        errors.ImageMissingError,
        "The image localhost/nosuch:1 is not on this machine",
        "cagewrap image build --name localhost/nosuch:1",
    ),
    (
        "4.3 5.4 5.8",
        125,
        (
            'Error: short-name "nosuchx:1" did not resolve to an alias and no unqualified-search '
            'registries are defined in "/etc/containers/registries.conf"'
        ),
        errors.ImageMissingError,
        "is not on this machine",
        "cagewrap image build",
    ),
    (
        "4.3 5.4",
        125,
        (
            "Error: initializing source docker://localhost/nosuch:1: pinging container registry "
            'localhost: Get "https://localhost/v2/": dial tcp [::1]:443: connect: connection refused'
        ),
        errors.ImageMissingError,
        "is not on this machine",
        "cagewrap image build",
    ),
    ("4.3", 125, "Error: invalid reference format", errors.ConfigInvalidError, "name of an", "use"),
    (
        "5.4 5.8",
        125,
        'Error: parsing reference "Bad Name": invalid reference format',
        errors.ConfigInvalidError,
        "name of an",
        "use",
    ),
    (
        "4.3 5.4 5.8",
        125,
        "Error: statfs /home/me/a b: no such file or directory",
        errors.MountRefusedError,
        "/home/me/a b does not exist",
        "mkdir -p '/home/me/a b'",
    ),
    (
        "4.3 5.4 5.8",
        125,
        "Error: stat /dev/nosuch: no such file or directory",
        errors.MountRefusedError,
        "device /dev/nosuch",
        "--device",
    ),
    (
        "5.8",
        126,
        "Error: OCI runtime error: crun: mount `/tmp` to `etc/passwd`: Not a directory",
        errors.MountRefusedError,
        "/tmp cannot be mounted at etc/passwd: Not a directory",
        "leave out",
    ),
    (
        "4.3 5.4 5.8",
        125,
        'Error: invalid container path "x", must be an absolute path',
        errors.MountRefusedError,
        "must be an absolute path",
        "correct",
    ),
    (
        "none",
        127,
        "podman: executable file not found in $PATH",
        errors.PodmanMissingError,
        "podman is not on PATH",
        "apt-get install podman",
    ),
    (
        "4.3 5.4 5.8",
        125,
        'Error: default OCI runtime "crun" not found: invalid argument',
        errors.PodmanMissingError,
        "crun is not installed",
        "apt-get install crun",
    ),
    (
        "4.3 5.4 5.8",
        125,
        (
            "Error: could not find a working conmon binary (configured options: "
            "[/usr/libexec/podman/conmon /usr/bin/conmon]: invalid argument)"
        ),
        errors.PodmanMissingError,
        "conmon is not installed",
        "apt-get install conmon",
    ),
    (
        "4.3 5.4 5.8",
        125,
        "Error: unknown flag: --frobnicate\nSee 'podman run --help'",
        errors.PodmanMissingError,
        "--frobnicate",
        "--podman-arg",
    ),
    (
        "4.3 5.4 5.8",
        125,
        "Error: invalid value for memory: invalid size: 'abc'",
        errors.ConfigInvalidError,
        "memory",
        "cagewrap config",
    ),
    ("4.3", 125, IN_USE, errors.SessionError, "named n1", "podman rm --force n1"),
    (
        "5.4 5.8",
        125,
        IN_USE + ", or use --replace to instruct Podman to do so.",
        errors.SessionError,
        "named n1",
        "podman rm --force n1",
    ),
    (
        "4.3 5.4 5.8",
        125,
        'Error: no container with name or ID "nosuchc" found: no such container',
        errors.SessionError,
        "removed from outside",
        "again",
    ),
    (
        "4.3 5.4 5.8",
        255,
        "Error: can only create exec sessions on running containers: container state improper",
        errors.SessionError,
        "stopped from outside",
        "again",
    ),
]


@pytest.mark.parametrize(
    ("seen", "code", "text", "error", "message", "hint"),
    FAILURES,
    ids=[f"{row[0]}-{row[2][:40]}" for row in FAILURES],
)
def test_podman_failure_is_explained(seen, code, text, error, message, hint):
    found = explain_failure(RUN, code, text, image="localhost/nosuch:1")
    assert type(found) is error
    assert message in found.message
    assert hint in found.hint
    assert found.hint
    assert "\n" not in found.message + found.hint
    assert "{" not in found.message


def runc(text: str) -> str:
    return (
        'time="T" level=error msg="exec failed: unable to start container process: '
        + text.replace('"', '\\"')
        + '"'
    )


NOT_FOUND, NOT_EXECUTABLE = errors.AgentNotFoundError, errors.AgentNotExecutableError
# (where seen, text, error, words of the message)
EXEC_FAILURES = [
    (
        "crun 1.8",
        "executable file `nosuch` not found in $PATH: No such file or directory",
        NOT_FOUND,
        "prog is not in the cage",
    ),
    (
        "crun 1.21 1.28",
        "executable file `/no/such` not found: No such file or directory",
        NOT_FOUND,
        "prog is not in the cage",
    ),
    (
        "crun 1.21 1.28",
        "cannot find `` in $PATH: No such file or directory",
        NOT_FOUND,
        "prog is not in the cage",
    ),
    ("crun 1.8", "open executable: Permission denied", NOT_EXECUTABLE, "may not be executed"),
    ("crun 1.8", "open executable: Operation not permitted", NOT_EXECUTABLE, "directory"),
    (
        "crun 1.21 1.28",
        "the path `/etc` is not a regular file: Operation not permitted",
        NOT_EXECUTABLE,
        "directory",
    ),
    (
        "crun 1.21 1.28",
        "the path `/etc/passwd` exists but it is not executable: Operation not permitted",
        NOT_EXECUTABLE,
        "may not be executed",
    ),
    ("crun 1.8 1.21", "exec: Exec format error", NOT_EXECUTABLE, "another processor"),
    ("crun 1.28", "exec `/x/bad`: Exec format error", NOT_EXECUTABLE, "another processor"),
    ("crun 1.8 1.21", "exec: No such file or directory", NOT_EXECUTABLE, "musl"),
    ("crun 1.28", "exec `/x/noloader`: No such file or directory", NOT_EXECUTABLE, "musl"),
    (
        "crun 1.28, run",
        '{\n  "msg": "exec container process `\\/bad`: Exec format error",\n  "level": "error"\n}',
        NOT_EXECUTABLE,
        "another processor",
    ),
    ("crun 1.8", "chdir `/a b`: No such file or directory", NOT_FOUND, "directory /a b is not"),
    (
        "crun 1.21 1.28",
        "chdir to `/x`: No such file or directory",
        NOT_FOUND,
        "directory /x is not",
    ),
    ("crun 1.21 1.28", "chdir to `/etc/passwd`: Not a directory", NOT_FOUND, "Not a directory"),
    (
        "crun 1.8 1.21",
        "error opening file `/run/user/1002/crun/0000/status`: No such file or directory",
        errors.SessionError,
        "stopped from outside",
    ),
    (
        "crun 1.28",
        (
            "container `0000` does not exist: open `/run/user/1002/crun/0000/status`: "
            "No such file or directory"
        ),
        errors.SessionError,
        "stopped from outside",
    ),
    (
        "runc 1.1 1.3",
        runc('exec: "nosuch": executable file not found in $PATH'),
        NOT_FOUND,
        "prog is not in the cage",
    ),
    (
        "runc 1.1 1.3",
        runc('exec: "/no/such": stat /no/such: no such file or directory'),
        NOT_FOUND,
        "prog is not in the cage",
    ),
    ("runc 1.1", runc('exec: "/etc": permission denied'), NOT_EXECUTABLE, "may not be executed"),
    ("runc 1.1 1.3", runc('exec: "/etc": is a directory'), NOT_EXECUTABLE, "directory"),
    ("runc 1.1 1.3", "exec /x/bad: exec format error", NOT_EXECUTABLE, "another processor"),
    ("runc 1.1 1.3", "exec /x/noint: no such file or directory", NOT_EXECUTABLE, "musl"),
    (
        "runc 1.1 1.3",
        runc('chdir to cwd ("/nosuch") set in config.json failed: no such file or directory'),
        NOT_FOUND,
        "directory /nosuch is not",
    ),
    (
        "runc 1.1 1.3",
        runc('chdir to cwd ("/etc/passwd") set in config.json failed: not a directory'),
        NOT_FOUND,
        "directory /etc/passwd cannot be entered in the cage: not a directory",
    ),
    (
        "runc 1.1 1.3",
        'time="T" level=error msg="exec failed: container does not exist"',
        errors.SessionError,
        "stopped from outside",
    ),
    ("none", "", NOT_EXECUTABLE, "no reason given"),
]


@pytest.mark.parametrize(
    ("seen", "text", "error", "message"),
    EXEC_FAILURES,
    ids=[f"{row[0]}-{row[1][:50]}" for row in EXEC_FAILURES],
)
def test_exec_failure_is_explained(seen, text, error, message):
    found = explain_exec_failure(text, "prog")
    assert type(found) is error
    assert message in found.message
    assert found.hint


def test_unknown_failure_carries_the_last_words_of_podman():
    found = explain_failure(RUN, 125, "first\n\nError: something new\n  and why\n")
    assert type(found) is errors.CagewrapError
    assert found.message == "`podman run` failed (125): first / Error: something new / and why"
    assert found.hint == "cagewrap doctor"


def test_unknown_failure_says_how_podman_died():
    assert "killed by signal 9" in explain_failure(RUN, -9, "").message
    assert "did not answer in time" in explain_failure(RUN, 124, "").message


def test_argv_is_shortened_to_the_verb():
    assert shorten(RUN) == "podman run"
    assert shorten(["podman"]) == "podman"
    assert shorten([]) == "podman"


@pytest.mark.parametrize(
    ("stat", "never"),
    [
        ("91 (crun) Z 1 91 91 0 -1 4227404 0 0", True),  # 0x40814c
        ("91 (runc:[2:INIT]) Z 1 91 91 0 -1 4227404 0 0", True),
        ("91 (sh) Z 1 91 91 0 -1 4227340 0 0", False),  # 0x40810c
        ("91 (a) b) Z 1 91 91 0 -1 4227340 0 0", False),
        ("", False),
    ],
)
def test_process_that_never_became_its_program(stat, never):
    assert never_executed(stat) == never


def test_program_that_never_ran_has_its_own_code():
    assert explain_never_executed("prog").exit_code == 126
    assert explain_never_executed("prog").hint


def test_long_output_is_cut():
    assert len(last_lines("x" * 10_000 + "\n" + "\n".join("ab" * 10))) < 1300


def test_warning_of_a_start_that_worked():
    found = explain_warning(NO_SUBUID)
    assert isinstance(found, errors.UserNamespaceError)
    assert explain_warning("") is None
    assert explain_warning(OLD_CGROUPS) is None


@pytest.mark.parametrize(
    ("image", "fix"),
    [
        ("localhost/cagewrap:latest", "cagewrap image build"),
        ("localhost/mine:2", "cagewrap image build --name localhost/mine:2"),
        ("example.org/dev:1", "podman pull example.org/dev:1"),
    ],
)
def test_missing_image_has_a_fix_for_its_kind(image, fix):
    assert image_fix(image) == fix


def names_in(template: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(template) if name}


@pytest.mark.parametrize(
    "rule", [*RULES, *EXEC_RULES, *WARNING_RULES], ids=lambda r: r.pattern[:40]
)
def test_every_rule_has_a_sentence_and_a_fix(rule):
    known = set(re.compile(rule.pattern).groupindex) | set(FILLERS) | {"image", "program"}
    assert rule.message.endswith(".")
    assert rule.hint
    assert names_in(rule.message) | names_in(rule.hint) <= known


def test_free_range_is_nobodys():
    ranges = parse_subids("a:100000:65536\nb:231072:65536\n# c\nbroken\n1004:165536:10\n")
    assert [entry.owner for entry in ranges] == ["a", "b", "1004"]
    assert free_range(ranges) == "296608-362143"
    assert free_range(()) == "100000-165535"
    assert free_range(parse_subids("a:200000:65536")) == "100000-165535"


def test_ranges_count_by_name_and_by_uid():
    ranges = parse_subids("me:100000:1000\n1002:200000:2000\n10020:1:9\n")
    assert count_of(ranges, name="me", uid=1002) == 3000


def every_error() -> list[type[errors.CagewrapError]]:
    found = [errors.CagewrapError]
    for known in found:
        found += known.__subclasses__()
    return found


def documented_codes() -> dict[int, str]:
    page = Path(__file__).parents[2] / "docs/reference/exit-codes.md"
    rows = [line.split("|") for line in page.read_text().splitlines() if line.startswith("| 1")]
    return {int(row[1]): row[2].strip().strip("`") for row in rows if row[1].strip().isdecimal()}


def test_exit_codes_are_unique_and_documented():
    own = {kind.exit_code: kind.id for kind in every_error()}
    ids = {kind.id for kind in every_error()}
    assert len(own) == len(ids)
    assert documented_codes() == own


def test_every_error_can_be_met():
    """Each class that podman can cause has a rule, so that no exit code is documented in vain."""
    caused = {rule.error for rule in (*RULES, *EXEC_RULES)}
    made_by_cagewrap = {
        errors.CagewrapError,
        errors.InternalError,
        errors.UsageError,
        errors.LoginError,
        errors.KeeperError,
        errors.UnsupportedError,
    }
    assert set(every_error()) == caused | made_by_cagewrap
