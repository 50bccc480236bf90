"""The `lbctl simulate` results: each policy's figures, or the rate or replicas that meet a service level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import click

from lbctl.cli.simulate.options import SimulationOptions, lost_text
from lbctl.cli.simulate.study import Study
from lbctl.cli.simulate.text import (
    ProgressBar,
    best_answer,
    burst_sentence,
    busy_sentence,
    drained_sentence,
    load_sentence,
    recommendation,
    replicas,
)
from lbctl.ir.pools import Pool
from lbctl.simulate import capacity, profiles
from lbctl.simulate.policies import Policy
from lbctl.simulate.results import Summary

_MAX_REPLICAS = 4096


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of one search."""

    row: str
    value: float | None
    """Requests per second, or replicas, or None if nothing meets the limits."""
    load: float
    """Load relative to the engines' capacity, for the result if one was found, and otherwise for the original fleet."""
    cost: float | None
    """Price of the replicas per hour, or None if unknown."""
    unused_faults: tuple[str, ...] = ()
    """Replicas in `--slow`, `--kill` or `--join` that are not part of the result."""


@dataclass(frozen=True, slots=True)
class StudyResult:
    """The results of studies."""

    summaries: tuple[Summary, ...]
    """Each policy's figures. After a search, they apply to the rate or number of replicas that was found."""
    sentences: tuple[str, ...]
    """Explanation of the figures."""
    loads: Mapping[str, float]
    """Maps each fleet to the offered load, relative to its engines' capacity."""
    answers: tuple[SearchResult, ...] = ()
    """Result of each policy's search."""

    @property
    def is_found(self) -> bool:
        """Return whether the searches, if any, found a result."""
        return not self.answers or any(answer.value is not None for answer in self.answers)


def compare(options: SimulationOptions, studies: Sequence[Study]) -> StudyResult:
    """Replay the load for each policy in each fleet."""
    summaries = []
    with ProgressBar(sum(len(study.policies) for study in studies)) as bar:
        for study in studies:
            for policy in study.policies:
                summaries.append(study.run(policy, study.pool, bar.report))
                bar.next()
    loads = {study.name: study.load(study.pool) for study in studies}
    sentences = [_load_sentence(options, study, loads[study.name]) for study in studies]
    sentences += [*_engines(studies), busy_sentence(summaries, loads)]
    sentences += [drained_sentence(summaries), recommendation(summaries, loads)]
    return StudyResult(tuple(summaries), tuple(sentences), loads)


def _load_sentence(options: SimulationOptions, study: Study, load: float) -> str:
    who = f"the engines of {study.name}" if study.name else "the engines"
    who += f" without {lost_text(options.lose)}" if options.lose else ""
    if not study.trace.rate:
        return burst_sentence(len(study.trace.times), study.carried(study.pool), who)
    return load_sentence(load, who)


def search(options: SimulationOptions, studies: Sequence[Study]) -> StudyResult:
    """Search for each policy in each fleet. Raises UsageError for invalid limits."""
    try:
        limits = capacity.objectives(options.slo or "")
    except ValueError as error:
        raise click.UsageError(f"--slo: {error}") from None
    if any(limit.figure == "tpot" for limit in limits) and max(studies[0].trace.answers) < 2:
        raise click.UsageError(
            "--slo: tpot is the time between tokens, but every response in the load is only one token long"
        )
    summaries, answers, sentences = [], [], []
    with ProgressBar(sum(len(study.policies) for study in studies)) as bar:
        for study in studies:
            for policy in study.policies:
                policy_search = _Search(study, policy, limits, bar)
                answer, summary = policy_search.rate() if options.find == "rate" else policy_search.replicas()
                answers.append(answer)
                summaries.append(summary)
                sentences.append(_sentence(options, study, answer))
                bar.next()
    loads = {study.name: study.load(study.pool) for study in studies}
    best = best_answer([(answer.row, answer.value, answer.cost) for answer in answers], most=options.find == "rate")
    loads_found = {answer.row: answer.load for answer in answers}
    sentences += [*_engines(studies), busy_sentence(summaries, loads_found), drained_sentence(summaries), best]
    return StudyResult(tuple(summaries), tuple(sentences), loads, tuple(answers))


def _engines(studies: Sequence[Study]) -> list[str]:
    """Return a description of the engines, with their uncertainty if they come from a model."""
    engines = studies[0].engines
    gpus = (item.gpu for study in studies for item in study.pool.replicas)
    return [engines.description, *([profiles.spread(engines.model, gpus)] if engines.model else [])]


class _Search:
    """The search for one policy."""

    def __init__(self, study: Study, policy: Policy, limits: Sequence[capacity.Objective], bar: ProgressBar) -> None:
        self._study, self._policy, self._limits, self._bar = study, policy, limits, bar
        self._row = study.row(policy)

    def _run(self, study: Study, pool: Pool) -> Summary:
        summary = study.run(self._policy, pool, self._bar.report_search)
        self._bar.step()
        return summary

    def _meets(self, study: Study, pool: Pool) -> bool:
        """Return whether the limits and the stability bound are met.

        The bound is needed because queues that grow without limit may still look acceptable in a short load.
        """
        if not study.loss(pool).replicas or study.load(pool) >= 1:
            return False
        summary = self._run(study, pool)
        return all(limit.is_met(summary) for limit in self._limits)

    def rate(self) -> tuple[SearchResult, Summary]:
        """Return the maximum rate that meets the limits, and the figures at that rate, or at the trace's rate."""
        study, pool = self._study, self._study.pool
        start = 0.9 / study.load(pool)
        factor = capacity.largest_rate(lambda factor: self._meets(study.faster(factor), pool), start)
        fastest = study.faster(factor or 1.0)
        value = None if factor is None else fastest.trace.rate
        return SearchResult(self._row, value, fastest.load(pool), study.cost(pool)), self._run(fastest, pool)

    def replicas(self) -> tuple[SearchResult, Summary]:
        """Return the minimum number of replicas that meets the limits, and the figures for it.

        Without a result, the figures are for the original fleet.
        """
        study, own = self._study, len(capacity.serving(self._study.pool).replicas)
        own += not study.loss(study.pool).replicas  # the only --gpu replica is lost

        def meets(count: int) -> bool:
            return self._meets(study, capacity.with_replicas(study.pool, count))

        start = max(1, min(_MAX_REPLICAS, round(own * study.load(capacity.with_replicas(study.pool, own)))))
        count = capacity.fewest_replicas(meets, start, _MAX_REPLICAS)
        pool = capacity.with_replicas(study.pool, count or own)
        cost = study.cost(pool) if count else None
        result = SearchResult(self._row, count, study.load(pool), cost, tuple(study.unused_faults(pool)))
        return result, self._run(study, pool)


def _sentence(options: SimulationOptions, study: Study, answer: SearchResult) -> str:
    rest = f" without {lost_text(options.lose)}" if options.lose else ""
    if answer.value is None:
        return f"{answer.row}: no result meets {options.slo}{rest}. {load_sentence(answer.load, 'the engines')}"
    if options.find == "rate":
        given, whose = study.trace.rate, "trace" if options.trace_file else "load"
        multiple = f"{answer.value / given:.2f} × the {whose}'s {given:.3g}/s"
        what, who = f"up to {answer.value:.3g} requests/s ({multiple}) meet", "the engines"
    else:
        what, who = replicas(answer.value, " meet", " meets"), "these replicas"
    who = "the remaining replicas" if options.lose else who
    cost = f", for {answer.cost:,.2f} per hour" if answer.cost is not None else ""
    sentence = f"{answer.row}: {what} {options.slo}{rest}{cost}. {load_sentence(answer.load, who)}"
    if answer.unused_faults:
        unused = ", ".join(answer.unused_faults)
        sentence += f" These options have no effect, because their replicas are not included: {unused}."
    return sentence
