"""The shim: one short-lived, childless process per message.

It finds the cage's keeper, hands over the command and its own three file descriptors, and waits.
"""

from __future__ import annotations

import _socket
import os

from cagewrap import warm
from cagewrap.errors import CagewrapError, DirectoryError, ImageMissingError, KeeperError
from cagewrap.shim import Shim

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from cagewrap.launch import Plan

_CONNECT_TRIES = 8
"""A keeper that is about to stop sends the shim away; each try may meet one such keeper."""

_made_images: list[str] = []
"""What this message got built: once is enough."""


def wrap(flags: list[str], command: list[str]) -> None:
    """Run `command` in the cage that `flags` and the current directory choose; never returns
    unless it raises CagewrapError."""
    _occupy_closed_fds()
    try:
        cwd = os.getcwdb()
    except OSError as error:
        raise DirectoryError(
            "The current directory no longer exists, so there is nothing to work in.", "cd ~"
        ) from error
    raw_flags = [os.fsencode(flag) for flag in flags]
    ticket = warm.read_ticket(cwd, raw_flags) if command else None  # the full path says it
    connection = _connect(ticket.socket) if ticket else None
    for _ in range(_CONNECT_TRIES):
        if ticket is None or connection is None:
            ticket, connection = _prepare(flags, command, cwd)
        try:
            _hand_over(connection, ticket, command, cwd)
        except CagewrapError as error:
            _make_image(error, lambda: _wanted_image(flags))
        connection = None
        _wait_a_moment()
    raise _kept_leaving()


def _make_image(error: CagewrapError, image: Callable[[], str]) -> None:
    """Build the image whose want was the `error`, once, or raise that."""
    if error.exit_code != ImageMissingError.exit_code or _made_images:
        raise error
    from cagewrap.image import first

    if not first.is_built_here(error, image()):
        raise error
    first.get_image()
    _made_images.append(image())


def _wanted_image(flags: list[str]) -> str:
    from cagewrap import launch

    return launch.make_plan(flags)[0].settings.image


def _prepare(
    flags: list[str], command: list[str], cwd: bytes
) -> tuple[warm.Ticket, _socket.socket]:
    from cagewrap.ahead import Ahead

    with Ahead() as ahead:
        from cagewrap import launch  # while the keeper starts

        return launch.prepare(flags, command, cwd, ahead)


def wrap_in(name: str, command: list[str]) -> None:
    """Run `command` in the cage of that name, in the current directory; never returns."""
    from cagewrap import launch

    _occupy_closed_fds()
    for _ in range(_CONNECT_TRIES):
        ticket, connection = launch.prepare_named(name)
        try:
            _hand_over(connection, ticket, command, os.getcwdb())
        except CagewrapError as error:
            _make_image(error, lambda: launch.image_of(name))
        _wait_a_moment()
    raise _kept_leaving()


def wrap_plan(plan: Plan, command: list[str]) -> None:
    """Run `command` in the cage of a plan that was not made of a command line; never returns."""
    from cagewrap import launch

    for _ in range(_CONNECT_TRIES):
        ticket, connection = launch.prepare_plan(plan, command)
        try:
            _hand_over(connection, ticket, command, os.fsencode(plan.project.cwd))
        except CagewrapError as error:
            _make_image(error, lambda: plan.settings.image)
        _wait_a_moment()
    raise _kept_leaving()


def _wait_a_moment() -> None:
    """Let a keeper that is leaving leave."""
    import time

    time.sleep(0.1)


def _kept_leaving() -> KeeperError:
    return KeeperError(
        f"The cage's keeper went away {_CONNECT_TRIES} times before it took the command.",
        "cagewrap logs",
    )


def _hand_over(
    connection: _socket.socket, ticket: warm.Ticket, words: list[str], cwd: bytes
) -> None:
    """Give a command to a keeper and end as its agent ends; returns when the keeper never began."""
    shim = Shim(connection, ticket)
    if shim.is_terminal:
        from cagewrap.terminal import TerminalRelay

        TerminalRelay(shim).run(words, cwd)
    elif shim.relayed:
        from cagewrap.mixed import MixedRelay

        MixedRelay(shim).run(words, cwd)
    else:
        shim.run(words, cwd)
    connection.close()


def _connect(path: bytes) -> _socket.socket | None:
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    try:
        connection.connect(path)
    except OSError:
        connection.close()
        return None
    return connection


def _occupy_closed_fds() -> None:
    """Put /dev/null where 0, 1 or 2 came closed, so that no file of ours lands there."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open("/dev/null", os.O_RDONLY if fd == 0 else os.O_WRONLY)
            os.set_inheritable(fd, True)  # noqa: FBT003
