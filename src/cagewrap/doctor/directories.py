"""HOME, the runtime directory and the current directory."""

from __future__ import annotations

import os

from cagewrap.doctor.host import Host, existing_parent, file_system_of
from cagewrap.doctor.result import CheckResult, failed, passed, raised, warned
from cagewrap.errors import DirectoryError
from cagewrap.paths import paths_from_env

_HOME_FIX = 'export HOME="$(getent passwd "$(id -u)" | cut -d: -f6)"'
_LONGEST_NAME = "x" * 50  # with room for what is longer than its socket's path
_SOCKET_PATH_BYTES = 107
_IN_MEMORY = ("tmpfs", "ramfs", "")


def check_home(host: Host) -> CheckResult:
    """HOME is a directory, and what podman and cagewrap write below it can be written."""
    wanted = "a directory of this user that can be written"
    home = host.env.get("HOME", "")
    if not home.startswith("/") or not os.path.isdir(home):
        text = f"HOME is {home!r}" if home else "HOME is not set"
        return failed("home", DirectoryError, text, wanted, _HOME_FIX)
    for below in (".local/share/containers", ".local/state/cagewrap", ".config"):
        place = existing_parent(os.path.join(home, below))
        if not os.access(place, os.W_OK | os.X_OK):
            fix = f"sudo chown -R $(id -u):$(id -g) '{place}' && chmod u+rwx '{place}'"
            return failed("home", DirectoryError, f"{place} cannot be written", wanted, fix)
    return passed("home", home, wanted)


def check_runtime_dir(host: Host) -> CheckResult:
    """XDG_RUNTIME_DIR is this user's, and gone after a reboot."""
    wanted = "a directory of this user on a tmpfs"
    home = host.env.get("HOME", "")
    env = dict(host.env) | ({} if os.path.isdir(home) else {"HOME": "/"})
    try:
        paths = paths_from_env(env, host.uid)
    except DirectoryError as error:
        return raised("runtime-dir", error, wanted)
    place = paths.podman_runtime_dir
    if len(os.fsencode(paths.socket_file(_LONGEST_NAME))) > _SOCKET_PATH_BYTES:
        found = f"{place} is too long for the path of a socket ({_SOCKET_PATH_BYTES} bytes)"
        fix = f"export XDG_RUNTIME_DIR=/run/user/{host.uid}"
        return failed("runtime-dir", DirectoryError, found, wanted, fix)
    if not os.access(place, os.W_OK | os.X_OK):
        fix = f"chmod u+rwx '{place}'"
        return failed("runtime-dir", DirectoryError, f"{place} cannot be written", wanted, fix)
    kind = file_system_of(host, os.path.realpath(place)).kind
    if kind not in _IN_MEMORY:
        found = (
            f"{place} is on {kind} and outlives a reboot: podman then believes that its "
            "containers still run"
        )
        fix = f"export XDG_RUNTIME_DIR=/run/user/{host.uid}"
        return warned("runtime-dir", found, wanted, fix)
    return passed("runtime-dir", place, wanted)


def check_cwd(_host: Host) -> CheckResult:
    """The current directory exists."""
    wanted = "a directory that exists"
    try:
        return passed("cwd", os.getcwd(), wanted)
    except OSError:
        found = "the current directory no longer exists"
        return failed("cwd", DirectoryError, found, wanted, "cd ~")
