"""From a request to the environment its agent gets."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping

from cagewrap.environment import agent_environment, read_localtime_link
from cagewrap.keeper.guest import Owner
from cagewrap.keeper.request import Request
from cagewrap.model import EnvPolicy, Identity
from cagewrap.sessions import Record


def environment(
    request: Request, record: Record, image: Mapping[bytes, bytes]
) -> dict[bytes, bytes]:
    """The agent's environment: image, what passes of the caller's, what the policy adds.

    image: the environment of the container's init. Raises CagewrapError.
    """
    identity = Identity(record.identity)
    return agent_environment(
        EnvPolicy(
            request.passed,
            (*record.fixed_env, *request.fixed),
            request.secret_names,
            request.secret_files,
        ),
        request.env,
        _of_the_image(image),
        home=os.fsencode(record.home),
        user=b"root" if identity is Identity.ROOT else os.fsencode(user_name()),
        shell=b"",
        identity=identity,
        cwd=_working_directory(request.env.get(b"PWD", b""), request.cwd, record),
        localtime=read_localtime_link(),
    )


def owner_inside(record: Record) -> Owner:
    """Who the owner is in a container of that session."""
    if record.identity == Identity.ROOT.value:
        return Owner(0, 0, "root", record.home)
    return Owner(os.getuid(), os.getgid(), user_name(), record.home)


def user_name() -> str:
    """The owner's name."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return "owner"


def _of_the_image(found: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """The container's own environment, less what podman sets for its init."""
    return {
        name: value
        for name, value in found.items()
        if name not in (b"HOME", b"TERM", b"HOSTNAME") and name
    }


def _working_directory(pwd_value: bytes, cwd: bytes, record: Record) -> bytes:
    """What PWD says: the caller's own spelling, where it exists inside too."""
    if pwd_value == cwd or not pwd_value.startswith(b"/"):
        return cwd
    targets = (os.fsencode(target) for _, target in record.binds)
    is_there = any(pwd_value == one or pwd_value.startswith(one + b"/") for one in targets)
    return pwd_value if is_there else cwd
