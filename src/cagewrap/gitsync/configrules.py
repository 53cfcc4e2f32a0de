"""Which of an agent's changes to a repository's configuration reach the host's. Pure.

A list of what is known to name no program, and values that cannot lead to one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from cagewrap.gitsync.configtext import split_key
from cagewrap.gitsync.names import is_ref_name

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SEGMENT = r"[A-Za-z0-9_](?:[A-Za-z0-9_.+-]*[A-Za-z0-9_+-])?"
_REMOTE_NAME = re.compile(f"{_SEGMENT}(?:/{_SEGMENT})*")
_USER = r"(?:[A-Za-z0-9_%+.~][^/@\s]*@)?"
_HOST = r"(?:[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\])"
_URL = re.compile(
    rf"(?:https?|ssh|git\+ssh|ssh\+git|git)://{_USER}{_HOST}(?::[0-9]+)?(?:/\S*)?", re.ASCII
)
_SCP = re.compile(r"(?:[A-Za-z0-9_.+-]+@)?[A-Za-z0-9][A-Za-z0-9.-]*:[^\s\\:-][^\s\\]*")
_REFSPEC = re.compile(r"[+^]?[A-Za-z0-9_./*-]*(?::[A-Za-z0-9_./*-]*)?")
_BOOLEAN = re.compile(r"true|false|yes|no|on|off|0|1", re.IGNORECASE)
_EMAIL = re.compile(r"[^\s<>]+")
_TEXT_BYTES = 1000


def is_allowed(key: str, values: Sequence[str], remotes: Collection[str]) -> bool:
    """Whether the host may get this key with these values; none: it is removed.

    remotes: the names of the remotes that the host will have.
    """
    section, subsection, name = split_key(key)
    check = _CHECKS.get((section, bool(subsection), name))
    if check is None or len(values) > 100:
        return False
    if subsection and (_CONTROL.search(subsection) or len(subsection) > _TEXT_BYTES):
        return False
    if section == "remote" and not is_remote_name(subsection):
        return False
    if any(_CONTROL.search(value) or len(value) > _TEXT_BYTES for value in values):
        return False
    return all(check(value, remotes) for value in values)


def is_remote_name(name: str) -> bool:
    """Whether this can only be the name of a remote; "" for all of them."""
    return not name or _REMOTE_NAME.fullmatch(name) is not None


def remotes_of(keys: Collection[str]) -> set[str]:
    """The names of the remotes among these keys."""
    split = (split_key(key) for key in keys)
    return {subsection for section, subsection, name in split if (section, name) == _REMOTE_URL}


def is_url(value: str, _remotes: Collection[str] = ()) -> bool:
    """An address over a network.

    Not a path: a push to it runs the hooks that lie there, and the agent can write some. Not
    `ext::…` and the like, which are programs.
    """
    if value.startswith("-") or "::" in value.partition("://")[0]:
        return False
    if "://" in value:
        return _URL.fullmatch(value) is not None
    return _SCP.fullmatch(value) is not None and "/" not in value.partition(":")[0]


def _is_text(value: str, _remotes: Collection[str]) -> bool:
    return value.isprintable()


def _is_email(value: str, _remotes: Collection[str]) -> bool:
    return _EMAIL.fullmatch(value) is not None


def _is_refspec(value: str, _remotes: Collection[str]) -> bool:
    return _REFSPEC.fullmatch(value) is not None


def _is_boolean(value: str, _remotes: Collection[str]) -> bool:
    return _BOOLEAN.fullmatch(value) is not None


def _is_rebase(value: str, remotes: Collection[str]) -> bool:
    return value == "merges" or _is_boolean(value, remotes)


def _is_remote(value: str, remotes: Collection[str]) -> bool:
    """Not an address or a path, which git would take too."""
    return value == "." or value in remotes


def _is_branch(value: str, _remotes: Collection[str]) -> bool:
    return is_ref_name(value)


def _is_tag_option(value: str, _remotes: Collection[str]) -> bool:
    return value in ("--tags", "--no-tags")


_REMOTE_URL = ("remote", "url")
_CHECKS = {
    ("user", False, "name"): _is_text,
    ("user", False, "email"): _is_email,
    ("author", False, "name"): _is_text,
    ("author", False, "email"): _is_email,
    ("committer", False, "name"): _is_text,
    ("committer", False, "email"): _is_email,
    ("remote", True, "url"): is_url,
    ("remote", True, "pushurl"): is_url,
    ("remote", True, "fetch"): _is_refspec,
    ("remote", True, "tagopt"): _is_tag_option,
    ("remote", True, "prune"): _is_boolean,
    ("remote", True, "gh-resolved"): _is_text,
    ("branch", True, "remote"): _is_remote,
    ("branch", True, "pushremote"): _is_remote,
    ("remote", False, "pushdefault"): _is_remote,
    ("branch", True, "merge"): _is_branch,
    ("branch", True, "rebase"): _is_rebase,
    ("branch", True, "vscode-merge-base"): _is_text,
    ("branch", True, "gh-merge-base"): _is_text,
    ("pull", False, "rebase"): _is_rebase,
    ("push", False, "autosetupremote"): _is_boolean,
}
