"""Runs a configuration and its fleet on loopback with echo servers, and compares the results of requests."""
