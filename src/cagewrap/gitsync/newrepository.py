"""A repository that the agent made where the host had none."""

from __future__ import annotations

import os
from typing import Any

from cagewrap.gitsync.carryconfig import read_config
from cagewrap.gitsync.configtext import ConfigRefusedError
from cagewrap.gitsync.context import Context
from cagewrap.gitsync.pair import Pair, is_git_dir
from cagewrap.gitsync.side import Side

_CONFIG = """[core]
\trepositoryformatversion = {version}
\tfilemode = true
\tbare = false
\tlogallrefupdates = true
"""
_SHA256 = "[extensions]\n\tobjectformat = sha256\n"
_HEAD = "ref: refs/heads/main"


def begin_on_host(
    pair: Pair, host: Side, cage: Side, base: dict[str, Any], context: Context
) -> bool:
    """Make a repository of ours in the host's empty directory; whether there is one now.

    Everything in it is written here; what the agent has is carried into it afterwards.
    """
    if pair.borrows or not is_git_dir(cage) or os.listdir(host.fd):
        return False
    try:
        config = read_config(cage)[1]
    except (OSError, ConfigRefusedError):
        return False
    if config.get("extensions.refstorage", ("files",))[-1].lower() != "files":
        context.note("the agent's new git repository is not carried: it has no files of refs")
        return False
    is_sha256 = config.get("extensions.objectformat", ("",))[-1].lower() == "sha256"
    for path in ("objects/info/x", "objects/pack/x", "refs/heads/x", "refs/tags/x"):
        with host.parent(path, make=True):
            pass
    text = _CONFIG.format(version=int(is_sha256)) + (_SHA256 if is_sha256 else "")
    host.write("config", text.encode())
    host.write("HEAD", f"{_HEAD}\n".encode())
    keys = {key: list(values) for key, values in read_config(host)[1].items()}
    base["places"].clear()
    base["places"][""] = {"config": keys, "head": _HEAD}
    context.oid_length = 64 if is_sha256 else 40
    context.has_written = True
    context.note("the agent has made a git repository of the project: its commits are yours")
    return True
