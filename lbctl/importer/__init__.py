"""Turns an existing configuration of nginx, HAProxy or Envoy into a fleet file, and accounts for every directive."""
