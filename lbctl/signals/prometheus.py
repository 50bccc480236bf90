"""`kind: prometheus`: the Prometheus HTTP API's response to an instant query, as one number.

Several series are combined according to the signal's rule. A result without series, or with NaN, is unknown, not 0. The
response does not contain the age of a sample, and Prometheus repeats samples for up to five minutes. To exclude old
samples, a query needs a condition with `timestamp()`.
"""

from __future__ import annotations

import math
from typing import Any

from lbctl.base.foreign_json import InvalidJsonError, parse_object
from lbctl.signals.custom import scale
from lbctl.signals.exposition import NUMBER
from lbctl.signals.signal import plausible
from lbctl.signals.source import MetricSeries, combine

_MAX_CHARACTERS = 200
"""Maximum number of characters of a server's text shown in a message."""


class NoValueError(Exception):
    """The response does not contain a value; the message states the reason."""


def value(body: bytes, signal: str, unit: str | None) -> float:
    """Return the value in lbctl's unit. Raises NoValueError."""
    samples = _samples(_data(body))
    if not samples:
        raise NoValueError("the query returned no result")
    factor = scale(unit)
    values = [plausible(signal, sample * factor) for sample in samples]
    valid = [number for number in values if number is not None]
    if len(valid) < len(values):
        raise NoValueError("the value is not valid for this signal")
    return combine(signal, MetricSeries(signal), valid)


def single_value(body: bytes) -> float:
    """Return the value of the response's only series, without conversion. Raises NoValueError."""
    samples = _samples(_data(body))
    if len(samples) != 1:
        problem = (
            f"the query returned {len(samples)} series instead of one" if samples else "the query returned no result"
        )
        raise NoValueError(problem)
    return samples[0]


def _data(body: bytes) -> dict[str, Any]:
    try:
        answer = parse_object(body)
    except InvalidJsonError:
        raise NoValueError("not a Prometheus API response") from None
    data = answer.get("data")
    if answer.get("status") != "success" or not isinstance(data, dict):
        raise NoValueError(_shortened(answer.get("error", "not a Prometheus API response")))
    return data


def _shortened(text: object) -> str:
    """Return a server's text for display: one line of at most 200 characters, without text that UTF-8 cannot encode."""
    return " ".join(str(text)[:_MAX_CHARACTERS].split()).encode(errors="replace").decode()


def _samples(data: dict[str, Any]) -> list[float]:
    result = data.get("result")
    match data.get("resultType"):
        case "scalar":
            return [_number(result)]
        case "vector" if isinstance(result, list):
            return [_number(series.get("value") if isinstance(series, dict) else None) for series in result]
        case kind:
            raise NoValueError(
                f"the result is a {_shortened(kind)}, not a number: use an instant query" if kind else "no result"
            )


def _number(pair: Any) -> float:
    text = pair[1] if isinstance(pair, list) and len(pair) == 2 else None
    number = float(text) if isinstance(text, str) and NUMBER.fullmatch(text.encode("utf-8", "replace")) else -1.0
    if not math.isfinite(number) or number < 0:
        raise NoValueError("the value is not a finite, non-negative number")
    return number
