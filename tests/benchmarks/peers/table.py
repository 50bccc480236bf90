"""The results of all systems in all cases, as the page and its charts read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.benchmarks.peers import cases, figures, systems, trial
from tests.benchmarks.peers.cases import Case
from tests.benchmarks.peers.figures import COMPARED, Figure
from tests.benchmarks.peers.results import BySeed, Results
from tests.benchmarks.peers.systems import System
from tests.benchmarks.peers.verdicts import Comparison, comparisons

FAILURE_CASES = ("wedged", "restart", "upgrade")
"""Cases whose chart shows failed requests, which some systems have."""


@dataclass(frozen=True)
class Table:
    """The cases, the systems of each, and the results of those that ran."""

    machine: Mapping[str, Any]
    """Empty if nothing has been run yet."""
    groups: Mapping[str, str]
    """The question of each group of cases."""
    cases: Sequence[Case]
    systems: Mapping[str, Sequence[System]]
    """By case."""
    results: Mapping[tuple[str, str], BySeed]
    """By case and system, without systems that have no result."""
    seeds: int
    """Number of runs of each case."""

    def of(self, case: Case) -> dict[str, BySeed]:
        """Return the results of all systems in a case."""
        return self._where(case, {each.mode for each in self.systems[case.name]})

    def own(self, case: Case) -> dict[str, BySeed]:
        """Return the results of lbctl's systems in a case."""
        return self._where(case, set(case.modes))

    def peers(self, case: Case) -> dict[str, BySeed]:
        """Return the results of the other systems in a case."""
        return self._where(case, {""})

    def comparison(self, case: Case, figure: Figure) -> Comparison | None:
        """Return the comparison of lbctl's best system with the best other one, if there are at least two seeds."""
        return next(iter(comparisons(case.name, {"": self.own(case)}, self.peers(case), [figure])), None)

    def by_proxy(self, case: Case, figure: Figure) -> dict[str, Comparison]:
        """Return the comparison of `pick` with the best of the other systems for each of lbctl's proxies."""
        own, peers = self._where(case, {"pick"}), self.peers(case)
        return {
            name.split(", ")[1]: each
            for name, group in own.items()
            for each in comparisons(case.name, {"pick": {name: group}}, peers, [figure])
        }

    def comparisons(self) -> list[Comparison]:
        """Return the comparisons of each recommended mode of lbctl with the best of the other systems, for all cases.

        Comparisons of 0 with 0 are left out.
        """
        return [
            each
            for case in self.cases
            for each in comparisons(
                case.name, {mode: self._where(case, {mode}) for mode in case.modes}, self.peers(case), COMPARED
            )
            if not each.is_empty
        ]

    def run(self, group: str) -> Iterator[Case]:
        """Yield the cases of a group that have results."""
        yield from (case for case in self.cases if case.group == group and self.of(case))

    def case(self, name: str) -> Case:
        """Return the case of this name."""
        return next(case for case in self.cases if case.name == name)

    def _where(self, case: Case, modes: set[str]) -> dict[str, BySeed]:
        names = [each.name for each in self.systems[case.name] if each.mode in modes]
        return {name: self.results[case.name, name] for name in names if (case.name, name) in self.results}


def table(results: Results) -> Table:
    """Return the table of these results."""
    compared = {case.name: systems.of(case) for case in cases.CASES}
    found = {(case, each.name): results.of(case, each.name) for case, group in compared.items() for each in group}
    ran = {key: by_seed for key, by_seed in found.items() if by_seed}
    seeds = max(map(len, ran.values()), default=trial.SEEDS)
    return Table(results.machine, cases.GROUPS, cases.CASES, compared, ran, seeds)


def charted(case: Case) -> Figure:
    """Return the figure in the chart of a case: failed requests, or the 99th percentile of the time to first token."""
    return figures.FAILED if case.name in FAILURE_CASES else figures.TTFT_P99
