"""Builds and validates each proxy's resources from a snapshot."""
