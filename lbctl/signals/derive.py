"""From looks at a source to signals and evidence: gauges as they are, counters as differences of two looks.

Counters restart with the engine: one that is smaller than before, or of another number of lines (an engine came, or
one line could not be read), makes the later look a new beginning, and nothing is derived from the pair. There is no
division by 0: where nothing was counted there is no mean, and absent stays absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lbctl.signals.signal import COUNTERS, SIGNALS
from lbctl.signals.source import Reading, Table

_STEPS = ("iterations", "decode_tokens", "prefill_tokens")
_REQUESTS = (*_STEPS, "finished", "compute_count", "batches")


@dataclass(frozen=True, slots=True)
class Value:
    """A signal as a source gave it. `at`: seconds of the clock of the reading."""

    value: float
    at: float


@dataclass(frozen=True, slots=True)
class TokenEvidence:
    """What was counted between two looks of an engine that makes tokens. `itl_seconds`: the sum of `itl_count` times
    between tokens; `decode_tokens` and `prefill_tokens`: in each step, on average."""

    at: float
    itl_count: float
    itl_seconds: float
    decode_tokens: float
    prefill_tokens: float


@dataclass(frozen=True, slots=True)
class BatchEvidence:
    """The same of an engine that answers in batches. `compute_seconds`: the sum of `compute_count` times in the
    model; `items`: in each execution, on average."""

    at: float
    compute_count: float
    compute_seconds: float
    items: float


Evidence = TokenEvidence | BatchEvidence


@dataclass(frozen=True, slots=True)
class Derived:
    """Of one look: what it said, with its age. `evidence`: new with this look, if any. `restarted`: the counters began
    anew. `by_steps`: progress moves with each step of the engine, not only when a request ends. `moves`: how many
    looks up to this one found another part of the cache in use than the look before."""

    values: Mapping[str, Value]
    evidence: Evidence | None = None
    restarted: bool = False
    by_steps: bool = False
    moves: int = 0


def derive(table: Table, before: Reading | None, after: Reading) -> Derived:
    """What a look says, given the one before it."""
    told = after.quantities
    values = {name: value for name, value in told.items() if name in SIGNALS}
    moves = _moves(before, after)
    progress, by_steps = _progress(table, told, moves)
    if progress is not None:
        values["progress"] = progress
    seconds = after.at - before.at if before else 0.0
    restarted = before is not None and _restarted(before, after)
    evidence = None
    if before is not None and seconds > 0 and not restarted:
        delta = _Delta(before, after)
        values |= _rates(delta, seconds)
        evidence = None if table.voided_by in told else _evidence(table, delta, after.at)
    told_at = {name: Value(value, after.at) for name, value in values.items()}
    return Derived(told_at, evidence, restarted, by_steps, moves)


class _Delta:
    """Counter → what it grew by; None where that is not known."""

    def __init__(self, before: Reading, after: Reading) -> None:
        self._grown = {
            name: after.quantities[name] - before.quantities[name]
            for name in COUNTERS
            if name in before.quantities and name in after.quantities and _same(name, before, after)
        }

    def __call__(self, name: str) -> float | None:
        return self._grown.get(name)

    def ratio(self, above: str, below: str) -> float | None:
        """None where the lower one did not move."""
        upper, lower = self(above), self(below)
        return upper / lower if upper is not None and lower else None


def _same(name: str, before: Reading, after: Reading) -> bool:
    return before.lines.get(name) == after.lines.get(name)


def _restarted(before: Reading, after: Reading) -> bool:
    return any(
        after.quantities[name] < before.quantities[name]
        for name in COUNTERS
        if name in before.quantities and name in after.quantities and _same(name, before, after)
    )


def _moves(before: Reading | None, after: Reading) -> int:
    if before is None:
        return 0
    used, now = before.quantities.get("kv_cache"), after.quantities.get("kv_cache")
    return before.moves + (used is not None and now is not None and used != now)


def _progress(table: Table, told: Mapping[str, float], moves: int) -> tuple[float | None, bool]:
    """The sum of what moves when the engine does something, and whether each step moves it. Requests that end do not
    count beside steps: those that clients give up end in a wedged engine too. A cache that fills or empties is a sign
    of life beside counters, none by itself."""
    if "progress" in told:
        return told["progress"], table.heartbeat == "steps"
    by_steps = "iterations" in told or (table.heartbeat == "steps" and "decode_tokens" in told)
    moving = [told[name] for name in (_STEPS if by_steps else _REQUESTS) if name in told]
    return (sum(moving) + moves, by_steps) if table.heartbeat and moving else (None, False)


def _rates(delta: _Delta, seconds: float) -> dict[str, float]:
    tokens = delta("decode_tokens")
    found = {
        "ttft": delta.ratio("ttft_seconds", "ttft_count"),
        "token_latency": delta.ratio("itl_seconds", "itl_count"),
        "throughput": None if tokens is None else tokens / seconds,
    }
    return {name: value for name, value in found.items() if value is not None and value <= SIGNALS[name].most}


def _evidence(table: Table, delta: _Delta, at: float) -> Evidence | None:
    if table.evidence == "tokens":
        return _of_tokens(delta, at)
    return _of_batches(delta, at) if table.evidence == "batches" else None


def _of_tokens(delta: _Delta, at: float) -> TokenEvidence | None:
    count, seconds = delta("itl_count"), delta("itl_seconds")
    decode, prefill = delta.ratio("decode_tokens", "iterations"), delta.ratio("prefill_tokens", "iterations")
    if not count or not seconds or decode is None:
        return None
    return TokenEvidence(at, count, seconds, decode, prefill or 0.0)


def _of_batches(delta: _Delta, at: float) -> BatchEvidence | None:
    count, seconds, items = delta("compute_count"), delta("compute_seconds"), delta.ratio("items", "batches")
    if not count or not seconds or items is None:
        return None
    return BatchEvidence(at, count, seconds, items)
