"""Markers; ./check decides what is run where."""

import pytest

MARKERS = (
    "podman: starts real containers, as an unprivileged user",
    "peers: drives real agents and harnesses",
    "bench: measures",
    "chaos: kills at random moments, CAGEWRAP_CHAOS_KILLS times",
    "slow: takes more than a few seconds",
    "host_side: what is done on the host, the same whichever podman runs",
    "smoke: one of the few that ./check quick runs in a container",
)


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
