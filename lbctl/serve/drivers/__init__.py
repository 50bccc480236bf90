"""Drivers: each applies the published fleet to one running proxy on this machine."""
