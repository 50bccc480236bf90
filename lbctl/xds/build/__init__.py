"""Builds and validates the resources that each proxy receives from a snapshot."""
