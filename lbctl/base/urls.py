"""URLs for display: the values of a query may be secrets, so they are replaced."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable

_QUERY = re.compile(r"\?([^#]*)(#.*)?")
_VALUE = re.compile(r"(^|[&;])([^=&;]*=)?([^&;]+)")


def without_values(url: str) -> str:
    """Replace the query's values: `?token=abc&x` → `?token=…&…`. The fragment is dropped; it is never sent."""
    return _replaced(url, lambda _: "…")


def with_digests(url: str) -> str:
    """Replace each of the query's values with eight hexadecimal digits of its hash, so that two values differ."""
    return _replaced(url, digest)


def digest(value: str) -> str:
    """Return eight hexadecimal digits of the value's hash, in brackets, so that two values can be distinguished."""
    return f"[{hashlib.sha256(value.encode()).hexdigest()[:8]}]"


def _replaced(url: str, instead: Callable[[str], str]) -> str:
    def query(match: re.Match[str]) -> str:
        return "?" + _VALUE.sub(lambda part: f"{part[1]}{part[2] or ''}{instead(part[3])}", match[1])

    return _QUERY.sub(query, url, count=1)
