"""Where lbctl loses and wins: its modes compared with the best of the others, and the reasons for remaining losses."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml

from tests.benchmarks.peers.figures import COMPARED, Figure
from tests.benchmarks.peers.intervals import Interval, difference
from tests.benchmarks.peers.results import BySeed

Verdict = Literal["better", "worse", "equal"]
REASONS = Path(__file__).with_name("reasons.yaml")


@dataclass(frozen=True, slots=True)
class Comparison:
    """The best proxy of one mode of lbctl and the best of the other systems in a case, for one figure."""

    case: str
    mode: str
    figure: Figure
    own: str
    peer: str
    own_mean: float
    peer_mean: float
    change: Interval
    """Mean difference of the seeds: lbctl minus the other system."""

    @property
    def verdict(self) -> Verdict:
        """Return whether the interval of the difference excludes 0, and on which side."""
        if not self.change.excludes_zero:
            return "equal"
        return "better" if (self.change.middle > 0) == self.figure.more_is_better else "worse"

    @property
    def is_empty(self) -> bool:
        """Return whether both values are 0, as with failed requests that neither system has."""
        return not self.own_mean and not self.peer_mean

    @property
    def size(self) -> float:
        """Return the difference as a fraction of the larger value."""
        return abs(self.change.middle) / max(self.own_mean, self.peer_mean)


def compare(case: str, mode: str, figure: Figure, own: Mapping[str, BySeed], peers: Mapping[str, BySeed]) -> Comparison:
    """Return the comparison of the systems of a mode with the other systems. Each must have the same seeds, at least
    two."""
    ours, theirs = best(own, figure), best(peers, figure)
    one, other = ([figure.of(group[seed]) for seed in sorted(group)] for group in (own[ours], peers[theirs]))
    means = statistics.fmean(one), statistics.fmean(other)
    return Comparison(case, mode, figure, ours, theirs, means[0], means[1], difference(one, other))


def comparisons(
    case: str,
    modes: Mapping[str, Mapping[str, BySeed]],
    peers: Mapping[str, BySeed],
    compared: Sequence[Figure] = COMPARED,
) -> list[Comparison]:
    """Return the comparisons of all modes, without systems that lack the result of a seed.

    `modes`: for each mode the results of its systems.
    """
    seeds = {seed for each in (*modes.values(), peers) for group in each.values() for seed in group}
    complete = {mode: _complete(own, seeds) for mode, own in modes.items()}
    others = _complete(peers, seeds)
    if len(seeds) < 2 or not others:
        return []
    return [compare(case, mode, figure, own, others) for mode, own in complete.items() if own for figure in compared]


def reasons(path: Path = REASONS) -> dict[tuple[str, str, str], str]:
    """Return the reasons for losses by case, mode and figure."""
    return {
        (case, entry["mode"], figure): entry["reason"].strip()
        for entry in yaml.safe_load(path.read_text(encoding="utf-8")) or ()
        for case in entry["cases"]
        for figure in entry["figures"]
    }


def sorted_by_size(compared: Sequence[Comparison], verdict: Verdict) -> Iterator[Comparison]:
    """Yield the comparisons with this verdict, beginning with the largest relative difference."""
    yield from sorted((each for each in compared if each.verdict == verdict), key=lambda each: -each.size)


def best(systems: Mapping[str, BySeed], figure: Figure) -> str:
    """Return the system with the best mean."""
    means = {name: statistics.fmean(map(figure.of, group.values())) for name, group in systems.items()}
    return (max if figure.more_is_better else min)(means, key=means.__getitem__)


def _complete(systems: Mapping[str, BySeed], seeds: set[int]) -> dict[str, BySeed]:
    return {name: group for name, group in systems.items() if group.keys() == seeds}
