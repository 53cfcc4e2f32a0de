"""From a podman that is at work to a container that can take messages."""

from __future__ import annotations

from collections.abc import Callable

from cagewrap.builds import own_build
from cagewrap.errors import CagewrapError, KeeperError
from cagewrap.keeper import handover
from cagewrap.keeper.begin import Begun
from cagewrap.keeper.care import Care
from cagewrap.keeper.cares import make_cares
from cagewrap.keeper.covers import Cover
from cagewrap.keeper.entrance import Entrance
from cagewrap.keeper.newhome import seed_home
from cagewrap.keeper.ownprogram import Whose
from cagewrap.sessions import explain_os_error


class Arrival:
    """Of one cage. `cares` is what goes with its messages."""

    def __init__(self, begun: Begun, log: Callable[[str], None], whose: Whose = own_build) -> None:
        """Does nothing yet. whose: of which build programs of our own are."""
        self._begun, self._container = begun, begun.container
        self.cares: tuple[Care, ...] = ()
        self._entrance: Entrance | None = None
        self._error: CagewrapError | None = None
        try:
            self.cares = make_cares(
                begun.loop, begun.record, begun.paths, begun.container, log, whose
            )
        except OSError as error:  # such as a project that is not there
            self._error = explain_os_error(error)
        self._wanted: list[list[Cover]] = [[] for _ in self.cares]

    def prepare(self) -> None:
        """Do what can be done before the container runs. What goes wrong is raised by `enter`."""
        if self._error is not None:
            return
        try:
            if not self._begun.state.container_id:
                seed_home(self._begun.record, self._begun.paths)
            self._wanted = [list(care.prepare()) for care in self.cares]
            self._entrance = self._make_entrance()
        except OSError as error:
            self._error = explain_os_error(error)

    def enter(self) -> None:
        """Look at the mounts of the container that runs now, and add what is wanted.

        Raises MountRefusedError or OSError when it must not be used with the mounts it has, and
        another CagewrapError when it cannot be used at all.
        """
        if self._error is not None:
            raise self._error
        entrance = self._entrance or self._make_entrance()
        self._entrance = None
        wanted, self._wanted = self._wanted, [[] for _ in self.cares]
        entered = entrance.enter(self._container.init_pid)
        places = iter(entered.seen)
        for care, some in zip(self.cares, wanted, strict=True):
            care.mounted([next(places) for _ in some])
        if entered.failed:
            raise self.failed(entered.failed)

    def failed(self, why: object) -> KeeperError:
        """What is said of a container that runs and is of no use."""
        name = self._begun.record.name
        return KeeperError(
            f"The container {name} runs, but it cannot be entered: {why}.",
            f"cagewrap recreate {name}",
        )

    def close(self) -> None:
        """The cage stops, or never was."""
        for care in self.cares:
            care.close()
        if self._entrance is not None:
            self._entrance.close()

    def _make_entrance(self) -> Entrance:
        owner = handover.owner_inside(self._begun.record)
        wanted = [cover for some in self._wanted for cover in some]
        return Entrance(self._container.expected, owner, wanted)
