"""Twenty at once."""

import subprocess
from collections.abc import Callable
from pathlib import Path

from podman.cages import Cage, Shim

COUNT = 20
LIMIT_S = 100


def outputs(shims: list[Shim]) -> list[tuple[int, bytes, bytes]]:
    found = []
    for shim in shims:
        out, err = shim.communicate(timeout=LIMIT_S)
        found.append((shim.returncode, out, err))
    return found


def start(cage: Cage, number: int) -> Shim:
    return cage.popen(
        "echo", str(number),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_twenty_at_once_in_one_cage(make_cage: Callable[..., Cage], program: Path) -> None:
    """On a machine where nothing runs yet, and where the single file has not unpacked itself."""
    cage = make_cage(program)
    cage.env["XDG_CACHE_HOME"] = str(cage.place.root / "cache")
    wanted = [(0, b"%d\n" % number, b"") for number in range(COUNT)]
    assert outputs([start(cage, number) for number in range(COUNT)]) == wanted
    assert len(cage.names()) == 1
    assert outputs([start(cage, number) for number in range(COUNT)]) == wanted
