"""The picker service: proxies and gateways query it for a replica for each request. It runs in its own process."""
