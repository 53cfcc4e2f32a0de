"""cagewrap's own login to Claude, as it lies on the host.

`$XDG_STATE_HOME/cagewrap/login/claude/` is of the owner alone and never mounted:
`.credentials.json` (as Claude Code writes it, refresh token and all; written by `cagewrap login`
and `refresh` alone), `token` (a long-lived token or API key), `status.json` (how renewing went).
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Mapping
from typing import NamedTuple

from cagewrap import stamps
from cagewrap.auth import Found, LoginState
from cagewrap.digests import sha256
from cagewrap.errors import CagewrapError, DirectoryError
from cagewrap.paths import Paths
from cagewrap.sessions import make_private
from cagewrap.stamps import NO_FILE, Stamp

CREDENTIALS = ".credentials.json"
MOST_BYTES = 1 << 16
EARLY_S = 600.0
"""A login with less than this left is renewed."""
_HANDED = (
    "accessToken", "expiresAt", "scopes", "subscriptionType", "subscriptionTypeSource",
    "rateLimitTier",
)  # fmt: skip
"""What of a login an agent gets, as it stands: the model that Claude chooses depends on it."""


class Credentials(NamedTuple):
    """One login. values: what stands below claudeAiOauth. Never shown."""

    values: Mapping[str, object]

    def __repr__(self) -> str:
        """Without the tokens."""
        return f"Credentials(expires_at={self.expires_at:.0f})"

    @property
    def access_token(self) -> str:
        """What goes along with each request."""
        return str(self.values["accessToken"])

    @property
    def refresh_token(self) -> str:
        """What gets the next access token; "" in a dead login."""
        return str(self.values.get("refreshToken") or "")

    @property
    def expires_at(self) -> float:
        """When the access token ends, in seconds since the epoch."""
        found = self.values.get("expiresAt")
        return found / 1000 if isinstance(found, int | float) else 0.0

    @property
    def digest(self) -> str:
        """Tells this refresh token from another, and nothing else."""
        return sha256(self.refresh_token.encode()).hexdigest()[:16]

    def for_agent(self) -> bytes:
        """The file that a cage gets: no refresh token, and nothing but what is known to be fine."""
        kept = {name: self.values[name] for name in _HANDED if name in self.values}
        return json.dumps({"claudeAiOauth": kept | {"refreshToken": None}}).encode()

    def whole(self) -> bytes:
        """The file as Claude Code writes it."""
        return json.dumps({"claudeAiOauth": dict(self.values)}).encode()


class Status(NamedTuple):
    """How renewing went. Times in seconds since the epoch.

    outcome: "" (not tried), "ok", "failed" or "dead". digest: of the refresh token it was tried
    with. detail: a sentence without secrets.
    """

    tried_at: float = 0.0
    refreshed_at: float = 0.0
    outcome: str = ""
    digest: str = ""
    detail: str = ""


def parse_credentials(content: bytes) -> Credentials | None:
    """What a .credentials.json says; None when it holds no access token that Claude would use."""
    try:
        values = json.loads(content)["claudeAiOauth"]
    except (ValueError, KeyError, TypeError):
        return None
    if not isinstance(values, dict):
        return None
    token, scopes = values.get("accessToken"), values.get("scopes")
    if not (isinstance(token, str) and token and isinstance(scopes, list)):
        return None
    return Credentials(values) if "user:inference" in scopes else None


class LoginStore:
    """The directory of one owner's login."""

    def __init__(self, paths: Paths) -> None:
        """Looks at nothing yet."""
        self.directory = paths.login_dir
        self.credentials_file = os.path.join(self.directory, CREDENTIALS)
        self.token_file = os.path.join(self.directory, "token")
        self.lock_file = os.path.join(self.directory, "lock")
        self._status_file = os.path.join(self.directory, "status.json")
        self._cached: tuple[Stamp, Credentials | None] = (NO_FILE, None)

    def read(self) -> Credentials | None:
        """The login; None when there is none. A file that has not changed is not read again."""
        at = stamps.stamp(self.credentials_file)
        if at != self._cached[0]:
            content = read_private(self.credentials_file)
            self._cached = at, parse_credentials(content) if content else None
        return self._cached[1]

    @property
    def stamp(self) -> Stamp:
        """Of the file that `read` has read last."""
        return self._cached[0]

    def read_token(self) -> str:
        """The token; "" when there is none."""
        return (read_private(self.token_file) or b"").decode(errors="replace").strip()

    def read_status(self) -> Status:
        """How renewing went."""
        try:
            found = json.loads(read_private(self._status_file) or b"{}")
            known = Status._fields
            return Status(**{name: value for name, value in found.items() if name in known})
        except (ValueError, TypeError, AttributeError):
            return Status()

    def look(self, now: float, own: str = "") -> Found:
        """What there is to log in with. own: see Found."""
        return Found(self.state(now), stamps.stamp(self.token_file) != NO_FILE, own)

    def state(self, now: float) -> LoginState:
        """What has become of the login."""
        found = self.read()
        if found is None:
            return LoginState.ABSENT
        if found.expires_at > now:
            return LoginState.VALID
        return LoginState.DEAD if self.is_dead(found) else LoginState.EXPIRED

    def is_dead(self, credentials: Credentials) -> bool:
        """Whether it cannot be renewed."""
        status = self.read_status()
        is_refused = status.outcome == "dead" and status.digest == credentials.digest
        return is_refused or not credentials.refresh_token

    def write(self, credentials: Credentials) -> None:
        """Take a login, whole or not at all."""
        self._write(self.credentials_file, credentials.whole())

    def write_token(self, token: str) -> None:
        """Take a token."""
        self._write(self.token_file, token.encode() + b"\n")

    def write_status(self, status: Status) -> None:
        """Write down how renewing went."""
        self._write(self._status_file, json.dumps(status._asdict()).encode())

    def forget(self) -> tuple[str, ...]:
        """Remove login and token; returns what there was."""
        found = []
        for name, path in (("login", self.credentials_file), ("token", self.token_file)):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
                found.append(name)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._status_file)
        return tuple(found)

    def _write(self, path: str, content: bytes) -> None:
        make_private(self.directory)
        replace_file(path, content)


def read_private(path: str) -> bytes | None:
    """A file of the owner alone; None when there is none. Raises DirectoryError for one that
    others could have read or written."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DirectoryError(f"{path} cannot be read: {error.strerror}.", f"rm {path}") from None
    with open(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise _unsafe(path)
        return file.read(MOST_BYTES)


def _unsafe(path: str) -> CagewrapError:
    return DirectoryError(f"{path} is a login, and not a file of yours alone.", f"chmod 600 {path}")


def replace_file(path: str, content: bytes, *, lasting: bool = True) -> None:
    """Write a file of the owner alone so that a reader sees the old content or the new.

    lasting: it must survive a power cut.
    """
    temporary = f"{path}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(content)
        file.flush()
        if lasting:
            os.fsync(fd)
    os.replace(temporary, path)
