"""What a ref may be called and hold, when an agent wrote it. Pure.

Stricter than git's own check (git-check-ref-format) where git only warns.
"""

from __future__ import annotations

import re

REF_BYTES = 1000
"""A longer name of a ref is not carried."""
REF_DEPTH = 50
"""Nor is one with more slashes."""
VALUE_BYTES = 1200
"""A larger file is no ref."""

_OID = {40: re.compile(r"[0-9a-f]{40}"), 64: re.compile(r"[0-9a-f]{64}")}
_BAD = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|//|@\{")
_OURS_ALONE = ("refs/cagewrap/", "refs/replace/")
_OF_ONE_WORK_TREE = ("refs/bisect/", "refs/worktree/", "refs/rewritten/")


def is_oid(text: str, length: int) -> bool:
    """Whether this is the id of an object. length: hex digits, 40 or 64."""
    return _OID[length].fullmatch(text) is not None


def is_ref_name(name: str) -> bool:
    """Whether git would take this for a ref, and so would everything that prints or splits it."""
    if name == "refs/stash":
        return True
    if not name.startswith("refs/") or len(name) > REF_BYTES:
        return False
    if not 2 <= name.count("/") <= REF_DEPTH:
        return False
    if _BAD.search(name) or name.endswith(("/", ".")) or name == "refs/heads/HEAD":
        return False
    return not any(
        part.startswith((".", "-")) or part.endswith(".lock") for part in name.split("/")
    )


def is_carried_to_host(name: str) -> bool:
    """Whether an agent's ref of that name is the host's too. A replacement ref would let it show
    the host other content than a commit has."""
    return not name.startswith((*_OURS_ALONE, *_OF_ONE_WORK_TREE)) and is_ref_name(name)


def is_carried_to_cage(name: str) -> bool:
    """Whether the host's ref of that name is the cage's too."""
    return not name.startswith(_OF_ONE_WORK_TREE)


def parse_value(content: bytes, length: int) -> str | None:
    """What a file of a ref, or HEAD, says: an object id or `ref: refs/…`. None for anything
    else."""
    text = content.decode("utf-8", "surrogateescape")
    text = text.removesuffix("\n")
    if is_oid(text, length):
        return text
    if text.startswith("ref:"):
        target = text[4:].strip(" \t")
        if is_ref_name(target):
            return "ref: " + target
    return None
