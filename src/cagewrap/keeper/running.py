"""A container that runs: what the keeper holds of it, and how messages are launched into it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from cagewrap.diskspace import is_full
from cagewrap.errors import CagewrapError, InternalError, KeeperError, SessionError
from cagewrap.keeper import cgroups, handover, namespaces
from cagewrap.keeper.care import Care
from cagewrap.keeper.container import Container
from cagewrap.keeper.inheritance import Known
from cagewrap.keeper.launcher import Inside, Launcher, look_inside
from cagewrap.keeper.loop import Loop
from cagewrap.keeper.message import Message
from cagewrap.keeper.ports import Ports
from cagewrap.keeper.processes import is_ending
from cagewrap.keeper.programs import Programs
from cagewrap.keeper.upkeep import Upkeep
from cagewrap.model import Identity
from cagewrap.paths import Paths
from cagewrap.runtimes.oci import runtime
from cagewrap.sessions import Record, explain_os_error


class Running:
    """Made once the container's init runs, and what is mounted has been looked at."""

    def __init__(
        self,
        loop: Loop,
        record: Record,
        paths: Paths,
        container: Container,
        cares: Sequence[Care],
        our_cgroup: str,
        is_alone: Callable[[], bool],
        log: Callable[[str], None],
    ) -> None:
        """our_cgroup: where messages go when the container has no cgroup of its own.

        is_alone: whether at most one message runs. Raises OSError or CagewrapError.
        """
        self.record = record
        self.launched = 0
        self._directory = paths.cage_dir(record.name)
        self._log = log
        pid = container.init_pid
        oci = runtime(record.runtime)
        is_root = record.identity == Identity.ROOT.value
        ids = (0, 0) if is_root else (os.getuid(), os.getgid())
        state_dir = oci.state_dir(paths.podman_runtime_dir)
        self.bundle = oci.bundle(state_dir, container.container_id)
        inside = look_inside(pid, container.container_id, state_dir, ids)
        self.init_fd = os.pidfd_open(pid)
        work_dir = os.path.join(paths.runtime_dir, record.name + ".d")
        self.launcher = Launcher(loop, oci, inside, work_dir, dict(os.environ), is_alone)
        self.message_parent = self._take_cgroup(inside) if inside.own_cgroup else our_cgroup
        self.upkeep = Upkeep(record, pid)
        self.ports = Ports(loop, record.name, pid)
        self._programs = Programs(record, paths, pid, log)
        self.cares = tuple(cares)

    def hand_on(self) -> Known:
        """For the keeper that goes on as another build."""
        return {"upkeep": self.upkeep.hand_on(), "ports": self.ports.hand_on()}

    def go_on(self, known: Known) -> None:
        """As that keeper, before `open_ports`."""
        self.upkeep.go_on(known.get("upkeep", {}))
        self.ports.go_on(known.get("ports", {}))

    def open_ports(self, note: Callable[[str], None]) -> None:
        """Open the ports of the record. One of the host's that is taken is told, and left out."""
        for inside_port, outside_port in self.record.host_ports:
            self.ports.lead_in(inside_port, outside_port)
        for outside_port, inside_port in self.record.publish:
            try:
                self.ports.publish(outside_port, inside_port)
            except SessionError as error:
                note(f"{error.message} ({error.hint})")

    def launch(self, message: Message) -> None:
        """Start a message's process, or tell its shim why not."""
        try:
            self.upkeep.check(message.note)
        except CagewrapError as error:
            self._refuse(message, error)
            return
        self._prepare(message, self.cares)

    def _prepare(self, message: Message, cares: Sequence[Care]) -> None:
        if message.is_closed:  # its shim went away meanwhile
            return
        request = message.request
        assert request is not None  # noqa: S101 - it was taken
        try:
            if cares:
                cares[0].before(
                    request, message.note_care, lambda: self._prepare(message, cares[1:])
                )
                return
            env = handover.environment(request, self.record, self.launcher.inside.environment)
            for care in self.cares:
                env |= care.environment(request, env)
            command = self._programs.command(request, env, message.note)
            env |= command.env
            message.launch(self.launcher, command.argv, env, self._message_cgroup(), self._after)
        except CagewrapError as error:
            self._refuse(message, error)
        except OSError as error:
            self._refuse(message, self._explain(error))
        except Exception as error:  # noqa: BLE001 - or its shim would wait for ever
            self._log(f"bug: {type(error).__name__}: {error}")
            bug = InternalError(f"A bug in the keeper: {error!r}.", "cagewrap logs")
            self._refuse(message, bug)

    def _refuse(self, message: Message, error: CagewrapError) -> None:
        """A container that ended a moment ago is started again; nothing is wrong with it."""
        if is_ending(self.launcher.inside.init_pid):
            message.retry()
        else:
            message.abandon(error)

    def _explain(self, error: OSError) -> CagewrapError:
        if is_full(error):
            return explain_os_error(error, self._directory, self.record.project)
        return KeeperError(f"The agent could not be started: {error}.", "cagewrap doctor")

    def _after(self, message: Message) -> None:
        assert message.request is not None  # noqa: S101
        for care in self.cares:
            care.after(message.request, message.note_care)

    def astray(self) -> str:
        """Why the cage must not go on, "" when it may."""
        return next((why for care in self.cares if (why := care.astray())), "")

    def mend(self) -> None:
        """All was killed because the cage must not go on."""
        for care in self.cares:
            care.mend()

    def poll(self) -> None:
        """What is done while anything of a message runs."""
        for care in self.cares:
            care.poll()

    def idle(self) -> None:
        """Nothing of a message runs any more."""
        for care in self.cares:
            care.idle()

    def close(self) -> None:
        """The cage stops."""
        self.ports.close()

    def _message_cgroup(self) -> str:
        """A new cgroup for a message, "" without any.

        One that a killed keeper left is not used again: a child made in a cgroup that was killed
        once is killed too (see spawn.can_clone_into).
        """
        self.launched += 1
        if not self.message_parent:
            return ""
        path = os.path.join(self.message_parent, f"m{self.launched}")
        if os.path.exists(path):
            return self._message_cgroup()
        if not cgroups.make(path):
            raise KeeperError(f"The cgroup {path} cannot be made.", "cagewrap doctor")
        return path

    def _take_cgroup(self, inside: Inside) -> str:
        """The container's own cgroup, if messages can get children of it, else ""."""
        if cgroups.may_divide(inside.container_cgroup):
            return inside.container_cgroup

        # A user namespace of the container's own (keep-id): the runtime gave it to root in there.
        def take() -> bytes:
            os.chown(inside.container_cgroup, inside.uid, inside.gid)
            return b""

        try:
            namespaces.run_inside(inside.init_pid, (), take)
        except OSError as error:
            self._log(f"{inside.container_cgroup} cannot be divided: {error}")
        return inside.container_cgroup if cgroups.may_divide(inside.container_cgroup) else ""
