"""Numbers with a range, values with a unit, and addresses: durations, sizes, percentages, rates and versions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pydantic import Field, PlainValidator, WithJsonSchema

from lbctl.base import quantities as q
from lbctl.base.diagnostics import show
from lbctl.model.section import refuse
from lbctl.model.values.grammar import quantity, schema

_DURATION = r"[0-9]{1,15}(\.[0-9]{1,6})?(ms|s|m|h)"
_PERCENT = r"(0{0,12}100(\.0{1,6})?|0{0,13}[0-9]{1,2}(\.[0-9]{1,6})?)%"
_WIDE_PERCENT = r"(0{0,10}10000(\.0{1,6})?|0{0,11}[0-9]{1,4}(\.[0-9]{1,6})?)%"
Positive = Annotated[int, Field(ge=1, le=2**31 - 1)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
HeaderCount = Annotated[int, Field(ge=20, le=10_000)]
Port = Annotated[int, Field(ge=1, le=65535)]
Status = Annotated[int, Field(ge=100, le=599)]


def _bounded(parse: Callable[[object], q.Percent], low: float, high: float, above: bool = False) -> PlainValidator:
    """Accept a percentage within the limits; with `above`, exclude `low` itself."""

    def check(value: object) -> q.Percent:
        number = parse(value)
        if not low <= number <= high or (above and number == low):
            raise q.QuantityError(f"{value} is out of range", f"{'above' if above else 'from'} {low:g}% to {high:g}%")
        return number

    return quantity(check)


def _unlimited(value: object) -> q.Duration | None:
    return None if value == "unlimited" else q.parse_duration(value)


Duration = Annotated[
    q.Duration, quantity(q.parse_duration), schema(_DURATION, "a duration: for example 250ms, 5s, 10m, 1h")
]
DurationOrUnlimited = Annotated[
    q.Duration | None, quantity(_unlimited), schema(f"{_DURATION}|unlimited", "a duration, or unlimited")
]


def _lease(value: object) -> q.Duration:
    duration = q.parse_duration(value)
    if not 2_000 <= duration <= 60_000:
        raise q.QuantityError(f"{value} is out of range", "from 2s to 60s")
    return duration


Lease = Annotated[q.Duration, quantity(_lease), schema(_DURATION, "a duration from 2s to 60s")]
Size = Annotated[
    q.Size,
    quantity(q.parse_size),
    schema(r"[0-9]{1,15}(\.[0-9]{1,6})?(B|KiB|MiB|GiB)", "a size: for example 64KiB, 10MiB"),
]


def _header_bytes(value: object) -> q.Size:
    size = q.parse_size(value)
    if not 4 << 10 <= size <= 1 << 20:
        raise q.QuantityError(f"{value} is out of range", "from 4KiB to 1MiB")
    return size


HeaderBytes = Annotated[
    q.Size,
    quantity(_header_bytes),
    schema(r"[0-9]{1,15}(\.[0-9]{1,6})?(B|KiB|MiB)", "a size from 4KiB to 1MiB"),
]
_ABOVE_ZERO = r"(?!0+(\.0+)?%)"
Percent = Annotated[q.Percent, _bounded(q.parse_percent, 0, 100), schema(_PERCENT, "a percentage: from 0% to 100%")]
PositivePercent = Annotated[
    q.Percent,
    _bounded(q.parse_percent, 0, 100, above=True),
    schema(_ABOVE_ZERO + _PERCENT, "a percentage: above 0%, up to 100%"),
]
PositiveWidePercent = Annotated[
    q.Percent,
    _bounded(q.parse_percent, 0, 10_000, above=True),
    schema(_ABOVE_ZERO + _WIDE_PERCENT, "a percentage above 0%: may be above 100%"),
]
Temperature = Annotated[
    q.Temperature,
    quantity(q.parse_temperature),
    schema(r"[0-9]{1,15}(\.[0-9]{1,6})?C", "a temperature: in degrees Celsius, for example 90C"),
]
Rate = Annotated[
    q.Rate,
    quantity(q.parse_rate),
    schema(r"(?!0+/)(0?[0-9]{1,9}|1000000000)/(s|m|h)", "a rate: for example 50/s, 600/m, 10000/h"),
]
TokenRate = Annotated[
    q.TokenRate,
    quantity(q.parse_token_rate),
    schema(r"(?!0+[kM]?/)[0-9]{1,9}[kM]?/(s|m|h)", "a rate of tokens: for example 200k/m, 5M/h"),
]
PORT = r"(?!0+$)([0-5]?[0-9]{1,4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
"""Pattern for a port number."""
_BIND = rf"unix:/.+|\[[0-9A-Fa-f:.]+\]:{PORT}|[0-9]{{1,3}}(\.[0-9]{{1,3}}){{3}}:{PORT}"
_ADDRESS = rf"unix:/.+|\[[0-9A-Fa-f:.]+\]:{PORT}|[^:\[\]]+:{PORT}"
Address = Annotated[
    q.Endpoint,
    quantity(q.parse_address),
    schema(_ADDRESS, 'an address: host:port, ip:port, "[v6]:port" or unix:/path'),
]


def _bind(value: object) -> q.Endpoint:
    address = q.parse_address(value)
    if not address.path and not address.ip:
        raise q.QuantityError(
            f"{show(value)} is a host name", "listen on an address such as 0.0.0.0:8443, or on unix:/path"
        )
    return address


Bind = Annotated[q.Endpoint, quantity(_bind), schema(_BIND, 'a listen address: ip:port, "[v6]:port" or unix:/path')]
Version = Annotated[
    tuple[int, ...],
    quantity(q.parse_version),
    schema(r"[0-9]{1,4}(\.[0-9]{1,4}){1,2}", 'a version: for example "1.22"'),
]


def _capacity(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise refuse("LB201", f"{show(value)} is not a weight", "use a positive number, for example 5 or 2.5")
    if value == 0:
        raise refuse(
            "LB202", "a weight of 0 is not allowed", "set `drain: true` to stop sending requests to the replica"
        )
    if not 0 < value <= 1_000_000 or round(value, 6) != value:
        raise refuse(
            "LB201", f"{show(value)} is not a weight", "use a positive number up to 1000000 with at most six decimals"
        )
    return float(value)


Capacity = Annotated[
    float, PlainValidator(_capacity), WithJsonSchema({"type": "number", "exclusiveMinimum": 0, "maximum": 1_000_000})
]


def _multiple(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1000:
        raise refuse("LB013", f"{show(value)} is not a positive number", "for example 1.25")
    return float(value)


PositiveNumber = Annotated[
    float, PlainValidator(_multiple), WithJsonSchema({"type": "number", "exclusiveMinimum": 0, "maximum": 1000})
]
