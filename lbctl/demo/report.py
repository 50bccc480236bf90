"""The demo's measurements, as JSON and as tables."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lbctl.base.percentiles import percentile_of
from lbctl.demo.canary import Canary, StepResult
from lbctl.demo.faults import Episode, Faults
from lbctl.demo.fleet import ANSWER, PROMPT, STRATEGIES, TITLES, Strategy, arrival_rate
from lbctl.demo.load import LoadGenerator, Outcomes
from lbctl.demo.observer import ServedDecision
from lbctl.demo.totals import SLOW

FIRST_TOKEN_TIMEOUT = 5.0
"""Maximum time that a client waits for the first token, in seconds. After that, the request counts as failed, with this
time."""

MAX_LATENESS = SLOW / 4
"""Lateness of the event loop, in seconds, above which the times in the report may not be meaningful."""

SLOW_COLUMN = f"FAILED OR > {SLOW:g} s"


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """One group's figures. Times are in seconds."""

    requests: int
    """Number of requests sent."""
    failed: int
    """Number of failed requests."""
    slow_share: float
    """Share of requests that failed or waited longer than `SLOW` seconds for the first token."""
    first_token_p50: float
    """Median time to the first token."""
    first_token_p99: float
    """99th percentile of the time to the first token."""
    shares: Mapping[str, float]
    """Maps each replica to its share of the responses."""


def measured(outcomes: Outcomes) -> GroupFigures:
    """Return the figures for these requests."""
    sent = len(outcomes.sent)
    slow_share = outcomes.slow(SLOW) / sent if sent else 0.0
    times = outcomes.first_token(50), outcomes.first_token(99)
    return GroupFigures(sent, outcomes.failed, slow_share, *times, outcomes.shares())


@dataclass(frozen=True, slots=True)
class DemoReport:
    """The result of a run. Times are in seconds from the start of the run."""

    proxy: str
    """Kind and version of the proxy."""
    seconds: float
    """Duration of the load."""
    groups: Mapping[Strategy, GroupFigures]
    episodes: Sequence[Episode]
    """Faults, in the order in which they started."""
    canaries: Sequence[Canary]
    """Canaries that were started."""
    decisions: Mapping[str, ServedDecision]
    """The final decision that `serve` made for each replica in the adaptive group."""
    began: float
    """Start time on the monotonic clock."""
    late: float
    """Lateness of the event loop: the 99th percentile of a second, which at most 5 % of the seconds exceed. Differences
    below this time are not significant."""


def report(
    proxy: str, began: float, loads: Mapping[Strategy, LoadGenerator], faults: Faults, canaries: Sequence[Canary],
    decisions: Mapping[str, ServedDecision], late: Sequence[float],
) -> DemoReport:  # fmt: skip
    """Return the report of the run so far.

    `late`: the lateness of the event loop in each second (99th percentile).
    """
    now = time.monotonic()
    groups = {name: measured(load.outcomes(began, now)) for name, load in loads.items()}
    started = [canary.copy() for canary in canaries if canary.started is not None]
    return DemoReport(proxy, now - began, groups, faults.episodes, started, decisions, began, usual_lateness(late))


def usual_lateness(late: Sequence[float]) -> float:
    """Return the lateness that at most 5 % of the seconds exceed."""
    return percentile_of(late, 95)


def as_json(run: DemoReport) -> dict[str, Any]:
    """Return the report as JSON-compatible types."""
    return {
        "proxy": run.proxy,
        "seconds": round(run.seconds, 1),
        "load": {
            "requests_per_second": round(arrival_rate(), 2),
            "prompt_tokens_mean": PROMPT,
            "answer_tokens_mean": ANSWER,
            "first_token_timeout_seconds": FIRST_TOKEN_TIMEOUT,
        },
        "event_loop_late_seconds_p99": round(run.late, 4),
        "strategies": {name: _group(group) for name, group in run.groups.items()},
        "faults": [_episode(item, run.began) for item in run.episodes],
        "rollouts": [_rollout(item, run.began) for item in run.canaries],
        "replicas": [_replica(name, decision) for name, decision in run.decisions.items()],
    }


def _group(group: GroupFigures) -> dict[str, Any]:
    return {
        "requests": group.requests,
        "failed": group.failed,
        "failed_or_above_1s_share": round(group.slow_share, 4),
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


def _rollout(canary: Canary, began: float) -> dict[str, Any]:
    outcomes = canary.outcomes()
    return {
        "name": canary.plan.name,
        "phase": canary.phase,
        "from_seconds": _since(canary.started, began),
        "to_seconds": _since(canary.ended, began),
        "requests": len(outcomes.sent),
        "failed": outcomes.failed,
        "last_evaluation": canary.last_evaluation,
        "steps": [_step(item, began) for item in canary.results()],
    }


def _since(moment: float | None, began: float) -> float | None:
    return None if moment is None else round(moment - began, 1)


def _replica(name: str, decision: ServedDecision) -> dict[str, Any]:
    return {
        "name": name,
        "state": decision.state,
        "state_reason": decision.reason,
        "share": decision.share,
        "observed": decision.observed,
    }


def _step(item: StepResult, began: float) -> dict[str, Any]:
    return {
        "percent": item.step.percent,
        "from_seconds": round(item.step.at - began, 1),
        "requests": item.requests,
        "failed": item.failed,
        "observed_share": None if item.observed is None else round(item.observed, 4),
    }


def as_text(run: DemoReport) -> str:
    """Return the report as text."""
    lines = [
        *busy_warning(run.late),
        summary(run.groups),
        "",
        f"{run.seconds:.0f} s through {run.proxy}: the same requests, {arrival_rate():.1f}/s, to three equal groups of",
        f"simulated replicas. Clients give up after {FIRST_TOKEN_TIMEOUT:g} s without a first token.",
        "",
        f"{'':<22} {'REQUESTS':>8} {'FAILED':>7} {SLOW_COLUMN:>17} {'TTFT P50':>9}",
    ]
    for name in STRATEGIES:
        group = run.groups[name]
        figures = f"{group.slow_share:>17.1%} {duration(group.first_token_p50):>9}"
        lines.append(f"{TITLES[name]:<22} {group.requests:>8} {group.failed:>7} {figures}")
    if run.episodes:
        lines += ["", f"{'FAULT':<10} {'REPLICA':<8} {'FROM':>6} {'TO':>6}  WHAT LBCTL SERVE DID"]
        lines += [_row(item, run.began) for item in run.episodes]
    if run.canaries:
        lines += ["", f"{'CANARY':<10} {'REQUESTS':>8} {'FAILED':>6} {'FROM':>6} {'TO':>6}  WHAT LBCTL SERVE DID"]
        lines += [_canary_row(item, run.began) for item in run.canaries]
    return "\n".join(lines)


def busy_warning(late: float) -> list[str]:
    """Return the lines of a warning if the machine was too busy to measure times."""
    if late <= MAX_LATENESS:
        return []
    return [
        "Warning: the figures may not be meaningful, because this machine was too busy.",
        f"In 5 % of the seconds, the demo sent or answered requests at least {duration(late)} late.",
        "",
    ]


def summary(groups: Mapping[Strategy, GroupFigures]) -> str:
    """Return the result as one sentence."""
    shares = {name: f"{100 * group.slow_share:.1f} %" for name, group in groups.items()}
    return (
        f"Failed or waited more than {SLOW:g} s for the first token: {shares['adaptive']} of the requests with "
        f"lbctl serve, {shares['static']} with static weights, {shares['round-robin']} with round robin."
    )


def _canary_row(canary: Canary, began: float) -> str:
    outcomes = canary.outcomes()
    start, end = (_moment(moment, began) for moment in (canary.started, canary.ended))
    counts = f"{len(outcomes.sent):>8} {outcomes.failed:>6}"
    return f"{canary.plan.name:<10} {counts} {start:>6} {end:>6}  {progress(canary)}"


def _row(item: Episode, began: float) -> str:
    start, end = (_moment(moment, began) for moment in (item.began, item.ended))
    return f"{item.fault.kind:<10} {item.fault.replica:<8} {start:>6} {end:>6}  {reaction(item)}"


def _moment(moment: float | None, began: float) -> str:
    return "-" if moment is None else f"{moment - began:.0f} s"


def progress(canary: Canary) -> str:
    """Return a rollout's progress as a phrase: its phase, the new version's shares and the last verdict."""
    shares = ", ".join(f"{step.percent:g} %" for step in canary.steps)
    return f"{canary.phase.replace('_', ' ')} ({shares}): {verdict(canary)}"


def verdict(canary: Canary) -> str:
    """Return the last verdict on a rollout with its figures, or a dash if there is none."""
    last = canary.last_evaluation
    if last is None:
        return "-"
    sides = " against ".join(f"{last[side]['errors']}/{last[side]['requests']}" for side in ("new", "old"))
    return f"{last['verdict']}, errors {sides}"


def reaction(item: Episode) -> str:
    """Return how `serve` reacted to a fault, as a phrase."""
    if item.reacted is not None:
        return f"reduced its share after {item.reacted - item.began:.1f} s"
    if item.fault.kind == "stale":
        return "kept its weight, because missing metrics do not mean that it is slow"
    if item.fault.kind == "kill":
        return "nothing: the proxy's own health check excludes it"
    return "nothing"


def duration(seconds: float) -> str:
    """Format a time, for example 35 ms or 2.41 s."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"
