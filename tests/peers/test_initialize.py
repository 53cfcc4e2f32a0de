"""What a harness waits for before each message."""

from __future__ import annotations

import os

import initialize
import pytest
from places import Caged, Direct

ADDED_S = 0.150  # the aim is 0.060; tests/bench shows how near we are


def test_initialize_is_answered_soon(
    direct: Direct, caged: Caged, capsys: pytest.CaptureFixture[str]
) -> None:
    # Podman finds its images by the cage's environment; Claude does not care.
    latency = initialize.compare(
        [direct.shim], [caged.shim], direct.project, os.environ | caged.env
    )
    with capsys.disabled():
        print(f"\n{latency}")
    assert latency.least_added_s <= ADDED_S
