"""Health checks that all systems with active checks use, so that none detects a fault earlier by its settings.

The interval and the numbers are the defaults of HAProxy: https://docs.haproxy.org/2.6/configuration.html#5.2-inter
"""

from __future__ import annotations

INTERVAL, TIMEOUT = 2, 1
"""Seconds."""
FAILURES, SUCCESSES = 3, 2
"""Consecutive checks after which a replica gets no requests, or gets requests again."""
POLL_INTERVAL = 1
"""Seconds between two queries of a replica's metrics, by systems that read them. The default of pools with lbctl's
picker."""
