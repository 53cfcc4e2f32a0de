"""A power failure: the machine comes up again, and so does a kept cage with what was installed."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import pytest

from .machine import SlowCage

PLACE = Path.home() / "rebooted"


def test_cage_is_left_running_for_the_reboot() -> None:
    shutil.rmtree(PLACE, ignore_errors=True)
    cage = SlowCage(PLACE)
    cage.text("sh", "-c", "mkdir -p /opt/tool && echo installed >/opt/tool/it && echo mine >~/note")
    assert cage.keeper()
    (PLACE / "cage").write_bytes(pickle.dumps(cage))
    Path("/var/tmp/reboot").touch()


@pytest.mark.after_reboot
def test_cage_is_there_again_after_the_reboot() -> None:
    cage: SlowCage = pickle.loads((PLACE / "cage").read_bytes())
    before = cage.state()
    assert not cage.keeper()
    assert cage.text("sh", "-c", "cat /opt/tool/it ~/note") == "installed\nmine\n"
    after = cage.state()
    assert after["container_id"] == before["container_id"]
    assert after["boot_id"] != before["boot_id"]
    assert cage.text("true") == ""
    cage.remove()
