"""All that is held back of a session, whoever holds it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from cagewrap.errors import CagewrapError
from cagewrap.held import Held, Provider
from cagewrap.paths import Paths
from cagewrap.sessions import Record


def providers(paths: Paths, record: Record) -> tuple[Provider, ...]:
    """Who holds something back."""
    from cagewrap.holding.provider import HeldFiles

    files = HeldFiles(paths, record)
    if not os.path.exists(paths.carried_file(record.name)):
        return (files,)  # `ls` asks of every session: nothing is loaded for those without git

    from cagewrap.githeld import HeldGit

    return (files, HeldGit(paths, record))


def pending(found: Sequence[Provider]) -> tuple[Held, ...]:
    """All of it, by path."""
    every = [one for provider in found for one in provider.pending()]
    return tuple(sorted(every, key=lambda one: one.path))


def count(paths: Paths, record: Record) -> int:
    """How much it is, quickly; 0 when that cannot be said."""
    try:
        return sum(provider.count() for provider in providers(paths, record))
    except (CagewrapError, OSError):
        return 0
