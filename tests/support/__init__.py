"""Shared parts of the tests: fleets, views, servers and clients that replace the environment of lbctl."""
