"""The reasons that an agent gives for reporting its replica as unhealthy."""

from __future__ import annotations

from lbctl.base.foreign_json import InvalidJsonError, member, parse_object, records
from lbctl.base.printable import plain

_MAX_VALUES = 1_000
"""Maximum number of values in a response. An agent reports only a few reasons per GPU."""
_MAX_REASONS = 2
_MAX_CHARACTERS = 120
"""Maximum length of a reason."""


def first_reasons(body: bytes) -> str:
    """Return the first reasons in the body of a failed check's response; empty if it contains none."""
    try:
        reasons = [member(item, "message", str) for item in records(parse_object(body, _MAX_VALUES), "reasons")]
    except InvalidJsonError:
        return ""
    shown = [_shortened(plain(reason)) for reason in reasons if reason]
    more = len(shown) - _MAX_REASONS
    return "; ".join(shown[:_MAX_REASONS]) + (f"; and {more} more" if more > 0 else "")


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}…"
