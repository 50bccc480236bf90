"""Prompt tokens that an engine has found in its caches, by source, from the counters on its metrics page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

SOURCES = ("device", "host", "disk", "external")
"""Places of cached tokens, the fastest first: GPU memory, host memory, a disk, and another store or engine."""


class CachedTokens(NamedTuple):
    """Cumulative counts of an engine since its start."""

    total: float
    """Prompt tokens found in any cache."""
    by_source: Mapping[str, float]
    """Source → prompt tokens found there. It contains only the sources that the engine reports."""


def cached_tokens(quantities: Mapping[str, float]) -> CachedTokens | None:
    """Return the counts on a page with these quantities; None if the engine does not count cached tokens."""
    total = quantities.get("cached_total", quantities.get("cache_found"))
    if total is None:
        return None
    return CachedTokens(
        total, {source: quantities[name] for source in SOURCES if (name := f"cached_{source}") in quantities}
    )
