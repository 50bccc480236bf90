"""Durations in the grammar of the Gateway API (GEP-2257): at most four numbers of at most five digits, with units."""

from __future__ import annotations

_UNITS = (("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1))
"""Units and their milliseconds."""
_MAX = 99_999


def duration(milliseconds: int) -> str:
    """Format a duration, in one unit if possible: 120000 → 120s, 100000000 → 27h46m40s, 0 → 0s.

    Longer durations than the grammar can express become its maximum, 11 years.
    """
    for unit, size in _UNITS[2:]:
        if milliseconds % size == 0 and milliseconds // size <= _MAX:
            return f"{milliseconds // size}{unit}"
    text, rest = "", milliseconds
    for unit, size in _UNITS:
        count, rest = divmod(rest, size)
        text += f"{min(count, _MAX)}{unit}" if count else ""
    return text
