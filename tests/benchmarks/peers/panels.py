"""The panels of the charts in docs/develop/benchmarks.md: a chart for each question, and one for costs."""

from __future__ import annotations

from collections.abc import Mapping

from tests.benchmarks.peers import figures
from tests.benchmarks.peers.cases import Case
from tests.benchmarks.peers.charts import Bar, Panel
from tests.benchmarks.peers.figures import Figure
from tests.benchmarks.peers.results import BySeed
from tests.benchmarks.peers.table import Table, charted
from tests.benchmarks.peers.verdicts import best

COST_CASES = ("mixed-50", "prefixes-50")
"""Cases with short and with long prompts."""


def panels(table: Table) -> dict[str, list[Panel]]:
    """Return the panels of each chart by the name of its file. Cases that have not been run have no panel."""
    found = {group: [_of(table, case, charted(case)) for case in table.run(group)] for group in table.groups}
    found["costs"] = [
        _of(table, case, figure)
        for figure in (figures.TOTAL_CPU, figures.TOTAL_MEMORY)
        for case in table.cases
        if case.name in COST_CASES and table.of(case)
    ]
    return {f"benchmarks-{name}.svg": each for name, each in found.items() if each}


def _of(table: Table, case: Case, figure: Figure) -> Panel:
    return panel(f"{case.title}: {figure.title}", table.of(case), figure)


def panel(title: str, systems: Mapping[str, BySeed], figure: Figure) -> Panel:
    """Return a panel with the best configuration of each product, the best product first."""
    products: dict[str, dict[str, BySeed]] = {}
    for name, group in systems.items():
        products.setdefault(name.partition(",")[0], {})[name] = group
    bars = []
    for product, configurations in products.items():
        results = [*configurations[best(configurations, figure)].values()]
        value = figure.of_seeds(results)
        bars.append(Bar(product, value, figure.text(value.middle), product.startswith("lbctl ")))
    return Panel(title, sorted(bars, key=lambda bar: bar.value.middle, reverse=figure.more_is_better))
