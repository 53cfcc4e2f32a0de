"""What the owner may not do or does not have: user namespaces, directories."""

from __future__ import annotations

from cagewrap.errors import (
    ConfigInvalidError,
    DirectoryError,
    StorageError,
    UserNamespaceError,
)
from cagewrap.runtimes.failure_rules.rule import Rule

_RUNTIME_DIR = "export XDG_RUNTIME_DIR=/run/user/$(id -u)"
NEW_PRIVILEGES = (
    "in the unit of the service that starts cagewrap, leave out what implies no-new-privileges "
    "(SystemCallFilter= and the like) and set NoNewPrivileges=no"
)
_HOME = 'export HOME="$(getent passwd "$(id -u)" | cut -d: -f6)"'

NO_SUBIDS = Rule(
    r'no sub[ug]id ranges found for user \\*"(?P<user>[^"\\]+)',
    UserNamespaceError,
    "User {user} has no ranges in /etc/subuid and /etc/subgid, so the users of a cage cannot "
    "be mapped to ids of this machine.",
    "sudo usermod --add-subuids {subids} --add-subgids {subids} {user} && podman system migrate",
)

NAMESPACE = (
    NO_SUBIDS,
    Rule(
        r"potentially insufficient UIDs or GIDs",
        UserNamespaceError,
        "The ranges of this user in /etc/subuid and /etc/subgid are missing or too small for the "
        "users of the image.",
        "sudo usermod --add-subuids {subids} --add-subgids {subids} $USER && podman system migrate",
    ),
    Rule(
        r"new[ug]idmap: [ug]id range .* not allowed",
        UserNamespaceError,
        "The ranges that podman uses are not those of this user in /etc/subuid and /etc/subgid.",
        "podman system migrate",
    ),
    Rule(
        r'exec: "(?P<tool>new[ug]idmap)": executable file not found',
        UserNamespaceError,
        "{tool} is not installed, and podman cannot map the users of a cage without it.",
        "sudo apt-get install uidmap",
    ),
    Rule(
        r'cannot set up namespace using "(?P<tool>[^"]*new[ug]idmap)": should have set[ug]id',
        UserNamespaceError,
        "{tool} is neither setuid root nor has it the file capability for it, so it cannot map the "
        "users of a cage.",
        "sudo chmod u+s {tool}",
    ),
    Rule(
        r'cannot set up namespace using "(?P<tool>[^"]*new[ug]idmap)"',
        UserNamespaceError,
        "{tool} may not use its setuid bit here: the program that started cagewrap set "
        "no-new-privileges (NoNewPrivileges=yes of a systemd service, or a sandbox), or the file "
        "system is mounted nosuid.",
        NEW_PRIVILEGES,
    ),
    Rule(
        r"user namespaces are not enabled|cannot clone: (No space left on device|Invalid argument)",
        UserNamespaceError,
        "This machine allows no more user namespaces, and a rootless container needs one.",
        "echo user.max_user_namespaces=15000 | sudo tee /etc/sysctl.d/60-cagewrap.conf && "
        "sudo sysctl --system",
    ),
    Rule(
        r"cannot clone: |cannot re-exec process|unshare failed: |Error during unshare",
        UserNamespaceError,
        "This machine does not let an ordinary user make a user namespace, and a rootless "
        "container needs one.",
        "{userns_fix}",
    ),
    Rule(
        r"crun: mount `proc` to `proc`: Operation not permitted|[Mm]ount too revealing",
        UserNamespaceError,
        "/proc of this machine is partly covered, as it is in a container, so a cage cannot have "
        "one of its own.",
        "start the outer container with --security-opt unmask=ALL",
    ),
    Rule(
        r"setrlimit `(?P<limit>RLIMIT_\w+)`: Operation not permitted",
        ConfigInvalidError,
        "The limit {limit} asked for is above what this process may have.",
        "lower default_ulimits in containers.conf, or raise the limit of the service that starts "
        "cagewrap",
    ),
    Rule(
        r"(?i)keyring.*quota exceeded",
        StorageError,
        "The kernel's quota of session keyrings is used up; every running container takes one.",
        "echo kernel.keys.maxkeys=20000 | sudo tee /etc/sysctl.d/60-cagewrap.conf && "
        "sudo sysctl --system",
    ),
)

DIRECTORY = (
    Rule(
        r"error getting current working directory|getwd: no such file",
        DirectoryError,
        "The current directory no longer exists, so there is nothing to work in.",
        "cd ~",
    ),
    Rule(
        r"current system boot ID differs from cached boot ID.*?"
        r'directories "(?P<first>[^"]+)" and "(?P<second>[^"]+)"',
        DirectoryError,
        "The runtime directory was kept over a reboot (it is not on a tmpfs), so what podman wrote "
        "there describes containers that no longer run.",
        "rm -rf {first} {second}",
    ),
    Rule(
        r"invalid internal status, try resetting the pause process|cannot join pause process",
        DirectoryError,
        "podman's pause process is gone, but its runtime directory still names it.",
        "podman system migrate",
    ),
    Rule(
        r'XDG_RUNTIME_DIR directory \\*"(?P<dir>[^"\\]+)\\*" is not owned',
        DirectoryError,
        "XDG_RUNTIME_DIR is {dir}, which belongs to another user.",
        _RUNTIME_DIR,
    ),
    Rule(
        r"crun: create directory `(?P<dir>[^`]+)`: |"
        r"Failed to obtain podman configuration: \w+ (?P<b>/\S+): |"
        r'msg="mkdir (?P<c>/[^"]+)/libpod: ',
        DirectoryError,
        "The runtime directory {dir}{b}{c} does not exist or cannot be written.",
        _RUNTIME_DIR,
    ),
    Rule(
        r"RunRoot is pointing to a path \((?P<dir>[^)]+)\) which is not writable|"
        r"creating events dirs: mkdir (?P<b>/\S+): ",
        DirectoryError,
        "There is no runtime directory for this user: {dir}{b} cannot be written.",
        "sudo loginctl enable-linger $USER, then log in again",
    ),
    Rule(
        r"cannot resolve (?P<dir>/\S*): |"
        r"creating runtime static files directory: mkdir (?P<b>/\S*): |"
        r"(?:^|\n|\s)stat (?P<c>/\S*\.config): ",
        DirectoryError,
        "HOME is not a directory that podman can write to ({dir}{b}{c}).",
        _HOME,
    ),
    Rule(
        r"(?:error opening file|open) `(?P<dir>/[^`]+)/(?:crun|runc)/[^`]+/status`",
        DirectoryError,
        "podman lists the container, but its runtime has no state below {dir}: it was started with "
        "another XDG_RUNTIME_DIR, or killed from outside.",
        _RUNTIME_DIR + " in every program that starts cagewrap",
    ),
)
