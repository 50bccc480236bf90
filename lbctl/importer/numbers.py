"""Numbers in the words of a configuration."""

from __future__ import annotations

_MAX_DIGITS = 18
"""As many as the counters of the proxies have."""


def is_whole(text: str) -> bool:
    """Return whether the text is a whole number, which `int` takes: ASCII digits alone, and not thousands of them."""
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS
