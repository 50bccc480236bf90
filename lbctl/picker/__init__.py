"""The picker service: for each request, proxies and gateways query it for a replica.

The picker runs in a separate process.
"""
