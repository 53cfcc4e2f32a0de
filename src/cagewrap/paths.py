"""Where cagewrap keeps things: the only place that knows the XDG directories."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Mapping
from typing import NamedTuple

from cagewrap.errors import DirectoryError

_RUNTIME_HOME_BYTES = 107 - len("/cagewrap/cagewrap-123456789012345678901234-12345678.d/123456.tty")
"""sockaddr_un holds 107 bytes; this is what the longest name of ours leaves."""


class Paths(NamedTuple):
    """Absolute directories of one owner.

    config_file: `$XDG_CONFIG_HOME/cagewrap.toml`.
    caches_dir: `$XDG_CACHE_HOME/cagewrap`; downloads that cages share, which may be deleted.
    state_dir: `$XDG_STATE_HOME/cagewrap`; a session's record, private HOME and logs, kept.
    runtime_dir: `$XDG_RUNTIME_DIR/cagewrap`; sockets and locks, gone at reboot.
    podman_runtime_dir: `$XDG_RUNTIME_DIR` itself, the value every podman we start is given.
    """

    home: str
    config_file: str
    state_dir: str
    runtime_dir: str
    podman_runtime_dir: str
    caches_dir: str = ""

    @property
    def cages_dir(self) -> str:
        """One directory per session below it."""
        return os.path.join(self.state_dir, "cages")

    def carried_file(self, name: str) -> str:
        """What was carried between a session's git and the host's; beside the session's copy."""
        return os.path.join(self.cage_dir(name), "git", "base.json")

    def cage_dir(self, name: str) -> str:
        """The kept directory of the cage `name`."""
        return os.path.join(self.cages_dir, name)

    def record_file(self, name: str) -> str:
        """What is known of the cage `name`, as JSON."""
        return os.path.join(self.cages_dir, name, "record.json")

    def home_dir(self, name: str) -> str:
        """The private HOME of the cage `name`, on the host."""
        return os.path.join(self.cages_dir, name, "home")

    def cage_login_dir(self, name: str) -> str:
        """What the cage `name` sees at `auth.LOGIN_TARGET`: a login, or nothing."""
        return os.path.join(self.cages_dir, name, "login")

    @property
    def login_dir(self) -> str:
        """cagewrap's own login to Claude: of the owner alone, never mounted."""
        return os.path.join(self.state_dir, "login", "claude")

    @property
    def shared_login_dir(self) -> str:
        """The login directory that cages of mode `directory` share, and write to."""
        return os.path.join(self.state_dir, "login", "shared", "claude")

    def bin_dir(self, name: str) -> str:
        """The names of this machine's programs that are lent to the cage `name`."""
        return os.path.join(self.cages_dir, name, "bin")

    def loans_file(self, name: str) -> str:
        """Where in the cage `name` places were made for what is lent."""
        return os.path.join(self.cages_dir, name, "loans.json")

    def cache_dir(self, name: str) -> str:
        """The downloads of a package manager, shared by the cages that ask for them."""
        return os.path.join(self.caches_dir, name)

    def log_file(self, name: str) -> str:
        """The keeper's log of the cage `name`."""
        return os.path.join(self.cages_dir, name, "keeper.log")

    def socket_file(self, name: str) -> str:
        """Where the keeper of the cage `name` listens."""
        return os.path.join(self.runtime_dir, name + ".sock")


def paths_from_env(env: Mapping[str, str], uid: int) -> Paths:
    """Work the directories out from the environment; creates nothing.

    Raises DirectoryError when HOME or the runtime directory cannot be used, because podman
    would then fail later with a text that names neither.
    """
    home = env.get("HOME", "")
    if not home.startswith("/"):
        raise DirectoryError(
            "HOME is not set to an absolute path, so there is no place for sessions.",
            'export HOME="$(getent passwd "$(id -u)" | cut -d: -f6)"',
        )
    if not os.path.isdir(home):
        raise DirectoryError(
            f"HOME is {home!r}, which is not a directory.",
            'export HOME="$(getent passwd "$(id -u)" | cut -d: -f6)"',
        )
    config_home = _absolute(env, "XDG_CONFIG_HOME") or os.path.join(home, ".config")
    state_home = _absolute(env, "XDG_STATE_HOME") or os.path.join(home, ".local", "state")
    cache_home = _absolute(env, "XDG_CACHE_HOME") or os.path.join(home, ".cache")
    runtime_home = _runtime_home(env, uid)
    if len(os.fsencode(runtime_home)) > _RUNTIME_HOME_BYTES:
        raise DirectoryError(
            f"XDG_RUNTIME_DIR {runtime_home!r} is longer than {_RUNTIME_HOME_BYTES} bytes, and a "
            "socket below it could not be named.",
            f"export XDG_RUNTIME_DIR=/run/user/{uid}",
        )
    return Paths(
        home=home,
        config_file=os.path.join(config_home, "cagewrap.toml"),
        state_dir=os.path.join(state_home, "cagewrap"),
        runtime_dir=os.path.join(runtime_home, "cagewrap"),
        podman_runtime_dir=runtime_home,
        caches_dir=os.path.join(cache_home, "cagewrap"),
    )


def _absolute(env: Mapping[str, str], name: str) -> str:
    """The value, or "" when unset or relative (the XDG specification says to ignore those)."""
    value = env.get(name, "")
    return value if value.startswith("/") else ""


def _runtime_home(env: Mapping[str, str], uid: int) -> str:
    """One deterministic runtime directory: two callers that differ break podman's state."""
    wanted = _absolute(env, "XDG_RUNTIME_DIR")
    for candidate in filter(None, (wanted, f"/run/user/{uid}")):
        try:
            found = os.stat(candidate)
        except OSError as error:
            if candidate == wanted:
                raise DirectoryError(
                    f"XDG_RUNTIME_DIR is {candidate!r}: {error.strerror}.",
                    "sudo loginctl enable-linger $USER, then log in again",
                ) from error
            continue
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid:
            raise DirectoryError(
                f"XDG_RUNTIME_DIR {candidate!r} is not a directory of uid {uid}.",
                f"export XDG_RUNTIME_DIR=/run/user/{uid}",
            )
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise DirectoryError(
                f"XDG_RUNTIME_DIR {candidate!r} can be written by other users of this machine, who "
                "could put sockets of their own there.",
                f"chmod 700 {shlex.quote(candidate)}",
            )
        return candidate
    raise DirectoryError(
        f"XDG_RUNTIME_DIR is not set and /run/user/{uid} does not exist, so podman and cagewrap "
        "have no place for sockets.",
        "sudo loginctl enable-linger $USER, then log in again",
    )
