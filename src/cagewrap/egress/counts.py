"""How much a session has used its logins: counted by the broker, kept in a file of the session's.

The file lies in the session's directory, `requests.json`, and is replaced as a whole.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass

FILE = "requests.json"
FORMAT = 1


@dataclass(slots=True)
class Count:
    """Requests with one login. Counted when they are over, `requests` and `last_at` at once.

    refused: by the broker. failed: the API could not be reached or broke off. answered: by the API,
    by the first digit of the status. sent, received: bytes of bodies, as the API sees it.
    """

    requests: int = 0
    refused: int = 0
    failed: int = 0
    answered_2xx: int = 0
    answered_3xx: int = 0
    answered_4xx: int = 0
    answered_5xx: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    last_at: float = 0.0

    def begin(self) -> None:
        """A request has come."""
        self.requests += 1
        self.last_at = time.time()

    def answered(self, status: int) -> None:
        """The API has answered."""
        match status // 100:
            case 2:
                self.answered_2xx += 1
            case 3:
                self.answered_3xx += 1
            case 4:
                self.answered_4xx += 1
            case _:
                self.answered_5xx += 1


def read_counts(directory: str) -> dict[str, Count]:
    """What was counted, by login; empty when nothing was, or the file is not ours."""
    try:
        with open(os.path.join(directory, FILE), encoding="utf-8") as file:
            found = json.load(file)
        if found["format"] != FORMAT:
            return {}
        return {name: Count(**values) for name, values in found["logins"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def write_counts(directory: str, counts: Mapping[str, Count]) -> None:
    """Write them, whole or not at all. Raises OSError."""
    path = os.path.join(directory, FILE)
    logins = {name: asdict(count) for name, count in counts.items()}
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump({"format": FORMAT, "logins": logins}, file)
    os.replace(path + ".new", path)
