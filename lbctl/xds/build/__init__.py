"""Builds and validates the resources of each proxy from a snapshot."""
