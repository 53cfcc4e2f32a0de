"""What podman, crun, runc, slirp4netns and pasta say when something is wrong, and what mends it.

Data only. The texts were seen on podman 4.3, 5.4 and 5.8 (tests/unit/test_failures.py holds them
with the version each was seen on), those of AppArmor and of a memory controller in bug reports.
The first rule that matches wins, so the order is part of the data: a full keyring says "disk quota
exceeded", a machine without user namespaces "no space left on device".
"""

from __future__ import annotations

from cagewrap.runtimes.failure_rules import execution, machine, owner, request
from cagewrap.runtimes.failure_rules.rule import Rule

RULES: tuple[Rule, ...] = (
    *owner.NAMESPACE,
    *owner.DIRECTORY,
    *machine.NETWORK,
    *machine.CGROUP,
    *machine.STORAGE,
    *request.IMAGE,
    *request.MOUNT,
    *request.PROGRAM,
)
"""Failures of podman, first match wins."""

WARNING_RULES: tuple[Rule, ...] = (owner.NO_SUBIDS, machine.NO_CONTROLLER)
"""What podman only warns of, though the cage is then not what was asked for."""

EXEC_RULES: tuple[Rule, ...] = execution.EXEC
"""Failures of an OCI runtime to start a process in a running container."""
