"""What the demo has measured: as JSON, and as two tables."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lbctl.demo.canary import StepResult
from lbctl.demo.faults import Episode, Faults
from lbctl.demo.fleet import ANSWER, PROMPT, STRATEGIES, TITLES, Strategy, arrival_rate
from lbctl.demo.load import Load, Outcomes

PATIENCE = 5.0
"""Seconds that a client waits for the first token; after that the request has failed, and counts with this time."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of one group; times are seconds."""

    requests: int
    """How many were sent."""
    failed: int
    """How many of them have failed."""
    first_token_p50: float
    """The median of the time to the first token."""
    first_token_p99: float
    """Its 99th percentile."""
    shares: Mapping[str, float]
    """Replica → its part of the responses."""


def measured(outcomes: Outcomes) -> Measured:
    """Return the figures of these requests."""
    return Measured(
        len(outcomes.sent), outcomes.failed, outcomes.first_token(50), outcomes.first_token(99), outcomes.shares()
    )


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a run; times are seconds from its begin."""

    proxy: str
    """The kind of the proxy, and its version."""
    seconds: float
    """How long requests were sent."""
    groups: Mapping[Strategy, Measured]
    """The figures of each group."""
    episodes: Sequence[Episode]
    """The faults, in the order in which they began."""
    steps: Sequence[StepResult]
    """The steps of the rollout."""
    began: float
    """On the monotonic clock."""
    late: float
    """How late the event loop was (99th percentile): what a time here cannot tell apart."""


def report(
    proxy: str, began: float, loads: Mapping[Strategy, Load], faults: Faults, steps: Sequence[StepResult], late: float
) -> Report:
    """Return the report of everything so far."""
    now = time.monotonic()
    groups = {name: measured(load.outcomes(began, now)) for name, load in loads.items()}
    return Report(proxy, now - began, groups, faults.episodes, steps, began, late)


def as_json(run: Report) -> dict[str, Any]:
    """Return the report in JSON's own types."""
    return {
        "proxy": run.proxy,
        "seconds": round(run.seconds, 1),
        "load": {
            "requests_per_second": round(arrival_rate(), 2),
            "prompt_tokens_mean": PROMPT,
            "answer_tokens_mean": ANSWER,
            "first_token_timeout_seconds": PATIENCE,
        },
        "event_loop_late_seconds_p99": round(run.late, 4),
        "strategies": {name: _group(group) for name, group in run.groups.items()},
        "faults": [_episode(item, run.began) for item in run.episodes],
        "rollout": [_step(item, run.began) for item in run.steps],
    }


def _group(group: Measured) -> dict[str, Any]:
    return {
        "requests": group.requests,
        "failed": group.failed,
        "ttft_p50_seconds": round(group.first_token_p50, 4),
        "ttft_p99_seconds": round(group.first_token_p99, 4),
        "shares": {name: round(share, 4) for name, share in sorted(group.shares.items())},
    }


def _episode(item: Episode, began: float) -> dict[str, Any]:
    return {
        "kind": item.fault.kind,
        "replica": item.fault.replica,
        "from_seconds": round(item.began - began, 1),
        "to_seconds": round(item.ended - began, 1) if item.ended is not None else None,
        "share_lowered_after_seconds": round(item.reacted - item.began, 1) if item.reacted is not None else None,
    }


def _step(item: StepResult, began: float) -> dict[str, Any]:
    return {
        "percent": item.step.percent,
        "from_seconds": round(item.step.at - began, 1),
        "requests": item.requests,
        "failed": item.failed,
        "observed_share": round(item.observed, 4),
    }


def as_text(run: Report) -> str:
    """Return the report as text."""
    lines = [
        f"{run.seconds:.0f} s through {run.proxy}: the same requests, {arrival_rate():.1f}/s, to three equal groups of",
        f"simulated replicas. Without a first token after {PATIENCE:g} s a request has failed and counts as that long.",
        "",
        f"{'':<22} {'REQUESTS':>8} {'FAILED':>7} {'TTFT P50':>9} {'TTFT P99':>9}",
    ]
    for name in STRATEGIES:
        group = run.groups[name]
        times = f"{duration(group.first_token_p50):>9} {duration(group.first_token_p99):>9}"
        lines.append(f"{TITLES[name]:<22} {group.requests:>8} {group.failed:>7} {times}")
    if run.episodes:
        lines += ["", f"{'FAULT':<10} {'REPLICA':<8} {'FROM':>6} {'TO':>6}  WHAT LBCTL SERVE DID"]
        lines += [_row(item, run.began) for item in run.episodes]
    if run.steps:
        lines += ["", f"{'ROLLOUT TO V2':<19} {'FROM':>6} {'OBSERVED':>9} {'REQUESTS':>9} {'FAILED':>7}"]
        lines += [_step_row(item, run.began) for item in run.steps]
    return "\n".join(lines)


def _step_row(item: StepResult, began: float) -> str:
    since = f"{item.step.at - began:.0f} s"
    percent = f"{item.step.percent:g} %"
    return f"{percent:<19} {since:>6} {item.observed:>9.0%} {item.requests:>9} {item.failed:>7}"


def _row(item: Episode, began: float) -> str:
    to = f"{item.ended - began:.0f} s" if item.ended is not None else "-"
    fault = item.fault
    return f"{fault.kind:<10} {fault.replica:<8} {f'{item.began - began:.0f} s':>6} {to:>6}  {reaction(item)}"


def reaction(item: Episode) -> str:
    """Return what `serve` has done about a fault, as a phrase."""
    if item.reacted is not None:
        return f"gave it less after {item.reacted - item.began:.1f} s"
    if item.fault.kind == "stale":
        return "kept its weight: unknown is not slow"
    if item.fault.kind == "kill":
        return "nothing: the proxy's own check takes it out"
    return "nothing"


def duration(seconds: float) -> str:
    """Format a time: 35 ms, 2.41 s."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"
