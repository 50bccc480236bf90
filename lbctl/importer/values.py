"""Values that occur in all proxies' configurations, and times and sizes in fleet-file form."""

from __future__ import annotations

import re

HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*(:\d{1,5})?")
"""A host with or without a port."""
DAY, HOUR, MINUTE, SECOND = 86_400_000, 3_600_000, 60_000, 1_000
"""Milliseconds."""
_MAX_DIGITS = 18
"""Maximum number of digits in the proxies' counters."""


def is_whole(text: str) -> bool:
    """Return whether `int` can convert the string, which must contain only ASCII digits, and not thousands of them."""
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS


def duration(value: int) -> str:
    """Format milliseconds in fleet-file form, in the largest unit that does not require a fraction."""
    for unit, size in (("h", HOUR), ("m", MINUTE), ("s", SECOND)):
        if value >= size and value % size == 0:
            return f"{value // size}{unit}"
    return f"{value}ms"


def written(size: int) -> str:
    """Format bytes in fleet-file form, in KiB if this does not require a fraction."""
    return f"{size >> 10}KiB" if size % 1024 == 0 else f"{size}B"
