"""Envoy: static configurations and the `config_dump` of a running Envoy, checked against Envoy's own messages."""
