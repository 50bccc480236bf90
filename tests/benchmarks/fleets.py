"""Fleets of any size for the benchmarks, as users write them: with hosts, splits, checks and several GPU types.

Equal arguments yield equal text, so that runs are comparable.
"""

from __future__ import annotations

from collections.abc import Iterator

_GPUS = ("H100-SXM", "A100-80GB", "L40S", "L4")
_ALGORITHMS = ("least_request", "round_robin", "least_request", "random")
_HEAD = """\
version: 1
defaults:
  pool: {connections: {idle: 4s}}
listeners:
  public: {bind: "127.0.0.1:8080", max_connections: 4000, max_body: 10MiB}
  internal: {bind: "127.0.0.1:8081"}
"""


def fleet(pools: int, replicas: int) -> str:
    """Return the YAML of a fleet with this number of pools, this number of replicas per pool, and one route per
    pool."""
    lines = [_HEAD, "routes:"]
    for number in range(pools):
        lines += _route(number, pools)
    lines.append("pools:")
    for number in range(pools):
        lines += _pool(number, replicas)
    return "\n".join(lines) + "\n"


def _route(number: int, pools: int) -> Iterator[str]:
    """Yield the lines of a route.

    Every fifth is a split, every third has one of five hosts, every seventh requires a header.
    """
    yield f"  route-{number}:"
    host = f", hosts: [team{number % 5}.example.com]" if number % 3 == 0 else ""
    header = ", headers: {x-tier: gold}" if number % 7 == 0 else ""
    yield f"    match: {{path_prefix: /v1/m{number}/{host}{header}}}"
    if number % 5 == 0 and pools > 1:
        yield f"    split: {{pool-{number}: 95, pool-{(number + 1) % pools}: 5}}"
    else:
        yield f"    pool: pool-{number}"
    if number % 4 == 0:
        yield "    timeouts: {idle: 10m}"


def _pool(number: int, replicas: int) -> Iterator[str]:
    yield f"  pool-{number}:"
    yield f"    model: {{name: org/model-{number}}}"
    yield f"    balance: {{algorithm: {_ALGORITHMS[number % len(_ALGORITHMS)]}}}"
    if number % 2 == 0:
        yield "    health: {active: {http: {path: /health}}}"
    yield "    replicas:"
    for index in range(replicas):
        gpu = _GPUS[(number + index) % len(_GPUS)]
        address = f"127.{number % 250}.{index // 250}.{index % 250 + 1}:9"  # `serve` connects to every replica
        drain = ", drain: true" if index and index % 50 == 0 else ""
        yield f'      - {{name: r{index}, address: "{address}", gpu: {gpu}, zone: zone-{index % 3}{drain}}}'
