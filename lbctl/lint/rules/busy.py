"""Rules about requests that go on where a replica is busy: which answer says that, and which does not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lbctl.ir import busy
from lbctl.ir.pools import Pool
from lbctl.lint.fleet_view import FleetView, sources_of
from lbctl.lint.rule import RuleFinding, rule
from lbctl.lint.sample import LLM, sample

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


def _route(*keys: str) -> str:
    when = "when: [connect_failure, replica_busy]"
    return (
        f"chat: {{match: {{path_prefix: /v1/chat}}, pool: llama, retry: {{attempts: 1, {', '.join((when, *keys))}}}}}\n"
    )


@rule(
    "LB317",
    "warning",
    "an answer that need not mean busy",
    what="A route retries `replica_busy` by a status that the pool's engine is not known to send before it works.",
    why="With a limit of its queue an engine declines before it works. By 503: vLLM (`--max-num-queued-reqs`, 0.29 and "
    "later), SGLang (`--max-queued-requests`), Triton and NIM (`max_queue_size`), TorchServe (`job_queue_size`), Ray "
    "Serve (`max_queued_requests`; 429 if so configured), llama.cpp while it loads its model. By 429: TGI "
    "(`--max-concurrent-requests`). Hosted APIs: 429, 503 or 529. Without a limit they decline nothing. Of any other "
    "engine, or of a gateway before it, a 503 may come after minutes of work: the repeat costs a second GPU as much, "
    "just when the fleet is full. Which engine it is, the kinds of `telemetry.sources` say.",
    before=sample(LLM, routes=_route("busy_statuses: [429]")),
    after=sample(LLM, routes=_route("busy_statuses: [503]")),
    ignore="You know that the server sends the status before it works.",
)
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


@rule(
    "LB318",
    "warning",
    "nowhere to go on from a busy replica",
    what="A route retries `replica_busy`, and a pool has one replica, or replicas that speak gRPC.",
    why="The request goes to the same replica again, at once, while that is busy. A gRPC server says by the status of "
    "gRPC that it is busy, which is not retried.",
    before=sample(f"protocol: grpc\n{LLM}", routes=_route()),
    after=sample(LLM, routes=_route()),
    ignore="More replicas join at run time.",
)
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
