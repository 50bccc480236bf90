"""Envoy: static configurations and the `config_dump` of a running one, checked by Envoy's own messages."""
