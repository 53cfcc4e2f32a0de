"""Settings that want more kept from agents than a cage, which was made before, keeps from them."""

from __future__ import annotations

import itertools

from cagewrap.errors import SessionError
from cagewrap.sessions import Record


def refuse_looser(record: Record) -> None:
    """Raise SessionError when the cage of a session has what the settings of now want it not to
    have: other changes wait for `recreate`, these would not hold meanwhile."""
    if not record.is_outdated:
        return
    looser = []
    if is_without_network(record.wanted_args) and not is_without_network(record.run_args):
        looser.append("has a network, which the settings want it not to have")
    shown = sorted(set(record.wanted_hide) - set(record.hide))
    if shown:
        looser.append(f"was made before {', '.join(map(repr, shown))} was to be hidden")
    if looser:
        raise SessionError(
            f"The cage {record.name} {' and '.join(looser)}.", f"cagewrap recreate {record.name}"
        )


def is_without_network(args: tuple[str, ...]) -> bool:
    """Whether the arguments of `podman run` leave a container without a network."""
    return any(pair == ("--network", "none") for pair in itertools.pairwise(args))
