"""A cage that waits costs nothing, and doctor finds nothing to mend on this machine."""

from __future__ import annotations

import json
import time
from pathlib import Path

from podman.cages import IMAGE

from .machine import SlowCage


def ticks(pid: int) -> int:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(words[11]) + int(words[12])


def test_keeper_of_an_idle_cage_uses_no_processor(cage: SlowCage) -> None:
    cage.text("true")
    keeper = cage.keeper()
    time.sleep(3)
    before = ticks(keeper)
    time.sleep(5)
    assert ticks(keeper) == before


def test_doctor_finds_nothing_to_mend(cage: SlowCage) -> None:
    done = cage.cagewrap("doctor", "--json", "--image", IMAGE)
    checks = {check["id"]: check for check in json.loads(done.out)["checks"]}
    assert [check for check in checks.values() if check["status"] == "fail"] == []
    assert done.code == 0
    for name in ("cgroups", "cgroup-delegation", "controllers"):
        assert checks[name]["status"] == "ok", checks[name]
    print([check for check in checks.values() if check["status"] != "ok"])
