"""Prompt tokens that an engine has found in its caches, by source, according to the counters on its metrics page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from lbctl.signals.source import SourceReading

SOURCES = ("device", "host", "disk", "external")
"""Places in which cached tokens are stored, fastest first: GPU memory, host memory, a disk, and another store or
engine."""


class CachedTokens(NamedTuple):
    """Cumulative counts since the engine started."""

    total: float
    """Prompt tokens found in any cache."""
    by_source: Mapping[str, float]
    """Maps each source to the number of prompt tokens found there. Only sources that the engine reports are
    included."""
    origin: tuple[int, ...] = ()
    """Index of the page, and the number of metric lines that make up the total. Counts with different origins cannot be
    compared."""


def cached_tokens(reading: SourceReading, page: int) -> CachedTokens | None:
    """Return the counts on the page with index `page`; None if the engine does not count cached tokens."""
    quantities = reading.quantities
    name = "cached_total" if "cached_total" in quantities else "cache_found"
    if name not in quantities:
        return None
    by_source = {source: quantities[key] for source in SOURCES if (key := f"cached_{source}") in quantities}
    return CachedTokens(quantities[name], by_source, (page, reading.lines.get(name, 0)))
