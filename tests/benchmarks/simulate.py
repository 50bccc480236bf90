"""`python -m tests.benchmarks.simulate`: a million requests on a hundred replicas, compiled and as plain Python.

Each measurement is a process of its own, for its memory; numba caches what it compiles, so the second
run is the one to read. Ends with an error where a tenth of the requests gives other figures as plain Python.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import subprocess
import sys
import time
from array import array

REPLICAS = 100
REQUESTS = 1_000_000


def main() -> None:
    """Print a table."""
    print(f"{REPLICAS} replicas, Poisson arrivals at 75 % of the bound, processes with their imports\n")
    print("| requests | policy | | seconds | of them replay | peak MB |\n|---|---|---|---|---|---|")
    for policy in ("envoy:least_request", "nginx:least_request", "haproxy:least_request"):
        _row(policy, REQUESTS, "0")
        if _row(policy, REQUESTS // 10, "0") != _row(policy, REQUESTS // 10, "1"):
            sys.exit("compiled and plain runs differ")


def _row(policy: str, count: int, plain: str) -> str:
    begin = time.perf_counter()
    run = [sys.executable, "-m", __spec__.name, policy, str(count)]
    out = subprocess.run(run, env={**os.environ, "NUMBA_DISABLE_JIT": plain}, stdout=subprocess.PIPE, check=True)
    seconds = time.perf_counter() - begin
    seen = json.loads(out.stdout)
    way = "plain" if plain == "1" else "compiled"
    print(f"| {count:,} | {policy} | {way} | {seconds:.1f} | {seen['replay']:.1f} | {seen['peak']:.0f} |", flush=True)
    return str(seen["digest"])


def measure(policy: str, count: int) -> None:
    """Replay once, and print seconds, peak memory and a digest of the figures as JSON."""
    from lbctl.ir.address import Address
    from lbctl.ir.pools import CircuitBreaker, Pool, Replica
    from lbctl.simulate import capacity
    from lbctl.simulate.engine import CostModel
    from lbctl.simulate.policies import POLICIES
    from lbctl.simulate.replay import replay
    from lbctl.simulate.results import summarise
    from lbctl.simulate.setup import Setup
    from lbctl.simulate.trace import Trace

    kinds = (5.0, 2.0, 2.0, 1.0)
    replicas = tuple(Replica(f"r{i:03}", Address("127.0.0.1", 1), kinds[i % 4]) for i in range(REPLICAS))
    pool = Pool("p", replicas, circuit_breaker=CircuitBreaker(102_400, 102_400, 102_400, 102_400))
    costs = capacity.engines_of(pool, CostModel(), {})
    rng, now, times = random.Random(1), 0.0, array("d")
    for _ in range(count):
        times.append(now)
        now += rng.expovariate(1.0)
    prompts = array("i", (1 + int(rng.expovariate(1 / 1000)) for _ in range(count)))
    answers = array("i", (1 + int(rng.expovariate(1 / 200)) for _ in range(count)))
    trace = Trace(times, prompts, answers)
    trace = trace.faster(0.75 / capacity.load_of(costs, trace))
    begin = time.perf_counter()
    summary = summarise(replay(Setup(pool, POLICIES[policy], costs, 4), trace, 1))
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    digest = hashlib.sha256(repr(summary).encode()).hexdigest()
    print(json.dumps({"replay": seconds, "peak": peak, "digest": digest}))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(sys.argv[1], int(sys.argv[2]))
    else:
        main()
