"""Outgoing connections of the control plane: name resolution, and addresses that are never connected to."""
