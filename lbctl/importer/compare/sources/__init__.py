"""The source rewritten for loopback: what listens, what it sends requests to, and nothing that leads elsewhere.

Addresses of replicas become those of echo servers, every other address one that nobody listens on. What would talk to
the world by itself is left out: logs, resolvers, modules, filters that ask services, health checks, TLS to replicas.
"""
