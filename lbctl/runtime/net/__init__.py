"""Outgoing connections of the control plane: name resolution, and the addresses that lbctl never connects to."""
