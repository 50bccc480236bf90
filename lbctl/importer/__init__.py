"""Converts an existing nginx, HAProxy or Envoy configuration to a fleet file, and accounts for every directive."""
