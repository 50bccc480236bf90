"""Default ports: of the control plane's own endpoints on loopback, and of URL schemes."""

from __future__ import annotations

XDS = 18000
"""The port for Envoys, at 127.0.0.1."""
API = 18080
"""The port of the HTTP API, at 127.0.0.1."""
PICKER = 18001
"""The port of the replica picker, at 127.0.0.1."""
LOGS = 18514
"""The syslog port for access logs of HAProxy and nginx, at 127.0.0.1."""
BY_SCHEME = {"http": 80, "https": 443}
"""Scheme of a URL without a port → its port."""
