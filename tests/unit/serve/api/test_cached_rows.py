"""The advice about a low ratio of cached tokens."""

from __future__ import annotations

from lbctl.serve.api.cached_rows import cached_row
from lbctl.serve.picker.cached_tokens import CacheUse


def test_advice_names_engines_that_cache_nothing() -> None:
    advice = {found: cached_row(CacheUse(100_000, found, {})).advice or "" for found in (0, 10_000, 90_000, None)}
    assert {found: "do not cache prefixes" in text for found, text in advice.items()} == {
        0: True, 10_000: False, 90_000: False, None: False,
    }  # fmt: skip
    assert "evict" in advice[10_000]
    assert advice[90_000] == ""
