"""Drivers: each applies the published fleet to one running proxy of this machine."""
