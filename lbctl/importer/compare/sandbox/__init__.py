"""Runs a comparison and its proxies in a sandbox in which they can access only their own directory."""
