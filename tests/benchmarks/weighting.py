"""`python -m tests.benchmarks.weighting [--seeds N] [-k WORD] [--markdown]`: measure the benefit of adaptive weights
and deep health over capacities alone, by simulation.

A cell has the 99th percentile of the time to the first token with capacities alone, then the ratio with the control
loop to that: the median and the range over the seeds, paired by seed. The ratio of the time per token follows. The last
column is the maximum number of weight changes in ten minutes.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from lbctl.simulate.engine import CostModel, SpeedFault, saturated_rate
from lbctl.simulate.run import run
from lbctl.simulate.scenario import Scenario, SimulatedReplica, heterogeneous, homogeneous, with_static_weights

ALGORITHMS = ("round_robin", "least_conn", "least_conn_reloaded", "envoy_w2")
_FOREVER = 1e9
_RELOAD = 30.0
"""Seconds between reloads of nginx, by default."""


def _throttled(factor: float) -> tuple[SimulatedReplica, ...]:
    return homogeneous(7, SimulatedReplica(faults=(SpeedFault(120, _FOREVER, factor),)))


def _big_throttled() -> tuple[SimulatedReplica, ...]:
    first, *others = heterogeneous()
    return (replace(first, faults=(SpeedFault(120, _FOREVER, 0.5),)), *others)


def _in_turn(seconds: float, factor: float) -> tuple[SimulatedReplica, ...]:
    """Return replicas of which one in 8 is alternately slow and healthy, for this number of seconds each."""
    begins = (120 + 2 * seconds * turn for turn in range(int(600 / seconds)))
    return homogeneous(
        7, SimulatedReplica(faults=tuple(SpeedFault(begin, begin + seconds, factor) for begin in begins))
    )


@dataclass(frozen=True, slots=True)
class _Gpu:
    """Figures of a data sheet: GB, GB/s, and TFLOPS for 16 bits without sparsity."""

    name: str
    memory: float
    bandwidth: float
    compute: float


_H100, _A100 = _Gpu("H100-SXM", 80, 3350, 989), _Gpu("A100-80GB", 80, 2039, 312)
_L40S, _H20 = _Gpu("L40S", 48, 864, 362), _Gpu("H20", 96, 4022, 148)


def _roofline(gpu: _Gpu, weights: float, token: float, count: int) -> CostModel:
    """Return an engine with this number of GPUs whose decoding is limited by memory bandwidth and whose prefill is
    limited by compute, at 60 % of the figures of the data sheet. `weights` is in GB, `token` is the cache per token in
    KB."""
    bandwidth, compute = 0.6 * count * gpu.bandwidth, 0.6 * count * gpu.compute
    each = weights / compute / 1000
    return CostModel(
        a=2e-3 + weights / bandwidth, b=each + 2e-5, c=token / 1e6 / bandwidth, p=each,
        cache=int((0.9 * count * gpu.memory - weights) * 1e6 / token),
    )  # fmt: skip


def _unlike(weights: float, token: float, count: int, *gpus: _Gpu) -> tuple[SimulatedReplica, ...]:
    """Return three replicas of each GPU, with their capacities for the simulated lengths."""
    curves = [_roofline(gpu, weights, token, count) for gpu in gpus]
    rates = [saturated_rate(1.0, 1150.0, 195.0, curve) for curve in curves]
    return tuple(
        SimulatedReplica(capacity=rate / max(rates), gpu=gpu.name, curve=curve)
        for gpu, curve, rate in zip(gpus, curves, rates, strict=True)
        for _ in range(3)
    )


def _of_8b(*gpus: _Gpu) -> tuple[SimulatedReplica, ...]:
    return _unlike(16, 131, 1, *gpus)


def _of_70b(*gpus: _Gpu) -> tuple[SimulatedReplica, ...]:
    return _unlike(140, 328, 8, *gpus)


_HALF = Scenario(_throttled(0.5))
_WEDGED = homogeneous(7, SimulatedReplica(faults=(SpeedFault(200, 260, 0.0),)))
_COLD = homogeneous(7, SimulatedReplica(joins=200, faults=(SpeedFault(200, 240, 0.25),)))
_MIX = Scenario(heterogeneous(), load=0.85)
_BIG, *_REST = heterogeneous()
_PROMPTS = homogeneous(7, SimulatedReplica(faults=(SpeedFault(120, _FOREVER, 0.25, prompts_alone=True),)))
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
    "5:2:1, a big one to .5, 32 proxies": Scenario(_big_throttled(), proxies=32),
    "5:2:1, load .85, delay 30 s": replace(_MIX, delay=30, stale_after=60),
    "5:2:1, load .85, noise 30 %": replace(_MIX, noise=0.3),
    "5:2:1, load .85, 32 proxies": replace(_MIX, proxies=32),
    "5:2:1, no weights": Scenario(heterogeneous(1.0, 1.0)),
    "throttled to .25, prompts alone": Scenario(_PROMPTS),
    "throttled to .5, 20 s on, 20 s off": Scenario(_in_turn(20, 0.5)),
    "throttled to .25, 20 s on, 20 s off": Scenario(_in_turn(20, 0.25)),
    "throttled to .5, 60 s on, 60 s off": Scenario(_in_turn(60, 0.5)),
    "8 equal, load .75, noise 30 %": Scenario(homogeneous(8), noise=0.3),
    "5:2:1, the largest wedged for good": Scenario(
        (replace(_BIG, faults=(SpeedFault(200, _FOREVER, 0.0),)), *_REST), load=0.6
    ),
    "8B, H100 and A100, load .85": Scenario(_of_8b(_H100, _A100), load=0.85),
    "8B, H100 and L40S, load .85": Scenario(_of_8b(_H100, _L40S), load=0.85),
    "8B, H100 and H20, load .85": Scenario(_of_8b(_H100, _H20), load=0.85),
    "8B, L40S and H20, load .85": Scenario(_of_8b(_L40S, _H20), load=0.85),
    "8B, four types, load .85": Scenario(_of_8b(_H100, _A100, _L40S, _H20), load=0.85),
    "8B, four types, load .6": Scenario(_of_8b(_H100, _A100, _L40S, _H20), load=0.6),
    "70B, H100 and A100, load .85": Scenario(_of_70b(_H100, _A100), load=0.85),
    "70B, H100 and H20, load .85": Scenario(_of_70b(_H100, _H20), load=0.85),
    "70B, four types, load .85": Scenario(_of_70b(_H100, _A100, _L40S, _H20), load=0.85),
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
    """Return the results of a scenario. Both runs of a seed have the same arrivals."""
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
            yield name, [cell(_before(algorithm, long), seeds) for algorithm in ALGORITHMS]


def _before(algorithm: str, scenario: Scenario) -> Scenario:
    reload = max(_RELOAD, scenario.push_every) if algorithm == "least_conn_reloaded" else scenario.push_every
    return replace(scenario, algorithm=algorithm, push_every=reload)


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
