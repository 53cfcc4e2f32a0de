"""Every failure of cagewrap's own that a user can meet, and its exit code.

The agent's exit status passes through unchanged, so cagewrap's own codes sit in one range
(109-123) that agents do not use by convention, plus the field's 126 and 127 (a command that
cannot be run, a command that is not there). `docs/reference/exit-codes.md` is checked against
this module by a test.
"""

from __future__ import annotations


class CagewrapError(Exception):
    """A failure with a sentence saying what is wrong, and one saying what mends it.

    message: what is wrong and why, one or two sentences, no secret in it.
    hint: the one command or edit that mends it ("" only where nothing the user does can).
    """

    exit_code = 123
    id = "internal"

    def __init__(self, message: str, hint: str = "") -> None:
        """Keep both sentences; `str()` is the message alone."""
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.is_reported = False
        """Whether it already stands in a JSON document on stdout."""


class InternalError(CagewrapError):
    """A bug in cagewrap."""


class UsageError(CagewrapError):
    """A flag or argument of cagewrap's own that it does not know or cannot use."""

    exit_code = 110
    id = "usage"


class ConfigInvalidError(CagewrapError):
    """The configuration file cannot be read, or a value in it is not allowed."""

    exit_code = 111
    id = "config"


class MountRefusedError(CagewrapError):
    """A project or mount that would open the owner's machine to the cage, or cannot be mounted."""

    exit_code = 112
    id = "mount"


class PodmanMissingError(CagewrapError):
    """podman or a program it needs is not installed, or is too old."""

    exit_code = 113
    id = "podman"


class UserNamespaceError(CagewrapError):
    """The owner cannot have a user namespace: subuid, newuidmap, AppArmor, no-new-privileges."""

    exit_code = 114
    id = "userns"


class NetworkSetupError(CagewrapError):
    """The cage's network cannot be made: no /dev/net/tun, no pasta or slirp4netns."""

    exit_code = 115
    id = "network"


class CgroupError(CagewrapError):
    """The control groups of this machine are not usable: hybrid mode, no delegation."""

    exit_code = 116
    id = "cgroup"


class StorageError(CagewrapError):
    """podman's storage does not work: no overlay, wrong owner, no space left."""

    exit_code = 117
    id = "storage"


class ImageMissingError(CagewrapError):
    """The image is not on this machine."""

    exit_code = 118
    id = "image"


class DirectoryError(CagewrapError):
    """HOME, XDG_RUNTIME_DIR, the state directory or the current directory is not usable."""

    exit_code = 119
    id = "directory"


class SessionError(CagewrapError):
    """No such session, or more than one, or it is in use."""

    exit_code = 120
    id = "session"


class KeeperError(CagewrapError):
    """The cage's keeper could not start, died, or speaks another version."""

    exit_code = 121
    id = "keeper"


class UnsupportedError(CagewrapError):
    """Something asked for that cagewrap refuses because it would not hold (yet)."""

    exit_code = 122
    id = "unsupported"


class LoginError(CagewrapError):
    """A login was not completed, or what was given is no token."""

    exit_code = 109
    id = "login"


class AgentNotExecutableError(CagewrapError):
    """The agent's program is in the cage but cannot be executed."""

    exit_code = 126
    id = "not-executable"


class AgentNotFoundError(CagewrapError):
    """The agent's program, or its working directory, is not in the cage."""

    exit_code = 127
    id = "not-found"
