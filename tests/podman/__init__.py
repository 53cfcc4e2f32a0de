"""Real cages: every test starts real containers, as an unprivileged user. See ./check podman-4.3."""
