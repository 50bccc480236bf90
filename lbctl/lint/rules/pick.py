"""Rules about the replica picker: its telemetry, its queue, request bodies that it reads, and limits."""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.ir.pools import PickPolicy, Pool
from lbctl.ir.routes import Route
from lbctl.lint.fleet_view import FleetView, sources_of
from lbctl.lint.rule import Edit, RuleFinding, rule
from lbctl.lint.rules.telemetry import signals_of
from lbctl.targets.picker import missing_key

_MAX_BOUND = 2.0
"""Maximum useful `bound`: at twice the mean load, a replica queues requests while others are idle."""
_COMMON_PROMPT = 1024
"""Typical size in bytes of a system prompt or a tool list."""
_FULL = frozenset({"queue", "kv_cache"})
"""Signals that indicate a full engine; `running` then shows how many requests it can process at once."""


@rule("LB223")
def pick_without_telemetry(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report use of the picker without replica metrics (LB223)."""
    for pool, _ in _picked(fleet):
        if not any(sources_of(pool)):
            message = "without telemetry, the picker cannot see how much work the engines have done"
            yield RuleFinding(_path(pool, "algorithm"), message, 'telemetry: {sources: [{kind: vllm, url: "…"}]}')


@rule("LB224")
def affinity_without_bound(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report affinity bounds that are too high to have an effect (LB224)."""
    for pool, policy in _picked(fleet):
        if policy.bound > _MAX_BOUND:
            path = _path(pool, "pick", "bound")
            message = f"a replica gets requests because of its cache until its load is {policy.bound:g} times the mean"
            yield RuleFinding(path, message, "bound: 1.25", Edit(path, 1.25))


@rule("LB225")
def needless_body(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report pools whose prompts are read although the model has no prefix cache (LB225)."""
    for pool, policy in _picked(fleet):
        if policy.prefix is not None and pool.model is not None and not fleet.generates(pool.name):
            message = "request bodies are read to recognise prompts, but this model does not cache prompts"
            yield RuleFinding(_path(pool, "pick", "prefix"), message, "prefix: off")


@rule("LB226")
def pick_of_one(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report use of the picker in a pool with one replica (LB226)."""
    for pool, _ in _picked(fleet):
        if pool.discovery is None and len(pool.replicas) == 1:
            yield RuleFinding(
                _path(pool, "algorithm"), "the pool has only one replica to pick", "algorithm: least_request"
            )


@rule("LB227")
def hash_of_system_prompt(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report prompt hashes that end within a system prompt (LB227)."""
    for pool in fleet.pools:
        key = pool.balance.key
        if key and key.kind == "prompt_prefix" and key.bytes < _COMMON_PROMPT and fleet.generates(pool.name):
            message = f"the first {key.bytes} bytes are the same for all requests that share a system prompt"
            hint = "use algorithm: pick, key: {header: x-session-id}, or more bytes than the system prompt has"
            yield RuleFinding(_path(pool, "hash", "key"), message, hint)


@rule("LB228")
def picker_without_client_certificates(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report a picker that other machines can reach without client certificates (LB228)."""
    control = fleet.topology.control
    protected = control.xds_tls is not None and control.xds_tls.client_ca is not None
    if any(_picked(fleet)) and not control.picker_bind.on_loopback and not protected:
        message = f"any client that can reach {control.picker_bind} can send prompts to the picker"
        hint = "control.xds.tls: {certificate: …, key: …, client_ca: …}"
        yield RuleFinding(("control", "picker", "bind"), message, hint)


@rule("LB229")
def queue_without_full_replicas(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report queues that are never used, because no replica counts as full (LB229)."""
    for pool, policy in _picked(fleet):
        if policy.queue is None or pool.circuit_breaker.replica_max_requests is not None:
            continue
        given = {name for source in sources_of(pool) for name in signals_of(source)}
        if "running" not in given or _FULL.isdisjoint(given):
            message = "no replica ever counts as full, so no request waits in this queue"
            hint = "circuit_breaker: {per_replica: {max_requests: 64}}, or sources that provide running and queue"
            yield RuleFinding(("pools", pool.name, "queue"), message, hint)


@rule("LB248")
def questions_without_a_key(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report a picker that accepts requests without a key (LB248)."""
    reason = missing_key(fleet.topology)
    pool = next((pool for pool, _ in _picked(fleet)), None)
    if reason and pool is not None:
        message = f"every user of the machine can query the picker without a key: {reason}"
        yield RuleFinding(_path(pool), message, "set control.picker.key_file to a file with a key for all proxies")


@rule("LB249")
def prompt_limit_without_prompts(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report prompt-token limits for requests whose prompts the picker does not read (LB249)."""
    for route, action in fleet.forwards:
        for name in action.pools if route.prompt_limits else ():
            yield from _unread(route, fleet.pool(name))


@rule("LB250")
def queue_without_tenants(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report queues that are fair between tenants, although no request has a tenant (LB250)."""
    with_tenants = {
        name for route, action in fleet.forwards if route.auth and route.auth.names_tenant for name in action.pools
    }
    for pool, policy in _picked(fleet):
        queue = policy.queue
        if queue is not None and (queue.by, queue.order) == ("tenant", "fair") and pool.name not in with_tenants:
            message = "all requests form one group, because no route to this pool has tenants"
            yield RuleFinding(("pools", pool.name, "queue"), message, "set auth on the routes, or by: client_ip")


def _unread(route: Route, pool: Pool) -> Iterator[RuleFinding]:
    """Yield a finding if the picker does not read the prompts of a route's requests to a pool."""
    policy, hint = pool.balance.pick, "limit the rate, or the number of concurrent requests"
    if route.websocket:
        message = "the picker does not read WebSockets, so they count as 0 tokens"
    elif pool.protocol == "grpc":
        message = f"the picker does not read gRPC messages, so requests to {pool.name} count as 0 tokens"
    elif policy is not None and not policy.reads_bodies:
        message = f"the picker does not read the prompts of requests to {pool.name}, and assumes four bytes per token"
        hint = "remove `prefix: off`"
    else:
        return
    yield RuleFinding(("routes", route.name, "rate_limit"), message, hint)


def _picked(fleet: FleetView) -> Iterator[tuple[Pool, PickPolicy]]:
    return ((pool, pool.balance.pick) for pool in fleet.pools if pool.balance.pick is not None)


def _path(pool: Pool, *keys: str) -> tuple[str, ...]:
    return ("pools", pool.name, "balance", *keys)
