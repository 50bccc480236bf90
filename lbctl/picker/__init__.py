"""The picker service, which proxies and gateways query to choose a replica for each request.

The picker runs in a separate process.
"""
