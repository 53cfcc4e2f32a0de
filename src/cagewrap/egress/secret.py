"""The login itself, read when it is needed, and again when it has changed."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import time
from collections.abc import Mapping
from typing import Any

from cagewrap import proc, stamps
from cagewrap.errors import CagewrapError
from cagewrap.upstream import Secret

WAIT_S = 20.0
"""How long a request waits for a token that has expired to be renewed. Then it is used as it is,
since this machine's clock may be wrong, and nobody waits for the same one again."""
_LOOK_S = 0.25
_COMMAND_S = 60.0
_KEEP_S = 300.0
"""How long what a command printed is used."""
_RETRY_S = 5.0
"""How long a command that failed is not run again."""
_DOUBT_S = 10.0
"""An agent can provoke refusals: what is remembered is forgotten so often at most."""
_MOST_BYTES = 1 << 20


class SecretError(Exception):
    """There is no login to add. The text is for the agent; no part of a secret is in it."""


class Vault:
    """One login."""

    def __init__(self, name: str, secret: Secret, env: Mapping[str, str]) -> None:
        """name: of the login, for texts. env: for the command."""
        self._name = name
        self._secret = secret
        self._env = env
        self._value = ""
        self._stamp = stamps.NO_FILE
        self._until = 0.0
        self._why = ""
        self._waited_for = ""
        self._doubted_at = 0.0
        self._lock = asyncio.Lock()

    async def read(self) -> str:
        """The login. Raises SecretError."""
        if self._secret.value:
            return _checked(self._secret.value.encode(), f"what was given for {self._name!r}")
        if self._secret.command:
            async with self._lock:  # one run, however many wait for it
                return await self._from_command()
        if self._secret.credentials:
            return await self._from_credentials(time.monotonic() + WAIT_S)
        return self._from_file()

    def doubt(self) -> None:
        """The API did not accept it: do not use what is remembered."""
        if time.monotonic() - self._doubted_at > _DOUBT_S:
            self._doubted_at = time.monotonic()
            self._until, self._stamp = 0.0, stamps.NO_FILE

    def _from_file(self) -> str:
        path = self._secret.file
        stamp = stamps.stamp(path)
        if stamp != self._stamp or not self._value:
            self._value, self._stamp = _checked(_content(path, self._name), path), stamp
        return self._value

    async def _from_credentials(self, deadline: float) -> str:
        path = self._secret.credentials
        while True:
            stamp = stamps.stamp(path)
            if stamp != self._stamp or not self._value:
                self._value, self._until = _token(_content(path, self._name), path)
                self._stamp = stamp
            is_late = time.monotonic() > deadline or self._value == self._waited_for
            if is_late or time.time() < self._until:
                self._waited_for = self._value if is_late else ""
                return self._value
            await asyncio.sleep(_LOOK_S)

    async def _from_command(self) -> str:
        if time.monotonic() < self._until:
            if self._why:
                raise SecretError(self._why)
            return self._value
        self._why = ""
        try:
            done = await asyncio.to_thread(
                proc.capture, self._secret.command, timeout_s=_COMMAND_S, env=self._env
            )
            if done.returncode == 0:
                self._value = _checked(done.stdout, "what the command printed")
                self._until = time.monotonic() + _KEEP_S
                return self._value
            self._why = f"ended with status {done.returncode}"
        except (OSError, CagewrapError, SecretError) as error:
            self._why = str(error)
        program = os.path.basename(self._secret.command[0])
        self._why = f"the command {program!r} for the login {self._name!r} failed: {self._why}"
        self._until = time.monotonic() + _RETRY_S
        raise SecretError(self._why)


def _content(path: str, name: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                return file.read(_MOST_BYTES)
    except FileNotFoundError:
        raise SecretError(
            f"there is no login {name!r} on the host. There: cagewrap login."
        ) from None
    except OSError as error:
        raise SecretError(f"{path} cannot be read: {error.strerror}.") from None
    raise SecretError(f"{path} is not a file.")


def _checked(content: bytes, what: str) -> str:
    """A secret as it can stand in a header."""
    try:
        text = content.decode("ascii").strip()
    except UnicodeDecodeError:
        text = ""
    if not text or not text.isprintable() or " " in text:
        raise SecretError(f"{what} is not one line with one word.")
    return text


def _token(content: bytes, path: str) -> tuple[str, float]:
    """The access token of a `.credentials.json`, and until when it holds (seconds since 1970)."""
    try:
        found: dict[str, Any] = json.loads(content)["claudeAiOauth"]
        return _checked(str(found["accessToken"]).encode(), path), found["expiresAt"] / 1000
    except (ValueError, KeyError, TypeError, SecretError):
        raise SecretError(
            f"{path} holds no login that can be used. On the host: cagewrap login."
        ) from None
