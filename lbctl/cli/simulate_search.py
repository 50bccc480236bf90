"""What `lbctl simulate` finds: the figures of each policy, or the rate or the replicas that meet a service level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import click

from lbctl.cli.simulate_study import SimulationOptions, Study
from lbctl.cli.simulate_text import ProgressBar, load_sentence, recommendation
from lbctl.simulate import capacity
from lbctl.simulate.policies import Policy
from lbctl.simulate.results import Summary

_MOST_REPLICAS = 4096


@dataclass(frozen=True, slots=True)
class StudyResult:
    """What a study has found."""

    summaries: tuple[Summary, ...]
    """The figures of each policy; after a search, at the rate or with the replicas that were found."""
    sentences: tuple[str, ...]
    """What the figures mean."""
    load: float
    """The offered load as a part of what the engines carry."""
    answers: Mapping[str, float | None]
    """Policy → requests per second, or replicas; None: nothing meets the limits. Empty where nothing was searched."""

    @property
    def is_found(self) -> bool:
        """Return whether a search, if there was one, has found anything."""
        return not self.answers or any(value is not None for value in self.answers.values())


def compare(study: Study) -> StudyResult:
    """Replay the trace for each policy."""
    summaries = []
    with ProgressBar(len(study.policies)) as bar:
        for policy in study.policies:
            summaries.append(study.run(policy, study.pool, study.trace, bar.report))
            bar.next()
    load = study.load(study.pool, study.trace)
    return StudyResult(tuple(summaries), (load_sentence(load), recommendation(summaries)), load, {})


def search(options: SimulationOptions, study: Study) -> StudyResult:
    """Search for each policy. Raises UsageError for limits that cannot be read."""
    try:
        limits = capacity.objectives(options.slo or "")
    except ValueError as error:
        raise click.UsageError(f"--slo: {error}") from None
    find = _rate if options.find == "rate" else _replicas
    limits_of_policies = {policy.name: find(study, policy, limits) for policy in study.policies}
    load = study.load(study.pool, study.trace)
    sentences = (
        load_sentence(load),
        *(_answer(options, study, name, value) for name, (value, _) in limits_of_policies.items()),
    )
    answers = {name: value for name, (value, _) in limits_of_policies.items()}
    return StudyResult(tuple(summary for _, summary in limits_of_policies.values()), sentences, load, answers)


_Found = tuple[float | None, Summary]
_Limits = Sequence[capacity.Objective]


def _rate(study: Study, policy: Policy, limits: _Limits) -> _Found:
    """Return the largest rate that meets the limits, and the figures there, or at the trace's rate if there is none."""

    def meets(factor: float) -> bool:
        return _meets(study.run(policy, study.pool, study.trace.faster(factor)), limits)

    start = min(64.0, max(1 / 64, 0.9 / study.load(study.pool, study.trace)))
    factor = capacity.largest_rate(meets, start)
    summary = study.run(policy, study.pool, study.trace.faster(factor or 1.0))
    return (None if factor is None else factor * study.trace.rate), summary


def _replicas(study: Study, policy: Policy, limits: _Limits) -> _Found:
    """Return the fewest replicas that meet the limits, and the figures with them, or with the fleet's own."""

    def meets(count: int) -> bool:
        return _meets(study.run(policy, capacity.with_replicas(study.pool, count), study.trace), limits)

    own = len(study.pool.replicas)
    count = capacity.fewest_replicas(meets, max(1, round(own * study.load(study.pool, study.trace))), _MOST_REPLICAS)
    return count, study.run(policy, capacity.with_replicas(study.pool, count or own), study.trace)


def _meets(summary: Summary, limits: _Limits) -> bool:
    return all(limit.is_met(summary) for limit in limits)


def _answer(options: SimulationOptions, study: Study, policy: str, value: float | None) -> str:
    if value is None:
        return f"{policy}: nothing meets {options.slo}"
    if options.find == "rate":
        return f"{policy}: up to {value:.3g} requests/s ({value / study.trace.rate:.2f} × the trace) meet {options.slo}"
    return f"{policy}: {value:.0f} replicas meet {options.slo}"
