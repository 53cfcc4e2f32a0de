"""Files of a cage's other users: command lines that find, take back and delete them. Pure.

All run in podman's user namespace, where the owner is uid 0 and may change them. An agent may be
at work in the same directories: `find -execdir` enters each directory by descriptor and changes
what is named in there, and `rm` does the same, so that nothing is reached by a symlink put there
meanwhile. Neither has a limit to how deep directories may be.
"""

from __future__ import annotations

import os

_FOREIGN = ("-xdev", "!", "-uid", "0", "!", "-uid", "65534")
"""65534 is whoever has no id in the namespace: another user of the machine, such as its root."""
_IN_NAMESPACE = ("podman", "unshare")


def find_args(directory: str) -> tuple[str, ...]:
    """Print the files below a directory that neither the owner nor the machine's users own."""
    return (*_IN_NAMESPACE, "find", directory, *_FOREIGN, "-print0")


def take_back_args(directory: str) -> tuple[str, ...]:
    """Print them and make them the owner's."""
    chown = ("-execdir", "chown", "-h", "0:0", "--", "{}", "+")
    return (*find_args(directory), *chown)


def remove_args(path: str) -> tuple[str, ...]:
    """Delete a directory and all below it."""
    return (*_IN_NAMESPACE, "rm", "-rf", "--", path)


def parse(output: bytes) -> tuple[str, ...]:
    """The paths that `find` printed."""
    return tuple(os.fsdecode(path) for path in output.split(b"\0")[:-1])
