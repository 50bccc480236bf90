"""Envoy: static configurations and the `config_dump` of a running Envoy, checked by Envoy's own messages."""
