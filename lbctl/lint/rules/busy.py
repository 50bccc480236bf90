"""Rules about requests that go on where a replica is busy: which answer says that, and which does not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lbctl.ir import busy
from lbctl.ir.pools import Pool
from lbctl.lint.fleet_view import FleetView, sources_of
from lbctl.lint.rule import RuleFinding, rule

_DECLINES: Mapping[str, frozenset[int]] = {
    "vllm": frozenset({503}),
    "sglang": frozenset({503}),
    "triton": frozenset({503}),
    "nim": frozenset({503}),
    "torchserve": frozenset({503}),
    "llamacpp": frozenset({503}),
    "ray": frozenset({429, 503}),
    "tgi": frozenset({429}),
}
"""Engine → the statuses by which it declines a request before it works."""
_HOSTED = frozenset({429, 503, 529})
"""The statuses by which hosted APIs do."""


@rule("LB317")
def status_that_need_not_mean_busy(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB317: statuses that the engine is not known to send before it works."""
    for route, action in fleet.forwards:
        for name in action.pools:
            pool = fleet.pool(name)
            engine, declines = _declines(pool)
            doubtful = sorted(set(busy.statuses(route, pool)) - declines)
            if doubtful:
                statuses = " and ".join(map(str, doubtful))
                message = f"{engine} is not known to send {statuses} before it works: the repeat may be paid for twice"
                hint = f"busy_statuses: {sorted(declines)}" if declines else "leave replica_busy out"
                yield RuleFinding(("routes", route.name, "retry", "busy_statuses"), message, hint)


@rule("LB318")
def busy_without_another_replica(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB318: retries of busy replicas that have no other one to go to."""
    for route, action in fleet.forwards:
        for pool in map(fleet.pool, action.pools):
            if not route.retry.busy_statuses or not route.retry.attempts:
                continue
            path, remedy = ("routes", route.name, "retry", "when"), "leave it out"
            if pool.protocol == "grpc":
                yield RuleFinding(path, f"{pool.name} speaks gRPC, whose status is not retried", remedy)
            elif len(pool.replicas) == 1 and pool.discovery is None:
                yield RuleFinding(path, f"{pool.name} has one replica: no other one could take the request", remedy)


def _declines(pool: Pool) -> tuple[str, frozenset[int]]:
    """Return what the replicas of a pool are, and the statuses by which they decline before they work."""
    if pool.upstream is not None:
        return "a hosted API", _HOSTED
    engines = sorted({source.kind for source in sources_of(pool)} & _DECLINES.keys())
    if not engines:
        return f"what serves {pool.name}", frozenset()
    return " or ".join(engines), frozenset.intersection(*(_DECLINES[engine] for engine in engines))
