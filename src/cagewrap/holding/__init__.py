"""Keeping back what an agent writes in its project and a program of the host's would run."""
