"""Starts a configuration and its fleet on loopback before echo servers, and compares what requests meet there."""
