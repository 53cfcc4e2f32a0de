"""What needs a whole machine, with systemd and the controllers of cgroups. See ./check vm."""

import pytest

pytest.register_assert_rewrite(f"{__name__}.machine")
