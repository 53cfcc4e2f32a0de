"""A message that needs the workbench image while there is none: one builds it, all wait for it.

The build is a process of its own session: a harness that loses patience and kills the message does
not lose what was built so far. Who presses ctrl-c as the last who waits ends it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import time

from cagewrap import proc, protocol
from cagewrap.ahead import self_command
from cagewrap.errors import CagewrapError, ImageMissingError
from cagewrap.image import progress
from cagewrap.image.places import Places
from cagewrap.model import DEFAULT_IMAGE
from cagewrap.paths import paths_from_env

_POLL_S = 0.1
_TRIES = 2
"""A build may be killed while others wait; one of them begins another."""


def is_built_here(error: CagewrapError, image: str) -> bool:
    """Whether a start failed for want of the image that cagewrap builds itself."""
    return error.exit_code == ImageMissingError.exit_code and image == DEFAULT_IMAGE


def get_image() -> None:
    """Build the image, or wait for the build that runs. Raises what made it fail."""
    # The shim's own, which would only note a signal for a keeper.
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    places = Places(paths_from_env(os.environ, os.getuid()))
    show = shown()
    with open(places.waiters, "a", encoding="utf-8") as waiters:
        fcntl.flock(waiters, fcntl.LOCK_SH)
        try:
            for _ in range(_TRIES):
                if _follow(places, show):
                    return
        except KeyboardInterrupt:
            _end_if_alone(places, waiters.fileno())
            raise
    raise ImageMissingError("The build of the image was killed.", "cagewrap image build")


def shown(*, as_json: bool | None = None) -> progress.Show:
    """How a build is shown on our stderr: to a person, or to a harness."""
    if os.isatty(2) and not as_json:
        return progress.for_person(lambda: os.get_terminal_size(2).columns, _write)
    return progress.for_log(_write) if as_json is False else progress.for_harness(_write)


def _follow(places: Places, show: progress.Show) -> bool:
    """See one build to its end; begin it if none runs. False: it ended without a word."""
    is_running = _is_locked(places.lock)
    follower = progress.Follower(places.events, is_running=is_running)
    ours = None if is_running else _begin()
    while True:
        has_ended = ours.poll() is not None if ours else not _is_locked(places.lock)
        for event in follower.read():
            if event["event"] == "failed":
                show(event)
                raise _error(event)
            show(event)
            if event["event"] == "made":
                if ours:
                    ours.wait()
                return True
        if has_ended:
            return ours is not None and ours.returncode == 0
        time.sleep(_POLL_S)


def _begin() -> proc.Child:
    null = os.open(os.devnull, os.O_RDONLY)
    try:
        return proc.start(self_command("image", "first"), env=os.environ, cwd="/", stdin=null)
    finally:
        os.close(null)


def _end_if_alone(places: Places, waiters: int) -> None:
    """Ask the build to end, unless somebody else waits for it."""
    try:
        fcntl.flock(waiters, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    with contextlib.suppress(OSError, ValueError), open(places.lock, encoding="utf-8") as file:
        if _is_locked(places.lock):
            os.kill(int(file.read()), signal.SIGTERM)


def _is_locked(path: str) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _error(event: progress.Event) -> CagewrapError:
    error = CagewrapError(event["message"], event["hint"])
    error.exit_code = event["exit_code"]
    return error


def _write(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, protocol.cut(text.encode(errors="backslashreplace")))


def main() -> int:
    """The build's own process: with the settings of this machine."""
    from cagewrap.image.build import Builder
    from cagewrap.image.settings import read_machine_recipe

    paths = paths_from_env(os.environ, os.getuid())
    builder = Builder(paths, os.environ, lambda _: None)
    try:
        try:
            recipe = read_machine_recipe(paths, os.environ)
        except CagewrapError as error:
            builder.fail(error)
        builder.build(recipe, DEFAULT_IMAGE, if_missing=True)
    except CagewrapError as error:
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
