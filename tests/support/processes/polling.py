"""Telemetry that makes lbctl read the proxies' own counters every second, instead of every five seconds."""

from __future__ import annotations

from typing import Any

_ABSENT = {"kind": "custom", "url": "http://127.0.0.1:9/metrics", "metric": "m", "signal": "queue", "unit": "requests"}
"""A source that never responds, so that it does not affect weights."""
POLLED_EACH_SECOND: dict[str, Any] = {"telemetry": {"interval": "1s", "sources": [_ABSENT]}}
"""Keys of a pool. Load reports and HAProxy's counters use the shortest telemetry interval of a fleet."""
