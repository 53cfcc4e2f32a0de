"""The JSON envelope every verb prints with --json."""

from __future__ import annotations

import json

from cagewrap import __version__
from cagewrap.errors import CagewrapError


def envelope(failure: CagewrapError | None, **values: object) -> str:
    """`{"cagewrap": version, "ok": bool, …}`, with an "error" object after a failure."""
    document: dict[str, object] = {"cagewrap": __version__, "ok": failure is None, **values}
    if failure is not None:
        failure.is_reported = True
        document["error"] = {
            "id": failure.id,
            "message": failure.message,
            "hint": failure.hint,
            "exit_code": failure.exit_code,
        }
    return json.dumps(document, indent=1)
