"""The records that `serve` saves in its store, and their serialization.

Keys and certificates are never part of a record: a fleet is saved as the texts of its YAML files and of its targets
files, and refers to other files by path. Records are validated as strictly as fleet files, because the store may be
damaged: every `read_…` raises one of `UNREADABLE` for text that its `write_…` did not write.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, field, fields
from hashlib import sha256
from typing import Any

from lbctl.base.foreign_json import parse
from lbctl.control.analysis.evidence import (
    NO_REQUESTS,
    VERDICTS,
    AnalysisState,
    Evaluation,
    LatencyValues,
    MetricValues,
    RequestCounts,
    Verdict,
)
from lbctl.control.analysis.latency import LatencyHistogram
from lbctl.control.loop_output import LoopOutput
from lbctl.control.overrides import KINDS, MAX_OVERRIDES, Override, Overrides, checked_weight
from lbctl.control.rollouts import PHASES, EndedRollout, Rollouts, RolloutState
from lbctl.control.splits import MAX_SHARE, Shares
from lbctl.ir.weight import Weight
from lbctl.model.load import SourceText

UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)
"""Exceptions raised when reading a damaged record."""
MAX_TEXT_VALUES = 5_000_000
"""Maximum number of JSON values in a record with a fleet's files. Commas and brackets in these files are included."""
_MAX_NAMED = 10
"""Maximum number of dropped overrides that are named individually."""


@dataclass(frozen=True, slots=True)
class SavedFleet:
    """A fleet in a form that a later process can load."""

    texts: tuple[SourceText, ...]
    targets: Mapping[str, bytes] = field(default_factory=dict)
    """Maps the path of a targets file to its content."""
    discovered: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Maps the key of a discovery source's response to the response."""
    version: str = ""
    """Version of the snapshot built from it."""


@dataclass(frozen=True, slots=True)
class ChainedAuditRecord:
    """One action, linked to the previous record by its hash."""

    number: int
    """Counted from 1, without gaps."""
    at: str
    """Time as an ISO 8601 string in UTC with milliseconds."""
    actor: str
    """Name of the token, or the control plane itself."""
    action: str
    """Name of the action."""
    subject: str
    """Object to which the action was applied."""
    reason: str
    """Reason for the action; may be empty."""
    previous: str
    """Hash of the previous record; empty for the first record."""

    @property
    def hash(self) -> str:
        """SHA-256 of the fields as a JSON array without spaces, in hexadecimal."""
        return sha256(json.dumps(astuple(self), separators=(",", ":")).encode()).hexdigest()


def write_files(fleet: SavedFleet) -> str:
    """Serialize the files of a fleet, which are large and rarely change."""
    return json.dumps(
        {
            "texts": [[text.name, text.root, _as_text(text.data)] for text in fleet.texts],
            "targets": {place: _as_text(data) for place, data in fleet.targets.items()},
        }
    )


def write_served(fleet: SavedFleet) -> str:
    """Serialize the part of a fleet that changes with every discovery response."""
    return json.dumps({"version": fleet.version, "discovered": dict(sorted(fleet.discovered.items()))})


def read_fleet(files: str) -> SavedFleet:
    """Parse the text of `write_files`: a fleet without its version and responses of discovery."""
    body = parse(files, MAX_TEXT_VALUES)
    return SavedFleet(
        texts=tuple(SourceText(_text(name), _as_bytes(data), _text(root)) for name, root, data in body["texts"]),
        targets={place: _as_bytes(data) for place, data in body["targets"].items()},
    )


def read_served(served: str) -> tuple[str, dict[str, tuple[str, ...]], tuple[str, ...]]:
    """Parse the text of `write_served`: the version, the valid discovery responses, and the keys of invalid ones."""
    body = parse(served, MAX_TEXT_VALUES)
    answers = body["discovered"].items()
    good = {key: tuple(items) for key, items in answers if _is_texts(items)}
    return _text(body["version"]), good, tuple(sorted(key for key, _ in answers if key not in good))


def write_drains(drains: Mapping[tuple[str, str], float]) -> str:
    """Serialize a map from (pool, replica) to the start of its drain, in seconds since the epoch."""
    return json.dumps([[pool, replica, since] for (pool, replica), since in sorted(drains.items())])


def read_drains(text: str) -> dict[tuple[str, str], float]:
    """Parse the text of `write_drains`."""
    return {(_text(pool), _text(replica)): _time(since) for pool, replica, since in parse(text)}


def write_loop_output(output: LoopOutput, at: float) -> str:
    """Serialize the output of the control loop; `at` is its time in seconds since the epoch."""
    body = {
        "weights": output.weights,
        "out": output.ejections,
        "asleep": {pool: sorted(names) for pool, names in output.asleep.items()},
        "accepted_remaps": {pool: sorted(names) for pool, names in output.accepted_remaps.items()},
    }
    return json.dumps({"at": at, "output": body})


def read_loop_output(text: str) -> tuple[LoopOutput, float]:
    """Parse the text of `write_loop_output`: the output and its time."""
    record = parse(text)
    body = record["output"]
    weights = {
        pool: {name: Weight(*map(_above_zero, weight)) for name, weight in each.items()}
        for pool, each in body["weights"].items()
    }
    ejections = {
        pool: {name: tuple(map(_text, reasons)) for name, reasons in each.items()} for pool, each in body["out"].items()
    }
    asleep, accepted_remaps = (
        {pool: frozenset(map(_text, names)) for pool, names in body.get(key, {}).items()}
        for key in ("asleep", "accepted_remaps")
    )
    return LoopOutput(weights, ejections, asleep, accepted_remaps), _time(record["at"])


def write_overrides(overrides: Overrides) -> str:
    """Serialize operators' overrides."""
    return json.dumps([asdict(item) for item in overrides])


def read_overrides(text: str) -> tuple[Overrides, tuple[str, ...]]:
    """Parse the text of `write_overrides`: the valid overrides, and messages about dropped ones.

    If there are more than MAX_OVERRIDES, the newest are kept.
    """
    rows = parse(text)
    good: list[Override] = []
    bad: list[str] = []
    for row in rows if len(rows) <= MAX_OVERRIDES else sorted(rows, key=_began)[-MAX_OVERRIDES:]:
        try:
            good.append(_override(row))
        except UNREADABLE as error:
            names = ("kind", "pool", "replica", "route")
            key = " ".join(str(row[name]) for name in names if row.get(name)) if isinstance(row, dict) else "one"
            bad.append(f"{key} ({error})")
    if len(bad) > _MAX_NAMED:
        bad[_MAX_NAMED:] = [f"and {len(bad) - _MAX_NAMED:,} more"]
    if len(rows) > MAX_OVERRIDES:
        bad.append(f"the {len(rows) - MAX_OVERRIDES:,} oldest, because the limit is {MAX_OVERRIDES:,}")
        good.sort(key=lambda item: item.key)
    return tuple(good), tuple(bad)


def _began(row: Any) -> float:
    """Return an override's start time; earlier than all others if its row does not contain one."""
    since = row.get("since") if isinstance(row, dict) else None
    return since if isinstance(since, int | float) and not math.isnan(since) else -math.inf


def write_rollouts(rollouts: Rollouts) -> str:
    """Serialize the states of rollouts."""
    return json.dumps([asdict(item) for item in rollouts])


def read_rollouts(text: str) -> Rollouts:
    """Parse the text of `write_rollouts`."""
    return tuple(map(_rollout, parse(text)))


def write_audit(record: ChainedAuditRecord) -> str:
    """Serialize an audit record."""
    return json.dumps(asdict(record))


def read_audit(text: str) -> ChainedAuditRecord:
    """Parse the text of `write_audit`."""
    body = parse(text)
    if type(body["number"]) is not int:
        raise TypeError("a record number must be an integer")
    return ChainedAuditRecord(body["number"], *(_text(body[item.name]) for item in fields(ChainedAuditRecord)[1:]))


def _override(row: Mapping[str, Any]) -> Override:
    kind, value, until = row["kind"], row["value"], row["until"]
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is not a known kind")
    return Override(
        kind=kind,
        pool=_text(row["pool"]),
        replica=_text(row["replica"]),
        value=checked_weight(value) if kind == "weight" else None,
        route=_text(row.get("route", "")),
        shares=_shares(row.get("shares", ())),
        replaced=_shares(row.get("replaced", ())),
        author=_text(row.get("author", "")),
        reason=_text(row["reason"]),
        since=_time(row["since"]),
        until=None if until is None else _time(until),
    )


def _rollout(row: Mapping[str, Any]) -> RolloutState:
    ended = _ended(row)
    return RolloutState(
        route=_text(row["route"]),
        key=ended.key,
        base=ended.base,
        phase=ended.phase,
        step=ended.step,
        percent=ended.percent,
        since=_time(row["since"]),
        elapsed=_time(row["elapsed"]),
        held_since=_held_since(row),
        reason=ended.reason,
        analysis=_analysis(row["analysis"]) if "analysis" in row else AnalysisState(),
        models=_text(row.get("models", "")),
        earlier=tuple(map(_ended, row.get("earlier", ()))),
        allows_unavailable=row.get("allows_unavailable") is True,
    )


def _held_since(row: Mapping[str, Any]) -> float | None:
    """Return the time since which the hold has been running.

    In a state saved by an earlier version, it began with the step.
    """
    if "held_since" not in row:
        return _time(row["since"]) if row["phase"] == "progressing" else None
    return None if row["held_since"] is None else _time(row["held_since"])


def _ended(row: Mapping[str, Any]) -> EndedRollout:
    if row["phase"] not in PHASES:
        raise ValueError(f"{row['phase']!r} is not a known phase")
    if type(row["step"]) is not int or row["step"] < 0 or not 0 <= _time(row["percent"]) <= 100:
        raise ValueError("a rollout needs a non-negative step and a share from 0 to 100")
    return EndedRollout(
        key=_text(row["key"]),
        base=_shares(row["base"]),
        phase=row["phase"],
        step=row["step"],
        percent=_time(row["percent"]),
        reason=_text(row.get("reason", "")),
    )


def _analysis(row: Mapping[str, Any]) -> AnalysisState:
    return AnalysisState(
        evaluations=tuple(map(_evaluation, row["evaluations"])),
        tests=_count(row["tests"]),
        failures=_count(row["failures"]),
        waiting_new=_counts(row["waiting_new"]),
        waiting_old=_counts(row["waiting_old"]),
        step_new=_counts(row["step_new"]),
        step_old=_counts(row["step_old"]),
        waiting_latency_new=_histogram(row.get("waiting_latency_new")),
        waiting_latency_old=_histogram(row.get("waiting_latency_old")),
        step_slow_new=_counts(row["step_slow_new"]) if "step_slow_new" in row else NO_REQUESTS,
        step_slow_old=_counts(row["step_slow_old"]) if "step_slow_old" in row else NO_REQUESTS,
        good=_count(row["good"]),
        bad=_count(row["bad"]),
        inconclusive=_count(row["inconclusive"]),
    )


def _histogram(row: Mapping[str, Any] | None) -> LatencyHistogram:
    counts = row["counts"] if row else {}
    return LatencyHistogram({int(number): _count(count) for number, count in counts.items()})


def _verdict(value: Any) -> Verdict:
    for verdict in VERDICTS:
        if value == verdict:
            return verdict
    raise ValueError(f"{value!r} is not a known verdict")


def _evaluation(row: Mapping[str, Any]) -> Evaluation:
    return Evaluation(
        at=_time(row["at"]),
        step=_count(row["step"]),
        verdict=_verdict(row["verdict"]),
        reason=_text(row["reason"]),
        new=_counts(row["new"]),
        old=_counts(row["old"]),
        metrics=tuple(map(_metric_values, row["metrics"])),
        tested=bool(row["tested"]),
        latency=_latency(row["latency"]) if row.get("latency") else None,
    )


def _latency(row: Mapping[str, Any]) -> LatencyValues:
    new, old = (None if row[name] is None else _time(row[name]) for name in ("new", "old"))
    return LatencyValues(
        name=_text(row["name"]),
        max_ratio=_time(row["max_ratio"]),
        new=new,
        old=old,
        slow_new=_counts(row["slow_new"]),
        slow_old=_counts(row["slow_old"]),
        verdict=_verdict(row["verdict"]),
        problem=_text(row["problem"]),
    )


def _metric_values(row: Mapping[str, Any]) -> MetricValues:
    new, old = (None if row[name] is None else _time(row[name]) for name in ("new", "old"))
    return MetricValues(_text(row["name"]), _time(row["max_ratio"]), new, old, _text(row["problem"]))


def _counts(row: Mapping[str, Any]) -> RequestCounts:
    counts = RequestCounts(_count(row["requests"]), _count(row["errors"]))
    if counts.errors > counts.requests:
        raise ValueError("more errors than requests")
    return counts


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value


def _shares(rows: object) -> Shares:
    if not isinstance(rows, list | tuple):
        raise TypeError(f"{rows!r} are not shares")
    return tuple((_text(pool), _share(share)) for pool, share in rows)


def _share(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_SHARE:
        raise ValueError(f"{value!r} is not a share")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _time(value: object) -> float:
    """Return a finite, non-negative number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{value!r} is not a finite, non-negative number")
    return float(value)


def _above_zero(value: object) -> float:
    number = _time(value)
    if number == 0:
        raise ValueError("a weight is above 0")
    return number


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _as_text(data: bytes) -> str:
    """Decode arbitrary bytes reversibly."""
    return data.decode(errors="surrogateescape")


def _as_bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")
