"""The service of the picker: proxies and gateways ask it for a replica for each request. It runs in its own process."""
