"""What it means that a step of a build failed, by the last lines that its programs printed."""

from __future__ import annotations

import re

from cagewrap.errors import CagewrapError, ConfigInvalidError, ImageMissingError, StorageError

_FULL = re.compile(r"(?i)no space left on device|disk quota exceeded|enough free space")
_UNKNOWN = re.compile(r"Unable to locate package (\S+)|Package '?(\S+?)'? has no installation cand")
_UNREACHABLE = re.compile(
    r"(?i)Could not resolve|Temporary failure|Unable to connect|Cannot initiate the connection|"
    r"Failed to fetch|Network is unreachable|NewConnectionError|no such host|i/o timeout|"
    r"Could not find a version|connection refused|unable to download"
)
_NOISE = re.compile(r"^(STEP |-->|\s*$|time=|W: )")
_SHOWN = 3


def explain_step(what: str, tail: list[str], log: str) -> CagewrapError:
    """The error for a step that did not get to its end. log: where all its words are."""
    text = "\n".join(tail)
    if _FULL.search(text):
        return StorageError(
            f"The image was not made: the disk is full ({what}: {_line(_FULL, tail)}). The build "
            "needs room where podman keeps its images and where TMPDIR is (default /var/tmp).",
            "cagewrap gc && podman image prune --force",
        )
    unknown = _UNKNOWN.search(text)
    if unknown:
        return ConfigInvalidError(
            f"The image was not made: there is no package {unknown[1] or unknown[2]}.",
            "correct packages in the table [image], see cagewrap config --path",
        )
    if _UNREACHABLE.search(text):
        return ImageMissingError(
            f"The image was not made: {what} needs the network, and packages could not be "
            f"fetched: {_line(_UNREACHABLE, tail)}",
            "try again when it answers, or name another: cagewrap image build --mirror URL",
        )
    said = " / ".join([one for one in tail if not _NOISE.match(one)][-_SHOWN:])
    return ImageMissingError(
        f"The image was not made: {what} failed: {said[-600:] or 'it said nothing'}", f"less {log}"
    )


def _line(pattern: re.Pattern[str], tail: list[str]) -> str:
    return next(line.strip()[-300:] for line in tail if pattern.search(line))
