"""API rows about prompt tokens served from engine caches."""

from __future__ import annotations

from collections.abc import Iterable

from lbctl.api import schema
from lbctl.serve.picker.cached_tokens import CacheUse, total

_ADVICE = (
    "the engines evict cache entries or have restarted, or the session key is the same for different conversations"
)
_NOTHING_FOUND = "the engines do not cache prefixes, "


def cached_row(use: CacheUse) -> schema.CachedTokens:
    """Return a replica's row."""
    ratio = None if use.ratio is None else round(use.ratio, 4)
    advice = (_ADVICE if use.found else _NOTHING_FOUND + _ADVICE) if use.is_low else None
    return schema.CachedTokens(use.expected, use.found, use.by_source, ratio, advice, use.seconds)


def cached_total(uses: Iterable[CacheUse]) -> schema.CachedTokens:
    """Return the row for a pool with these replicas."""
    return cached_row(total(uses))
