"""Rewrites a source's listeners and destinations for loopback, so that it cannot access other addresses.

Replica addresses are replaced by echo server addresses, and every other address by an address without a listener. Parts
that communicate on their own are omitted. These are logs, resolvers, modules, filters that call services, health
checks, and TLS to replicas.
"""
