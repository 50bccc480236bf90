"""Runs a comparison, and the proxies of it, where they reach nothing of this machine but their own directory."""
