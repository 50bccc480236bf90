"""Health checks for tests: they come as often as a busy machine allows.

The replicas of a test answer when their process has its turn: an HTTP check has seconds for it. The system accepts
connections, so TCP checks may come much more often.
"""

from __future__ import annotations

from typing import Any

OFTEN: dict[str, Any] = {"interval": "2s", "timeout": "2s", "unhealthy_threshold": 2, "healthy_threshold": 1}
TCP: dict[str, Any] = {
    "active": {"tcp": {}, "interval": "300ms", "timeout": "300ms", "unhealthy_threshold": 2, "healthy_threshold": 1},
    "passive": {"consecutive_connect_failures": 1, "ejection_time": "1s", "error_rate": {"window": "1s"}},
}
"""The `health` of a pool whose replicas refuse connections and return: they are out at once, and soon back."""
