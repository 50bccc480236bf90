"""A member's samples as one compact string, for the member that makes decisions.

Times are on the scraping member's clock, and the string includes that clock's value at the time of writing. Readers use
only ages, because two machines' clocks are unrelated.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any, get_args

from lbctl.base.foreign_json import parse
from lbctl.runtime.net.fetch import Reason
from lbctl.serve.telemetry.reports import ScrapeReport, SourceState
from lbctl.signals.cached import SOURCES, CachedTokens
from lbctl.signals.derive import BatchEvidence, Evidence, TokenEvidence
from lbctl.signals.merge import Signal, Signals
from lbctl.signals.plan import ScrapePlan
from lbctl.signals.signal import SIGNALS

_FORM = 2
MAX_BYTES = 8 << 20
"""Maximum size of the decompressed string in bytes."""
MAX_VALUES = 600_000
"""Maximum number of values in one string; a replica has about fifty."""
_TOLERANCE = 0.5
"""If a string arrives more than this many seconds later than the fastest earlier one, the clocks are compared again."""
_REASONS: Mapping[str, Reason] = {reason: reason for reason in get_args(Reason)}
_CACHED, _PROMPT_TOKENS = "cached_", "prompt_tokens"
"""Names of counts: the prefix for cached tokens (the total, one count per source, and the origin), and prompt
tokens."""
_ORIGIN = ("page", "lines")
"""Names of the numbers in `CachedTokens.origin`."""
Key = tuple[str, str]
"""Pool and replica."""
_Shape = Sequence[tuple[str, int]]
"""Names of a replica's signals, each with its source index."""


def write_samples(reports: Mapping[Key, ScrapeReport], now: float) -> str:
    """Serialize each replica's last report. `now` is on the reports' clock."""
    pools: dict[str, dict[str, list[Any]]] = {}
    shapes: dict[_Shape, int] = {}
    for (pool, replica), report in reports.items():
        pools.setdefault(pool, {})[replica] = _row(report, shapes)
    body = json.dumps([_FORM, round(now, 3), list(shapes), pools], separators=(",", ":"))
    return base64.b64encode(zlib.compress(body.encode())).decode()


@dataclass(slots=True)
class MemberSamples:
    """The most recent measurements read from another member. `member`: that member's name."""

    member: str
    times: dict[Key, float] = field(default_factory=dict)
    """Time at which each replica was last scraped, on that member's clock."""
    offset: float = math.inf
    """Seconds to add to that clock to get this process's clock; the string that arrived fastest is the most
    accurate."""

    def read(self, text: str, received: float, plans: Mapping[Key, ScrapePlan]) -> list[ScrapeReport]:
        """Return the new reports in this string for replicas that have a plan.

        `received`: the current time on this process's clock. Raises one of `UNREADABLE` if the string is damaged.
        """
        form, *rest = parse(_decompressed(text), MAX_VALUES)
        if form != _FORM:
            raise ValueError(f"samples in the unknown format {form}")
        now, shapes, pools = rest
        difference = received - _number(now)
        if not 0 <= difference - self.offset <= _TOLERANCE:
            self.offset = difference
        self.times = {key: at for key, at in self.times.items() if key in plans}
        return list(self._new(pools, shapes, plans))

    def _new(
        self, pools: Mapping[str, Mapping[str, Any]], shapes: list[_Shape], plans: Mapping[Key, ScrapePlan]
    ) -> Iterator[ScrapeReport]:
        for pool, rows in pools.items():
            for replica, row in rows.items():
                key = pool, replica
                plan = plans.get(key)
                if plan is not None and self.times.get(key) != row[0] and len(plan.sources) == len(row[-1]):
                    yield _report(plan, row, shapes, self.offset, self.member)
                    self.times[key] = row[0]


def _decompressed(text: str) -> bytes:
    reader = zlib.decompressobj()
    try:
        body = reader.decompress(base64.b64decode(text, validate=True), MAX_BYTES)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if not reader.eof:
        raise ValueError("samples that are truncated or too large")
    return body


# A replica's row is a list of numbers. Values shared by many replicas are written only once (`shapes`), and times are
# given as milliseconds relative to their expected values. The result takes a third of the space that names and times
# would need.
#
# During an upgrade, members running other versions read the string. They ignore values whose names are not signals, so
# optional values, such as cached-token counts, are written next to the signals.


def _row(report: ScrapeReport, shapes: dict[_Shape, int]) -> list[Any]:
    signals, evidence = report.signals, report.signals.evidence
    at = round(report.at, 3)
    begun = [at if item.good_at is None else round(item.good_at, 3) for item in report.sources]
    return [
        at,
        report.source,
        *_signal_row(signals.values, begun, shapes, _counts(report)),
        *_signal_row(signals.stale, begun, shapes, {}),
        None if evidence is None else [_after(evidence.at, at), *map(_short, astuple(evidence)[1:])],
        signals.xids,
        int(signals.by_steps) + 2 * int(report.reserves_memory) + 4 * int(report.restarted),
        report.first_tokens,
        [_source_row(item, at) for item in report.sources],
    ]


def _counts(report: ScrapeReport) -> dict[str, float]:
    counts = {} if report.prompt_tokens is None else {_PROMPT_TOKENS: report.prompt_tokens}
    cached = report.cached
    if cached is not None:
        numbers = {"total": cached.total, **cached.by_source, **dict(zip(_ORIGIN, cached.origin, strict=False))}
        counts |= {_CACHED + name: number for name, number in numbers.items()}
    return counts


def _signal_row(
    signals: Mapping[str, Signal], begun: list[float], shapes: dict[_Shape, int], counts: Mapping[str, float]
) -> tuple[int, list[Any]]:
    """Return the number of these signals' shape, and their values, each with its time if that is unexpected.

    The exact values of `counts` follow.
    """
    shape = (*((name, item.source) for name, item in signals.items()), *((name, 0) for name in counts))
    times = [_after(item.at, begun[item.source]) for item in signals.values()]
    values = [_short(item.value) for item in signals.values()]
    row = [[value, time] if time else value for value, time in zip(values, times, strict=True)]
    return shapes.setdefault(shape, len(shapes)), [*row, *counts.values()]


def _after(at: float, expected: float) -> int:
    """Return the number of milliseconds by which a time is later than expected."""
    return round((at - expected) * 1000)


def _short(value: float) -> float:
    """Return the value with only as many digits as decisions require."""
    short = float(f"{value:.5g}")
    return int(short) if short.is_integer() else short


def _source_row(item: SourceState, at: float) -> list[Any]:
    scraped_at = None if item.scraped_at is None else _after(item.scraped_at, at)
    seconds = round(item.seconds, 4)
    good_at = None if item.good_at is None else _after(item.good_at, (item.scraped_at or at) - seconds)
    row = [scraped_at, good_at, item.size, seconds]
    return [*row, item.reason, item.message, item.refused] if item.reason or item.refused else row


def _report(plan: ScrapePlan, row: list[Any], shapes: list[_Shape], offset: float, member: str) -> ScrapeReport:
    at, source, shape, values, stale_shape, stale, evidence, xids, flags, first_tokens, sources = row
    at = _number(at) + offset
    states = tuple(
        _state(planned.kind, planned.display_url, item, at) for planned, item in zip(plan.sources, sources, strict=True)
    )
    begun = [at if item.good_at is None else item.good_at for item in states]
    counts = {
        name: _number(item)
        for (name, _), item in zip(shapes[shape], values, strict=True)
        if name.startswith((_CACHED, _PROMPT_TOKENS))
    }
    signals = Signals(
        dict(_signals(shapes[shape], values, begun)),
        dict(_signals(shapes[stale_shape], stale, begun)),
        _evidence(evidence, at),
        tuple((str(gpu), int(code)) for gpu, code in xids),
        bool(flags & 1),
    )
    return ScrapeReport(
        plan.pool,
        plan.replica,
        at,
        _index(source, len(states)),
        signals,
        states,
        bool(flags & 2),
        signals.evidence,
        bool(flags & 4),
        None if first_tokens is None else _number(first_tokens),
        counts.get(_PROMPT_TOKENS),
        _cached(counts),
        member,
    )


def _signals(shape: _Shape, row: list[Any], begun: list[float]) -> Iterator[tuple[str, Signal]]:
    for (name, source), item in zip(shape, row, strict=True):
        value, after = item if isinstance(item, list) else (item, 0)
        if name in SIGNALS:
            at = begun[_index(source, len(begun))] + _number(after) / 1000
            yield name, Signal(_number(value), at, source)


def _cached(counts: Mapping[str, float]) -> CachedTokens | None:
    counts = {name.removeprefix(_CACHED): count for name, count in counts.items()}
    total = counts.get("total")
    if total is None:
        return None
    origin = tuple(int(counts[name]) for name in _ORIGIN if name in counts)
    return CachedTokens(total, {name: counts[name] for name in SOURCES if name in counts}, origin)


def _evidence(row: list[Any] | None, reported_at: float) -> Evidence | None:
    if row is None:
        return None
    after, *values = map(_number, row)
    at = reported_at + after / 1000
    return TokenEvidence(at, *values) if len(values) == 4 else BatchEvidence(at, *values)


def _state(kind: str, url: str, row: list[Any], at: float) -> SourceState:
    scraped_after, good_after, size, seconds, *rest = row
    reason, message, refused = rest or ("", "", ())
    seconds = _number(seconds)
    scraped_at = None if scraped_after is None else at + _number(scraped_after) / 1000
    good_at = None if good_after is None else (scraped_at or at) - seconds + _number(good_after) / 1000
    named = tuple((str(metric), str(why)) for metric, why in refused)
    return SourceState(kind, url, scraped_at, good_at, _REASONS[reason], str(message), int(size), seconds, named)


def _index(value: object, count: int) -> int:
    if type(value) is not int or not 0 <= value < count:
        raise ValueError(f"index {value!r} is not below the count of {count}")
    return value


def _number(value: object) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):  # type: ignore[arg-type]
        raise ValueError(f"not a number: {value!r}")
    return float(value)  # type: ignore[arg-type]
