"""Rewrites a source for loopback: its listeners and its destinations, without access to other addresses.

Addresses of replicas become addresses of echo servers, and every other address becomes an address without a listener.
Parts that would communicate by themselves are left out: logs, resolvers, modules, filters that call services, health
checks, TLS to replicas.
"""
