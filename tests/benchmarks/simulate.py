"""`python -m tests.benchmarks.simulate`: measure the replay of a million requests on a hundred replicas.

Each row is compared with its limit, and with the previous row, which has a tenth of the requests: a factor of 10 is
linear. Each measurement is a separate process, so that its memory can be measured. numba caches compiled code, so only
the second run is meaningful. Without numba (the extra `simulate`), the rows are of plain Python with a tenth of the
requests, without limits.

The exit code is not 0 if plain and compiled Python yield different figures. This is checked with a hundredth of the
requests, with replicas that die and limits that are reached.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import time
from array import array
from importlib.util import find_spec

REPLICAS = 100
REQUESTS = 1_000_000
MAX_SECONDS, MAX_MEMORY = 60.0, 500.0
POLICIES = ("envoy:least_request", "nginx:least_request", "haproxy:least_request")
_HEAD = "| requests | policy | | seconds | limit | of them replay | peak MB | limit | growth |\n|" + "---|" * 9


def main() -> None:
    """Print the table."""
    print(f"{REPLICAS} replicas, Poisson arrivals at 75 % of the bound, processes with their imports\n\n{_HEAD}")
    for policy in POLICIES:
        if find_spec("numba") is None:
            small = _row(policy, REQUESTS // 100, "1")
            _row(policy, REQUESTS // 10, "1", small["replay"])
            continue
        small = _row(policy, REQUESTS // 10, "0")
        _row(policy, REQUESTS, "0", small["replay"])
        if _row(policy, REQUESTS // 100, "0")["digest"] != _row(policy, REQUESTS // 100, "1")["digest"]:
            sys.exit("compiled and plain runs differ")


def _row(policy: str, count: int, plain: str, tenth: float | None = None) -> dict[str, float]:
    """Measure and print one row. `tenth`: the seconds of a tenth of the requests."""
    begin = time.perf_counter()
    run = [sys.executable, "-m", __spec__.name, policy, str(count)]
    out = subprocess.run(run, env={**os.environ, "NUMBA_DISABLE_JIT": plain}, stdout=subprocess.PIPE, check=True)
    seconds = time.perf_counter() - begin
    measured: dict[str, float] = json.loads(out.stdout)
    way, is_limited = "plain" if plain == "1" else "compiled", count == REQUESTS
    cells = (
        f"{count:,}", policy, way,
        f"{seconds:.1f}", f"{MAX_SECONDS:.0f}" if is_limited else "", f"{measured['replay']:.1f}",
        f"{measured['peak']:.0f}", f"{MAX_MEMORY:.0f}" if is_limited else "",
        f"{measured['replay'] / tenth:.1f}" if tenth else "",
    )  # fmt: skip
    print(f"| {' | '.join(cells)} |", flush=True)
    return measured


def measure(policy: str, count: int) -> None:
    """Replay once, and print seconds, peak memory and a digest of the figures as JSON."""
    from lbctl.ir.address import Address
    from lbctl.ir.pools import ActiveCheck, CircuitBreaker, HttpCheck, Pool, Replica, SlowStart
    from lbctl.simulate import capacity
    from lbctl.simulate.engine import CostModel
    from lbctl.simulate.policies import POLICIES as BY_NAME
    from lbctl.simulate.replay import replay
    from lbctl.simulate.results import summarise
    from lbctl.simulate.setup import Outage, Setup
    from lbctl.simulate.trace import Trace
    from tests.benchmarks.memory import most_resident

    kinds = (5.0, 2.0, 2.0, 1.0)
    replicas = tuple(Replica(f"r{i:03}", Address("127.0.0.1", 1), kinds[i % 4]) for i in range(REPLICAS))
    fails = count < REQUESTS // 10
    breaker = CircuitBreaker(102_400, 102_400, 102_400, 102_400, replica_max_requests=64 if fails else None)
    pool = Pool("p", replicas, circuit_breaker=breaker, active=ActiveCheck(HttpCheck()), slow_start=SlowStart())
    costs = capacity.engines_of(pool, CostModel())
    rng, now, times = random.Random(1), 0.0, array("d")
    for _ in range(count):
        times.append(now)
        now += rng.expovariate(1.0)
    prompts = array("i", (1 + int(rng.expovariate(1 / 1000)) for _ in range(count)))
    answers = array("i", (1 + int(rng.expovariate(1 / 200)) for _ in range(count)))
    trace = Trace(times, prompts, answers)
    trace = trace.faster(0.75 / capacity.load_of(costs, trace))
    outages = tuple(Outage(f"r{i:03}", 5.0 + i, 40.0 + 2 * i) for i in range(0, 100, 7)) if fails else ()
    begin = time.perf_counter()
    summary = summarise(replay(Setup(pool, BY_NAME[policy], costs, 4, outages=outages), trace, 1))
    seconds = time.perf_counter() - begin
    peak = most_resident()
    digest = hashlib.sha256(repr(summary).encode()).hexdigest()
    print(json.dumps({"replay": seconds, "peak": peak, "digest": digest}))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(sys.argv[1], int(sys.argv[2]))
    else:
        main()
