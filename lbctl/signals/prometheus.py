"""`kind: prometheus`: the answer of Prometheus' HTTP API to an instant query, as one number.

Several series become one by the signal's rule. No series is unknown, not 0; so is NaN. The answer does not say how old
a sample is (Prometheus repeats one for up to five minutes): a query that must not, says so with `timestamp()`.
"""

from __future__ import annotations

import json
import math
from typing import Any

from lbctl.signals.custom import scale
from lbctl.signals.exposition import NUMBER
from lbctl.signals.signal import believed
from lbctl.signals.source import Series, combined


class UnusableError(Exception):
    """The answer holds no value; the words say why."""


def value(body: bytes, signal: str, unit: str | None) -> float:
    """In the unit that lbctl keeps. UnusableError."""
    samples = _samples(_data(body))
    if not samples:
        raise UnusableError("the query has no result")
    factor = scale(unit)
    found = [believed(signal, sample * factor) for sample in samples]
    known = [item for item in found if item is not None]
    if len(known) < len(found):
        raise UnusableError("a value that this signal cannot have")
    return combined(signal, Series(signal), known)


def _data(body: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        raise UnusableError("not an answer of Prometheus' API") from None
    if not isinstance(answer, dict):
        raise UnusableError("not an answer of Prometheus' API")
    data = answer.get("data")
    if answer.get("status") != "success" or not isinstance(data, dict):
        raise UnusableError(" ".join(str(answer.get("error", "not an answer of Prometheus' API")).split())[:200])
    return data


def _samples(data: dict[str, Any]) -> list[float]:
    result = data.get("result")
    match data.get("resultType"):
        case "scalar":
            return [_number(result)]
        case "vector" if isinstance(result, list):
            return [_number(item.get("value") if isinstance(item, dict) else None) for item in result]
        case kind:
            raise UnusableError(f"a {kind} instead of a number: write an instant query" if kind else "no result")


def _number(pair: Any) -> float:
    text = pair[1] if isinstance(pair, list) and len(pair) == 2 else None
    number = float(text) if isinstance(text, str) and NUMBER.fullmatch(text.encode("utf-8", "replace")) else -1.0
    if not math.isfinite(number) or number < 0:
        raise UnusableError("a value that is no finite number from 0 on")
    return number
