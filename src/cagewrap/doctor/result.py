"""What one check of the machine found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cagewrap.errors import CagewrapError

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check. `fix` is the command or edit that mends it, "" when all is well.

    ok: as wanted. warn: cages work, with the drawback that `found` names. fail: no cage can start,
    and `cagewrap -- COMMAND` would end with `exit_code` (0 unless it is a fail).
    """

    id: str
    status: Status
    found: str
    wanted: str
    fix: str = ""
    exit_code: int = 0


def passed(check: str, found: str, wanted: str) -> CheckResult:
    """All is well."""
    return CheckResult(check, "ok", found, wanted)


def warned(check: str, found: str, wanted: str, fix: str) -> CheckResult:
    """It works, at a price."""
    return CheckResult(check, "warn", found, wanted, fix)


def failed(check: str, kind: type[CagewrapError], found: str, wanted: str, fix: str) -> CheckResult:
    """No cage can start; `kind` is the error a start would end with."""
    return CheckResult(check, "fail", found, wanted, fix, kind.exit_code)


def raised(check: str, error: CagewrapError, wanted: str) -> CheckResult:
    """A fail that is already an error with its own words."""
    return CheckResult(check, "fail", error.message, wanted, error.hint, error.exit_code)


def exit_code_of(results: tuple[CheckResult, ...]) -> int:
    """0, or that of the first check that failed."""
    return next((result.exit_code for result in results if result.status == "fail"), 0)
