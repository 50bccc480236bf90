"""Default ports of the control plane's endpoints on loopback and of URL schemes."""

from __future__ import annotations

XDS = 18000
"""xDS endpoint for Envoys, on 127.0.0.1."""
API = 18080
"""HTTP API, on 127.0.0.1."""
PICKER = 18001
"""Replica picker, on 127.0.0.1."""
LOGS = 18514
"""Syslog port for HAProxy and nginx access logs, on 127.0.0.1."""
BY_SCHEME = {"http": 80, "https": 443}
"""Maps a URL scheme to its default port."""
