"""Envoy's configuration protocol (xDS v3): what is served, by which rules, and a reader that shares no code with it."""
