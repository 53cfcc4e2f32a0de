"""The workbench image: its recipe, how it is built, and what podman has of it."""
