"""Runs a configuration and its fleet on loopback with echo servers, and compares how requests are handled."""
