"""The explanation of a pick, parsed from the line that a picker returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lbctl.api import schema
from lbctl.api.codec import decode


def explanation_of(pool: str, explained: Mapping[str, Any]) -> schema.PickExplanation | None:
    """Return the explanation in a line of kind `explained`; None if there is none. Raises SchemaError."""
    explanation = explained.get("explanation")
    if explanation is None:
        return None
    return decode(schema.PickExplanation, {"pool": pool, **explanation})
