"""The form of a known failure."""

from __future__ import annotations

from typing import NamedTuple

from cagewrap.errors import CagewrapError


class Rule(NamedTuple):
    """One known failure.

    pattern: a regular expression searched in everything the program said; its named groups, and
    the names in `failures.FILLERS`, stand in braces in `message` and `hint`.
    """

    pattern: str
    error: type[CagewrapError]
    message: str
    hint: str
