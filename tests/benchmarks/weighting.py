"""`python -m tests.benchmarks.weighting [--seeds N] [-k WORD] [--markdown]`: what adaptive weights and deep health do,
in simulation, against capacities alone.

Each cell is the 99th percentile of the time to the first token with capacities alone, and the ratio to it with the
control loop: the median of the seeds and the span of them, paired; behind it the ratio of the time per token. The last
column is how often weights were changed in ten minutes, at the most.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from lbctl.simulate.engine import Fault
from lbctl.simulate.run import run
from lbctl.simulate.scenario import Scenario, SimulatedReplica, heterogeneous, homogeneous, with_static_weights

ALGORITHMS = ("round_robin", "least_conn", "envoy_w", "envoy_w2")
_FOREVER = 1e9


def _throttled(factor: float) -> tuple[SimulatedReplica, ...]:
    return homogeneous(7, SimulatedReplica(faults=(Fault(120, _FOREVER, factor),)))


def _big_throttled() -> tuple[SimulatedReplica, ...]:
    first, *others = heterogeneous()
    return (replace(first, faults=(Fault(120, _FOREVER, 0.5),)), *others)


_HALF = Scenario(_throttled(0.5))
_WEDGED = homogeneous(7, SimulatedReplica(faults=(Fault(200, 260, 0.0),)))
_COLD = homogeneous(7, SimulatedReplica(joins=200, faults=(Fault(200, 240, 0.25),)))
_MIX = Scenario(heterogeneous(), load=0.85)
SCENARIOS: Mapping[str, Scenario] = {
    "8 equal, load .75": Scenario(homogeneous(8)),
    "8 equal, load .85": Scenario(homogeneous(8), load=0.85),
    "8 equal, load .95": Scenario(homogeneous(8), load=0.95),
    "8 equal, load .85, bursts": Scenario(homogeneous(8), load=0.85, burst=4),
    "5:2:1, load .7": Scenario(heterogeneous(), load=0.7),
    "5:2:1, load .85": _MIX,
    "5:2:1, load .95": Scenario(heterogeneous(), load=0.95),
    "5:2:1, small ones configured ×2": Scenario(heterogeneous(small=0.4)),
    "5:2:1, big ones configured ×½": Scenario(heterogeneous(big=0.5)),
    "5:2:1, one big one throttled to .5": Scenario(_big_throttled()),
    "one of 8 configured ×2": Scenario(homogeneous(7, SimulatedReplica(capacity=2.0))),
    "one of 8 configured ×½": Scenario(homogeneous(7, SimulatedReplica(capacity=0.5))),
    "one of 8 throttled to .8": Scenario(_throttled(0.8)),
    "one of 8 throttled to .5": _HALF,
    "one of 8 throttled to .25": Scenario(_throttled(0.25)),
    "one of 8 wedged for 60 s": Scenario(_WEDGED),
    "a cold one joins (.25 for 40 s)": Scenario(_COLD),
    "a cold one joins, no ramp": Scenario(_COLD, slow_start=None),
    "throttled to .5, delay 15 s": replace(_HALF, delay=15, stale_after=60),
    "throttled to .5, delay 30 s": replace(_HALF, delay=30, stale_after=60),
    "throttled to .5, 30 % of looks lost": replace(_HALF, loss=0.3),
    "throttled to .5, noise 30 %": replace(_HALF, noise=0.3),
    "throttled to .5, changes every 30 s": replace(_HALF, push_every=30),
    "throttled to .5, 1 proxy": replace(_HALF, proxies=1),
    "throttled to .5, 8 proxies": replace(_HALF, proxies=8),
    "throttled to .5, 32 proxies": replace(_HALF, proxies=32),
    "5:2:1, load .85, delay 30 s": replace(_MIX, delay=30, stale_after=60),
    "5:2:1, load .85, noise 30 %": replace(_MIX, noise=0.3),
    "5:2:1, load .85, 32 proxies": replace(_MIX, proxies=32),
}


@dataclass(frozen=True, slots=True)
class Cell:
    static: float
    ratio: float
    least: float
    most: float
    per_token: float
    changes: int

    def __str__(self) -> str:
        span = f"{self.least:.2f}–{self.most:.2f}"
        return f"{self.static:5.2f}: {self.ratio:.2f} ({span}), {self.per_token:.2f}"


def cell(scenario: Scenario, seeds: int) -> Cell:
    """Both runs of a seed have the same arrivals."""
    static, first, token, changes = [], [], [], 0
    for seed in range(seeds):
        before, after = run(with_static_weights(scenario), seed), run(scenario, seed)
        static.append(before.first_token())
        first.append(after.first_token() / before.first_token())
        token.append(after.per_token() / before.per_token())
        changes = max(changes, len(after.history) - len(before.history))
    return Cell(
        statistics.median(static), statistics.median(first), min(first), max(first),
        math.exp(statistics.fmean(map(math.log, token))), changes,
    )  # fmt: skip


def rows(seeds: int, word: str) -> Iterator[tuple[str, list[Cell]]]:
    for name, scenario in SCENARIOS.items():
        if word in name:
            long = replace(scenario, seconds=600.0)
            yield name, [cell(replace(long, algorithm=algorithm), seeds) for algorithm in ALGORITHMS]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.weighting")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("-k", metavar="WORD", default="")
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    bar = " | " if options.markdown else "  "
    head = ("scenario".ljust(38), *(item.ljust(30) for item in ALGORITHMS), "changes")
    print((bar + bar.join(head) + bar).strip() if options.markdown else bar.join(head))
    if options.markdown:
        print("|---" * (len(ALGORITHMS) + 2) + "|")
    for name, cells in rows(options.seeds, options.k):
        most = str(max(item.changes for item in cells))
        line = bar.join((name.ljust(38), *(str(item).ljust(30) for item in cells), most))
        print(f"| {line} |" if options.markdown else line, flush=True)


if __name__ == "__main__":
    main()
