"""Work on the host that goes with a cage's messages: logins, settings, what is carried across."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cagewrap.keeper.covers import Cover, Identity
from cagewrap.keeper.inheritance import Known
from cagewrap.keeper.request import Request

POLL_S = 0.5
"""How often `Care.poll` is called while anything of a message runs."""

Keep = Callable[[int], int]
"""Has a descriptor stay open in the keeper that follows, and returns its number."""
Note = Callable[[str], None]
"""Takes a line for the stderr of the message's shim."""


class Care:
    """One such work; this one does nothing. Made while podman brings the container up.

    Everything here runs in the keeper's one thread: what takes longer than a few milliseconds is
    done by a process of its own.
    """

    name = ""
    """Under which `hand_on` finds its way to `go_on`; the same in every version."""

    def hand_on(self, keep: Keep) -> Known:  # noqa: ARG002
        """The keeper goes on as another build: what that one needs to know. No message runs; what
        agents left in the background does."""
        return {}

    def go_on(self, known: Known) -> None:
        """Go on where `hand_on` left off, before anything in the background moves again. With
        nothing known, do what is safe. Raises OSError or CagewrapError when it must not go on."""

    def prepare(self) -> Sequence[Cover]:
        """Do now what needs no container: podman is at work on it, and nothing runs in it. Returns
        what to mount as soon as it runs. `before` does what is not done here; raises nothing."""
        return ()

    def mounted(self, seen: Sequence[Identity]) -> None:
        """What is to be seen now in the places of what `prepare` returned; nothing at all if it
        could not be mounted. Before any message; raises nothing."""

    def can_ask(self, ask: Callable[[], None]) -> None:
        """Called once the container runs: `ask` has `astray` asked at once."""

    def before(self, request: Request, note: Note, ready: Callable[[], None]) -> None:  # noqa: ARG002
        """A message is about to start: call `ready`, now or later. Raises CagewrapError to refuse
        it (only now; later, `ready` is not called and the message ends with its shim)."""
        ready()

    def environment(self, request: Request, env: Mapping[bytes, bytes]) -> Mapping[bytes, bytes]:  # noqa: ARG002
        """Variables to add to the agent's, which are `env` so far."""
        return {}

    def astray(self) -> str:
        """Why the cage must not go on, "" when it may: asked before each message and each poll.
        Everything in it is killed then, without grace, and the next message starts it anew."""
        return ""

    def mend(self) -> None:
        """Called when all was killed because of `astray`, before anybody is told. Raises
        nothing."""

    def poll(self) -> None:
        """Called every POLL_S while anything of a message runs. Raises nothing."""

    def idle(self) -> None:
        """Nothing of any message runs any more, and `poll` was called since. Raises nothing."""

    def after(self, request: Request, note: Note) -> None:
        """The agent of a message has ended, and nobody has been told yet. Raises nothing. What it
        left in the background may still run."""

    def close(self) -> None:
        """The cage stops: no message runs any more, and a `--rm` cage's directory is still there.
        Raises nothing."""
