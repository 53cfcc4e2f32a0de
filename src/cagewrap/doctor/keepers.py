"""The keepers that run: whether they run this build."""

from __future__ import annotations

from collections.abc import Mapping

from cagewrap.doctor.result import CheckResult, passed, warned


def check_keepers(answers: Mapping[str, Mapping[str, object]], build: str) -> CheckResult:
    """Each goes on as this build with the first message that finds it idle.

    answers: of each session's keeper, to "status". build: this one's id.
    """
    wanted = "keepers of this build"
    others = [
        f"{name} (cagewrap {answer.get('version', '?')}, {answer.get('messages', 0)} at work)"
        for name, answer in sorted(answers.items())
        if answer.get("build") != build
    ]
    if others:
        found = f"{len(others)} of {len(answers)} run another build: {', '.join(others)}"
        fix = "none is needed: each goes on as this build with a message that finds it idle"
        return warned("keepers", found, wanted, fix)
    return passed("keepers", f"{len(answers)} running", wanted)
