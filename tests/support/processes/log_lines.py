"""A strict reader of the access log: every line has exactly the documented fields, each with its type."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from tests.support.processes.proxies import Nginx, Proxy

Line = dict[str, Any]

_TEXT = ("ts", "client", "listener")
_TEXT_OR_NULL = ("request_id", "tenant", "method", "path", "route", "pool", "variant", "replica", "model", "flags")
_NUMBER = ("bytes_in", "bytes_out")
_NUMBER_OR_NULL = ("status", "retries", "t_queue", "t_connect", "t_first_byte", "t_total")
FIELDS = frozenset((*_TEXT, *_TEXT_OR_NULL, *_NUMBER, *_NUMBER_OR_NULL))
_TS = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}(Z|[+-]\d\d:\d\d)")


def lines_of(proxy: Proxy, count: int, timeout: float = 30.0, *, listener: str | None = None) -> list[Line]:
    """Return all lines that the proxy has written to its standard output, once there are `count` of them, or only a
    listener's lines. Each is checked, and they are in the order in which the requests began: workers and threads write
    concurrently."""
    deadline = time.monotonic() + timeout
    while len(raw := _raw(proxy, listener)) < count and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(raw) == count, f"{len(raw)} lines instead of {count}\n{proxy.logs()}"
    return sorted((_checked(line) for line in raw), key=lambda line: began(proxy, line))


def began(proxy: Proxy, line: Mapping[str, Any]) -> float:
    """Return the start of this line's request, in ms since the epoch.

    nginx's `ts` is the end, the others' the start.
    """
    moment = datetime.fromisoformat(line["ts"]).timestamp() * 1000
    return moment - ((line["t_total"] or 0) if isinstance(proxy, Nginx) else 0)


def _raw(proxy: Proxy, listener: str | None) -> list[bytes]:
    lines = proxy.stdout.read_bytes().rpartition(b"\n")[0].splitlines()
    return lines if listener is None else [line for line in lines if f'"listener":"{listener}"'.encode() in line]


def _checked(raw: bytes) -> Line:
    pairs: list[tuple[str, Any]] = json.loads(raw.decode(), object_pairs_hook=list, parse_constant=_refuse)
    line = dict(pairs)
    assert sorted(name for name, _ in pairs) == sorted(FIELDS), f"not the contract's fields, once each: {raw!r}"
    assert _TS.fullmatch(line["ts"]), raw
    for name, value in line.items():
        assert _fits(name, value), f"{name} is {value!r} in {raw!r}"
    return line


def _fits(name: str, value: object) -> bool:
    if value is None:
        return name in _TEXT_OR_NULL or name in _NUMBER_OR_NULL
    if name in _NUMBER or name in _NUMBER_OR_NULL:
        return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
    return isinstance(value, str) and (value not in ("", "-") or name == "flags")


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")
