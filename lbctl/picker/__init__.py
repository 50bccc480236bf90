"""The picker service, which proxies and gateways query for a replica for each request.

The picker runs in a separate process.
"""
