"""URLs as people may read them: what stands behind a `?` may be a token, so its values are not told."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable

_QUERY = re.compile(r"\?([^#]*)(#.*)?")
_VALUE = re.compile(r"(^|[&;])([^=&;]*=)?([^&;]+)")


def without_values(url: str) -> str:
    """`?token=abc&x` → `?token=…&…`. A fragment is left out: nobody is sent it."""
    return _replaced(url, lambda _: "…")


def with_digests(url: str) -> str:
    """The same, with eight hexadecimal digits in the place of each value: two values can be told apart."""
    return _replaced(url, lambda value: f"[{hashlib.sha256(value.encode()).hexdigest()[:8]}]")


def _replaced(url: str, instead: Callable[[str], str]) -> str:
    def query(match: re.Match[str]) -> str:
        return "?" + _VALUE.sub(lambda part: f"{part[1]}{part[2] or ''}{instead(part[3])}", match[1])

    return _QUERY.sub(query, url, count=1)
