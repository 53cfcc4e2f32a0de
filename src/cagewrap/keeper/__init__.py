"""The keeper: the host process of one running cage."""
