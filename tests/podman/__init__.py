"""Real cages: every test runs real containers, as an unprivileged user. See ./check podman-4.3."""

import pytest

pytest.register_assert_rewrite(f"{__name__}.cages")
