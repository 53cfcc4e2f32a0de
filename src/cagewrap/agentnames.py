"""The agents that cagewrap knows by name. Imports nothing: a symlink to cagewrap that is named for
one of them asks here before each message."""

from __future__ import annotations

FOR_PEOPLE = ("claude", "codex", "opencode", "gemini", "pi")
"""Agents that somebody may start from a shell."""
AGENTS = (*FOR_PEOPLE, "claude-agent-acp", "claude-code-acp", "codex-acp")
"""Whose program a cage gets from this machine without being told, when it is there."""

AS = "--as"
"""Before an agent's name: with it a shim file calls cagewrap. What follows `--` are the agent's
arguments alone then."""

ASK_VERSION = {
    "claude": ("--version", "-v"),
    "codex": ("--version", "-V"),
    "opencode": ("--version", "-v"),
    "gemini": ("--version", "-v"),
    "pi": ("--version", "-v"),
}
"""The one argument with which an agent says its version and does nothing else."""

ON_HOST = "CAGEWRAP_ON_HOST"
"""Set for an agent's program that cagewrap runs on this machine, to its path: if that comes to
cagewrap again, it went round."""

PROGRAM = "CAGEWRAP_PROGRAM"
"""Set by a cagewrap in a single file to its path, which is what a shim file is to run."""
