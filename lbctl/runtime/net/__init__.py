"""Outgoing connections of the control plane: name resolution, and the addresses it refuses to connect to."""
