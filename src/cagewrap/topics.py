"""What `cagewrap help TOPIC` shows: pages of the documentation, which come with the program."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType

from cagewrap.errors import InternalError
from cagewrap.plaintext import section_of

TOPICS: Mapping[str, tuple[tuple[str, str], ...]] = MappingProxyType(
    {
        "agents": (("how-to/run-an-agent-in-any-image.md", ""),),
        "broker": (("how-to/use-the-broker.md", ""),),
        "commands": (("reference/commands.md", ""),),
        "config": (("reference/config.md", ""),),
        "environment": (("reference/environment.md", ""),),
        "exit-codes": (("reference/exit-codes.md", ""),),
        "harnesses": (("agents-harnesses.md", ""),),
        "image": (("how-to/use-my-own-image.md", ""),),
        "login": (("how-to/log-in.md", ""),),
        "mounts": (("reference/mounts.md", ""),),
        "problems": (("how-to/fix-a-start-that-fails.md", ""),),
        "protected-paths": (("reference/protected-paths.md", ""),),
        "security": (("explanation/security-model.md", ""),),
        "sessions": (("reference/config.md", "Sessions"), ("reference/commands.md", "States")),
        "terminals": (("reference/terminals.md", ""),),
    }
)
"""Each topic's pages, by their path in the documentation; a heading where only that section is."""


def docs_dir() -> str:
    """Where the documentation is: in the package, or beside the sources that it is run from."""
    package = os.path.dirname(os.path.abspath(__file__))
    inside = os.path.join(package, "docs")
    if os.path.isdir(inside):
        return inside
    return os.path.join(os.path.dirname(os.path.dirname(package)), "docs")


def read_topic(name: str) -> str:
    """The Markdown of a topic. Raises InternalError when this cagewrap came without it."""
    parts = []
    for page, section in TOPICS[name]:
        path = os.path.join(docs_dir(), page)
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read()
        except OSError as error:
            raise InternalError(
                f"This cagewrap has come without its documentation: {path}: {error.strerror}.",
                "install cagewrap again",
            ) from error
        parts.append(section_of(text, section) if section else text)
    return "\n".join(parts)
