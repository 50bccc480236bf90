"""Runs a comparison and its proxies in a sandbox, where they can access only their own directory."""
