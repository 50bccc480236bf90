"""The picker's tables as JSON lines: first whole pools, then changes to them.

A line has one of these values of `kind`:

- `pool`: an entire table
- `changes`: replicas that are new or changed, and names of replicas that have left
- `gone`: a pool that has left
- `samples`: new reports from engines
- `proxies`: new reports from proxies
- `peers`: all pickers
- `key`: the key for queries
- `ready`: the end of the first complete set

A replica is a list whose items are in the order of `Candidate`'s fields. Times are sent as ages, because different
machines' clocks differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields, replace
from typing import Any, NamedTuple

from lbctl.ir.locality import Place
from lbctl.ir.pools import Locality, PickPolicy, Prefix, QueuePolicy, SessionKey, SlowStart, TokenLimit
from lbctl.pick.table import Candidate, PoolTable
from lbctl.pick.waiting import PRIORITIES
from lbctl.picker.messages import Caller, PickerQuestion

FORMAT = 4
"""Version of this format. A picker compares this number with its own."""
REPORT_PATH, EXPLAIN_PATH = "/report", "/explain"
"""HTTP paths on a loopback picker: for its newest report, and for the explanation of a decision. Both return lines."""
_MAX_LENGTH = 2**53
"""Upper bound on a body length in bytes."""
MAX_LINE_BYTES = 256 << 20
"""Maximum length of a line in bytes. The longest lines contain a pool with many thousands of replicas."""
_NAMES = tuple(item.name for item in fields(Candidate))
_STARTED = _NAMES.index("started")


class EngineSample(NamedTuple):
    """A replica engine's report at the last scrape. Unknown values are None."""

    pool: str
    replica: str
    running: float | None
    """Number of requests that the engine is running."""
    queue: float | None
    """Number of requests waiting in the engine."""
    first_tokens: float | None
    """Number of first tokens since the engine started."""
    restarted: bool
    """Whether the engine has restarted since the previous sample."""
    age: float = 0.0
    """Seconds since the scrape began."""
    progress: float | None = None
    """A number that changes with every engine step."""
    ttft: float | None = None
    """Mean time to first token since the previous sample, in seconds."""
    prompt_tokens: float | None = None
    """Number of tokens in the prompts counted in `first_tokens`, including tokens found in a cache."""
    duration: float = 0.0
    """Duration of the metrics-page request, in seconds."""
    deferred: float = 0.0
    """Number of requests in `queue` that are waiting for an adapter or a transfer, not for capacity."""
    kv: float | None = None
    """Share of the KV cache in use, from 0 to 1."""


class ProxySample(NamedTuple):
    """Number of requests that a proxy has at a replica."""

    proxy: str
    """Name of the proxy."""
    pool: str
    replica: str
    requests: int
    """Number of requests in flight at the replica or waiting for it."""


class WireError(Exception):
    """A line does not have this format. The message states the reason."""


def line(kind: str, **values: object) -> bytes:
    """Return a line of this kind."""
    return json.dumps({"kind": kind, **values}, separators=(",", ":")).encode() + b"\n"


def parse(text: bytes) -> Mapping[str, Any]:
    """Return the values in a line. Raises WireError."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise WireError("a line is not JSON") from None
    if not isinstance(values, dict) or not isinstance(values.get("kind"), str):
        raise WireError("a line is not an object with a kind")
    return values


# ── Tables ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def whole(table: PoolTable, now: float) -> bytes:
    """Return the line for an entire pool. `now` is on the same clock as `started`."""
    return line(
        "pool",
        pool=table.pool,
        policy=asdict(table.policy),
        model=table.model,
        adapters=sorted(table.adapters),
        locality=asdict(table.locality) if table.locality else None,
        slow_start=asdict(table.slow_start) if table.slow_start else None,
        stalled_after=table.stalled_after,
        candidates=[_row(item, now) for item in table.candidates],
    )


def changes(before: PoolTable, after: PoolTable, now: float) -> bytes | None:
    """Return the line with the differences; None if there are none, the whole pool if more than its replicas differ."""
    if replace(before, candidates=()) != replace(after, candidates=()):
        return whole(after, now)
    earlier = {item.name: item for item in before.candidates}
    changed = [item for item in after.candidates if earlier.get(item.name) != item]
    left = sorted(earlier.keys() - {item.name for item in after.candidates})
    if not changed and not left:
        return None
    return line("changes", pool=after.pool, changed=[_row(item, now) for item in changed], left=left)


def table_of(values: Mapping[str, Any], now: float) -> PoolTable:
    """Return the table in a line of kind `pool`. Raises WireError."""
    try:
        return PoolTable(
            values["pool"],
            _policy(values["policy"]),
            _candidates(values["candidates"], now),
            values["model"],
            frozenset(values["adapters"]),
            Locality(**values["locality"]) if values["locality"] else None,
            SlowStart(**values["slow_start"]) if values["slow_start"] else None,
            None if values["stalled_after"] is None else float(values["stalled_after"]),
        )
    except (LookupError, TypeError, ValueError) as error:
        raise WireError(f"a pool is not in the format of this version of lbctl: {error}") from None


def changed_table(table: PoolTable, values: Mapping[str, Any], now: float) -> PoolTable:
    """Return the table after applying the changes in a line of kind `changes`. Raises WireError."""
    try:
        changed = {item.name: item for item in _candidates(values["changed"], now)}
        left = frozenset(values["left"])
    except (LookupError, TypeError, ValueError) as error:
        raise WireError(f"a change is not in the format of this version of lbctl: {error}") from None
    rest = {item.name: item for item in table.candidates if item.name not in left}
    return replace(table, candidates=_sorted({**rest, **changed}.values()))


def samples(new: Iterable[EngineSample]) -> bytes | None:
    """Return the line with these samples; None if there are none."""
    rows = list(map(list, new))
    return line("samples", samples=rows) if rows else None


def samples_of(values: Mapping[str, Any]) -> Iterator[EngineSample]:
    """Yield the samples in a line of kind `samples`. Raises WireError."""
    try:
        yield from (EngineSample(*row) for row in values["samples"])
    except (LookupError, TypeError) as error:
        raise WireError(f"a sample is not in the format of this version of lbctl: {error}") from None


def proxy_samples(new: Iterable[ProxySample]) -> bytes | None:
    """Return the line with these proxy reports; None if there are none."""
    rows = list(map(list, new))
    return line("proxies", samples=rows) if rows else None


def proxy_samples_of(values: Mapping[str, Any]) -> list[ProxySample]:
    """Return the samples in a line of kind `proxies`. Raises WireError."""
    try:
        return [ProxySample(*row) for row in values["samples"]]
    except (LookupError, TypeError) as error:
        raise WireError(f"a sample is not in the format of this version of lbctl: {error}") from None


def peers_of(values: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the pickers in a line of kind `peers`, as a map from IDs to addresses. Raises WireError."""
    peers = values.get("peers")
    if not isinstance(peers, dict) or not all(isinstance(item, str) for item in peers.values()):
        raise WireError("the list of pickers is not in the format of this version of lbctl")
    return peers


def key_of(values: Mapping[str, Any]) -> str:
    """Return the key in a line of kind `key`. Raises WireError."""
    return _text(values, "key")


def question(asked: PickerQuestion, number: int = 0) -> bytes:
    """Return the line that requests an explanation. The response line has the same number."""
    caller = asked.caller
    return line(
        "explain",
        number=number,
        pool=caller.pool,
        headers=asked.headers,
        body=asked.body.decode(),
        length=asked.body_length,
        place=[caller.place.region, caller.place.zone],
        tenant=caller.tenant,
        priority=caller.priority,
    )


def question_of(values: Mapping[str, Any]) -> PickerQuestion:
    """Return the query in a line of kind `explain`. Raises WireError."""
    pool, place, body = _text(values, "pool"), values.get("place"), _text(values, "body")
    headers, length, tenant = values.get("headers"), values.get("length"), values.get("tenant", "")
    if not isinstance(place, list) or len(place) != 2 or not all(item is None or _is_text(item) for item in place):
        raise WireError("place: not a list that consists of a region and a zone")
    if not isinstance(headers, dict) or not all(_is_text(name) and _are_texts(headers[name]) for name in headers):
        raise WireError("headers: not an object of lists of strings")
    if type(length) is not int or not 0 <= length <= _MAX_LENGTH:
        raise WireError(f"length: not an integer from 0 to {_MAX_LENGTH}")
    if not _is_text(tenant):
        raise WireError("tenant: not a text")
    if (priority := values.get("priority", "normal")) not in PRIORITIES:
        raise WireError(f"priority: not one of {', '.join(PRIORITIES)}")
    caller = Caller(pool, place=Place(*place), tenant=tenant, priority=priority)
    return PickerQuestion(caller, headers, body.encode(), length)


def _text(values: Mapping[str, Any], key: str) -> str:
    """Return a string value from a line. Raises WireError."""
    value = values.get(key)
    if not isinstance(value, str) or not _is_text(value):
        raise WireError(f"{key}: not a text")
    return value


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_text(value: object) -> bool:
    """Return whether a value is a string that can be encoded as UTF-8. UTF-8 cannot encode lone surrogates."""
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


def _row(item: Candidate, now: float) -> list[object]:
    values: list[object] = [getattr(item, name) for name in _NAMES]
    values[_STARTED] = None if item.started is None else round(now - item.started, 3)
    return values


def _candidates(rows: Iterable[list[Any]], now: float) -> tuple[Candidate, ...]:
    return _sorted(_candidate(row, now) for row in rows)


def _candidate(row: list[Any], now: float) -> Candidate:
    values = list(row)
    if values[_STARTED] is not None:
        values[_STARTED] = now - values[_STARTED]
    return Candidate(**dict(zip(_NAMES, values, strict=True)))


def _sorted(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    return tuple(sorted(candidates, key=lambda item: item.name))


def _policy(values: Mapping[str, Any]) -> PickPolicy:
    prefix, queue = values["prefix"], values["queue"]
    rebuilt = {
        "session": tuple(SessionKey(**item) for item in values["session"]),
        "prefix": Prefix(**prefix) if prefix else None,
        "queue": _queue(queue) if queue else None,
        "token_limits": tuple(TokenLimit(**item) for item in values["token_limits"]),
    }
    return PickPolicy(**{**values, **rebuilt})


def _queue(values: Mapping[str, Any]) -> QueuePolicy:
    pairs = {name: tuple(tuple(item) for item in values[name]) for name in ("weights", "priority_tenants")}
    return QueuePolicy(**{**values, **pairs})
