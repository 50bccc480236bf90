"""Plain numbers in their ranges."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PlainValidator, WithJsonSchema

from lbctl.base.diagnostics import show
from lbctl.model.section import refuse

Positive = Annotated[int, Field(ge=1, le=2**31 - 1)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
HeaderCount = Annotated[int, Field(ge=20, le=10_000)]
Port = Annotated[int, Field(ge=1, le=65535)]
Status = Annotated[int, Field(ge=100, le=599)]


def _capacity(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise refuse("LB201", f"{show(value)} is not a weight", "a positive number, as 5 or 2.5")
    if value == 0:
        raise refuse("LB202", "a weight of 0 is not allowed", "write `drain: true` to take the replica out")
    if not 0 < value <= 1_000_000 or round(value, 6) != value:
        raise refuse("LB201", f"{show(value)} is not a weight", "a positive number up to 1000000, six decimals at most")
    return float(value)


Capacity = Annotated[
    float, PlainValidator(_capacity), WithJsonSchema({"type": "number", "exclusiveMinimum": 0, "maximum": 1_000_000})
]


def _multiple(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1000:
        raise refuse("LB013", f"{show(value)} is not a positive number", "as 1.25")
    return float(value)


PositiveNumber = Annotated[
    float, PlainValidator(_multiple), WithJsonSchema({"type": "number", "exclusiveMinimum": 0, "maximum": 1000})
]
