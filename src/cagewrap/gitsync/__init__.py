"""Carrying a git repository's state between the host's directory and a cage's private copy."""
