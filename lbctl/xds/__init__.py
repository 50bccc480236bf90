"""Envoy's configuration protocol (xDS v3): resources, the transport protocol, and a separate client."""
