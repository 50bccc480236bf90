"""Health checks for tests: as frequent as a busy machine allows.

A replica of a test responds when its process gets processor time. One late check is therefore normal, and four in a row
are not.
"""

from __future__ import annotations

from typing import Any

OFTEN: dict[str, Any] = {
    "interval": "500ms",
    "timeout": "500ms",
    "unhealthy_threshold": 4,
    "healthy_threshold": 1,
}
TCP: dict[str, Any] = {
    "active": {"tcp": {}, "interval": "300ms", "timeout": "300ms", "unhealthy_threshold": 2, "healthy_threshold": 1},
    "passive": {"consecutive_connect_failures": 1, "ejection_time": "1s", "error_rate": {"window": "1s"}},
}
"""`health` of a pool whose replicas refuse connections and return: they are ejected immediately, and return soon."""
