"""Builds a value's validator and JSON Schema from its grammar."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

from pydantic import PlainValidator, WithJsonSchema

from lbctl.base import quantities as q
from lbctl.base.diagnostics import quoting_hint, show
from lbctl.model.section import refuse


def quantity(parse: Callable[[object], Any]) -> PlainValidator:
    """Return a validator that parses a value with a unit and reports a QuantityError as LB013."""

    def validate(value: object) -> Any:
        try:
            return parse(value)
        except q.QuantityError as error:
            raise refuse("LB013", str(error), error.hint) from None

    return PlainValidator(validate)


def schema(pattern: str, grammar: str) -> WithJsonSchema:
    """Return a JSON Schema with the pattern.

    `grammar` describes the pattern and is shown next to the key's description.
    """
    return WithJsonSchema({"type": "string", "pattern": f"^(?:{pattern})$", "grammar": grammar})


def text(pattern: str, noun: str, hint: str, lower: bool = False) -> Any:
    """Return a type for strings that match `pattern` in full."""

    def validate(value: object) -> str:
        if not isinstance(value, str):
            raise refuse("LB013", f"{show(value)} is not a string", quoting_hint(value))
        if not _compiled(pattern).fullmatch(value):
            lower_case = f"write {value.lower()}; " if _compiled(pattern).fullmatch(value.lower()) else ""
            raise refuse("LB013", f"{show(value)} is not {noun}", lower_case + hint)
        return value.lower() if lower else value

    return (PlainValidator(validate), schema(pattern, f"{noun}: {hint}"))


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compile the pattern on first use, because most fleets use only a few kinds of values."""
    return re.compile(pattern, re.ASCII)
