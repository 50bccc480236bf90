"""Outgoing connections of the control plane: name resolution, and addresses to which it never connects."""
