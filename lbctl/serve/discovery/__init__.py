"""Replicas that the files leave to somebody else: which sources there are, and which answers count."""
