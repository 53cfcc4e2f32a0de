"""How a table `[agents.NAME]` is written: which program an agent is. Its parser works on the table
as JSON, since a setting's value is a text everywhere."""

from __future__ import annotations

import re
from collections.abc import Mapping

from cagewrap.loginspec import agent_text
from cagewrap.model import AgentProgram
from cagewrap.values import BadValueError, nearest, parse_path

__all__ = ("AUTO", "HOST", "IMAGE", "agent_text", "parse_agent")

AUTO, HOST, IMAGE = "auto", "host", "image"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")
_KEYS = ("program",)


def parse_agent(text: str) -> AgentProgram:
    """The table `[agents.NAME]`."""
    import json

    name, table = json.loads(text)
    if not _NAME.fullmatch(name):
        raise BadValueError(f"{name!r} must be the name of a program, without a path")
    if not isinstance(table, Mapping):
        raise BadValueError(f"{name} must be a table: [agents.{name}]")
    for key in table:
        if key not in _KEYS:
            raise BadValueError(f"{name} has the key {key!r}{nearest(key, _KEYS)}")
    program = table.get("program", AUTO)
    if not isinstance(program, str):
        raise BadValueError(f"{name}: program must be a text in quotes")
    if program in (AUTO, HOST, IMAGE):
        return AgentProgram(name, program)
    if not program.startswith(("/", "~/")):
        raise BadValueError(
            f'{name}: program must be "host", "image", "auto" or a path that starts with / or ~/'
            f"{nearest(program, (AUTO, HOST, IMAGE))}"
        )
    return AgentProgram(name, parse_path(program))
