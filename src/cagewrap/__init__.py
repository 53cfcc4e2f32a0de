"""cagewrap: run a coding agent in a rootless podman container of its own."""

__version__ = "0.1.0"
