"""Rewrites the listeners and destinations of a source for loopback, so that it cannot access other addresses.

Addresses of replicas become addresses of echo servers, and every other address becomes an address without a listener.
Parts that communicate on their own are left out: logs, resolvers, modules, filters that call services, health checks,
TLS to replicas.
"""
