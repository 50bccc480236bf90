"""Field types for the API's documents: mypy checks their values, and msgspec also accepts newer servers' values."""

from __future__ import annotations

from abc import ABCMeta
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

from msgspec import Meta

__all__ = ["AnyOf", "Number", "OneOf", "Timestamp", "choices", "json_schema"]

Number = int | float
"""A number. Integers stay integers: 5 does not become 5.0."""
Timestamp = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
"""ISO 8601 in UTC with milliseconds, for example 2026-01-31T12:00:00.000Z."""

if TYPE_CHECKING:
    from typing import Literal as OneOf
    from typing import Union as AnyOf
else:

    class OneOf:
        """`Literal` for mypy. Clients also accept strings that are not listed, because a newer server may add some."""

        def __class_getitem__(cls, texts):
            """Return a type for strings that are usually one of the given values."""
            listed = texts if isinstance(texts, tuple) else (texts,)
            return Annotated[str, Meta(extra_json_schema={"enum": list(listed)})]

    class AnyOf:
        """A `Union` of untagged structs, which msgspec cannot decode, so `codec` tries its members in turn."""

        def __class_getitem__(cls, members):
            """Return a type with the given members as virtual subclasses."""
            union = ABCMeta("AnyOf", (), {"members": members})
            for member in members:
                union.register(member)
            return union


def choices(hint: Any) -> tuple[str, ...]:
    """Return the values of a `OneOf`, or an empty tuple for any other type."""
    return tuple(json_schema(hint).get("enum", ()))


def json_schema(hint: Any) -> dict[str, Any]:
    """Return the JSON Schema properties that an annotated type adds."""
    if get_origin(hint) is not Annotated:
        return {}
    return next((item.extra_json_schema or {} for item in get_args(hint)[1:] if isinstance(item, Meta)), {})
