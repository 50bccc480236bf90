"""The samples of a member as one compact text, which the member that decides reads.

Times are on the clock of the member that has scraped, and the text has that clock's reading at the moment of writing:
a reader takes ages from it, since the clocks of two machines have nothing in common.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any, get_args

from lbctl.serve.telemetry.fetch import Reason
from lbctl.serve.telemetry.reports import Report, SourceState
from lbctl.signals.derive import BatchEvidence, Evidence, TokenEvidence
from lbctl.signals.merge import Signal, Signals
from lbctl.signals.plan import ScrapePlan
from lbctl.signals.signal import SIGNALS

_FORM = 1
_LARGEST = 16 << 20
"""Bytes of one text, decompressed."""
_TOLERANCE = 0.5
"""Seconds by which a text may come later than the fastest one before the clocks are compared anew."""
_REASONS: Mapping[str, Reason] = {reason: reason for reason in get_args(Reason)}
Key = tuple[str, str]
"""Pool and replica."""


def write_samples(reports: Mapping[Key, Report], now: float) -> str:
    """Serialize the last report of each replica. `now`: on the clock of the reports."""
    pools: dict[str, dict[str, list[Any]]] = {}
    for (pool, replica), report in reports.items():
        pools.setdefault(pool, {})[replica] = _row(report)
    body = json.dumps([_FORM, round(now, 3), pools], separators=(",", ":"))
    return base64.b64encode(zlib.compress(body.encode(), 1)).decode()


@dataclass(slots=True)
class MemberSamples:
    """What one other member has measured, as this one has read it last. `member`: its name."""

    member: str
    rows: Mapping[str, Mapping[str, Any]]
    offset: float = math.inf
    """What its clock must be raised by to be that of this process; the fastest text is closest to the truth."""

    @classmethod
    def of(cls, member: str) -> MemberSamples:
        """Return the samples of a member of which nothing was read yet."""
        return cls(member, {})

    def read(self, text: str, received: float, plans: Mapping[Key, ScrapePlan]) -> list[Report]:
        """Return the reports that are new with this text, of replicas that have a plan.

        `received`: now, on the clock of this process. Raises one of `UNREADABLE` where the text is damaged.
        """
        form, now, pools = json.loads(_decompressed(text))
        if form != _FORM:
            raise ValueError(f"samples in the form {form}")
        difference = received - _number(now)
        if not 0 <= difference - self.offset <= _TOLERANCE:
            self.offset = difference
        before, self.rows = self.rows, pools
        return list(self._new(before, plans))

    def _new(self, before: Mapping[str, Mapping[str, Any]], plans: Mapping[Key, ScrapePlan]) -> Iterator[Report]:
        for pool, rows in self.rows.items():
            earlier = before.get(pool, {})
            for replica, row in rows.items():
                plan = plans.get((pool, replica))
                if plan is not None and earlier.get(replica) != row and len(plan.sources) == len(row[-1]):
                    yield _report(plan, row, self.offset, self.member)


def _decompressed(text: str) -> bytes:
    reader = zlib.decompressobj()
    try:
        body = reader.decompress(base64.b64decode(text, validate=True), _LARGEST)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if not reader.eof:
        raise ValueError("samples that are cut off, or too large")
    return body


def _row(report: Report) -> list[Any]:
    signals, evidence = report.signals, report.signals.evidence
    return [
        round(report.at, 3),
        report.source,
        _signal_rows(signals.values),
        _signal_rows(signals.stale),
        None if evidence is None else [round(evidence.at, 3), *map(_short, astuple(evidence)[1:])],
        signals.xids,
        int(signals.by_steps),
        int(report.reserves_memory),
        int(report.restarted),
        report.first_tokens,
        [_source_row(item) for item in report.sources],
    ]


def _signal_rows(signals: Mapping[str, Signal]) -> dict[str, list[float]]:
    return {name: [_short(item.value), round(item.at, 3), item.source] for name, item in signals.items()}


def _short(value: float) -> float:
    """Return the value in as few digits as a decision needs."""
    return float(f"{value:.5g}")


def _source_row(item: SourceState) -> list[Any]:
    times = [None if at is None else round(at, 3) for at in (item.scraped_at, item.good_at)]
    row = [*times, item.size, round(item.seconds, 4)]
    return [*row, item.reason, item.message, item.refused] if item.reason or item.refused else row


def _report(plan: ScrapePlan, row: list[Any], offset: float, member: str) -> Report:
    at, source, values, stale, evidence, xids, by_steps, reserves, restarted, first_tokens, sources = row
    states = tuple(
        _state(known.kind, known.display_url, item, offset) for known, item in zip(plan.sources, sources, strict=True)
    )
    signals = Signals(
        dict(_signals(values, offset, len(states))),
        dict(_signals(stale, offset, len(states))),
        _evidence(evidence, offset),
        tuple((str(gpu), int(code)) for gpu, code in xids),
        bool(by_steps),
    )
    return Report(
        plan.pool,
        plan.replica,
        _number(at) + offset,
        _index(source, len(states)),
        signals,
        states,
        bool(reserves),
        signals.evidence,
        bool(restarted),
        None if first_tokens is None else _number(first_tokens),
        member,
    )


def _signals(rows: Mapping[str, Any], offset: float, sources: int) -> Iterator[tuple[str, Signal]]:
    for name, (value, at, source) in rows.items():
        if name in SIGNALS:
            yield name, Signal(_number(value), _number(at) + offset, _index(source, sources))


def _evidence(row: list[Any] | None, offset: float) -> Evidence | None:
    if row is None:
        return None
    at, *values = map(_number, row)
    make = partial(TokenEvidence, at + offset) if len(values) == 4 else partial(BatchEvidence, at + offset)
    return make(*values)


def _state(kind: str, url: str, row: list[Any], offset: float) -> SourceState:
    scraped_at, good_at, size, seconds, *rest = row
    reason, message, refused = rest or ("", "", ())
    times = [None if at is None else _number(at) + offset for at in (scraped_at, good_at)]
    named = tuple((str(metric), str(why)) for metric, why in refused)
    return SourceState(
        kind, url, times[0], times[1], _REASONS[reason], str(message), int(size), _number(seconds), named
    )


def _index(value: object, count: int) -> int:
    if type(value) is not int or not 0 <= value < count:
        raise ValueError(f"the index {value!r} of {count}")
    return value


def _number(value: object) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):  # type: ignore[arg-type]
        raise ValueError(f"not a number: {value!r}")
    return float(value)  # type: ignore[arg-type]
