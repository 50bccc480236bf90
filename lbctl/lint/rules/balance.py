"""Rules about the choice of a replica: algorithms, hashes, affinity."""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.base.diagnostics import Path
from lbctl.ir.pools import Pool
from lbctl.ir.shares import serving
from lbctl.lint.fleet_view import FleetView
from lbctl.lint.rule import Edit, RuleFinding, rule
from lbctl.targets import KINDS, target

_NAMED_BY_REPLICAS = {
    "mcp-session-id": "{header: mcp-session-id}",
    "$.previous_response_id": "{cookie: NAME}, for clients that store cookies",
}
"""Maps each header or body field with a session ID that the replica chooses to an affinity that preserves the
session."""
_UNLIKE = 2.0
"""Capacities in a pool count as different if the largest is at least this many times the smallest."""


@rule("LB210")
def load_blind_algorithm(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report algorithms that ignore requests in flight (LB210)."""
    for pool in fleet.pools:
        algorithm = pool.balance.algorithm
        if algorithm not in ("round_robin", "random"):
            continue
        reason = (
            "prompts and responses differ in length" if fleet.generates(pool.name) else "replicas differ in capacity"
        )
        if fleet.generates(pool.name) or _spread(pool) >= _UNLIKE:
            path = ("pools", pool.name, "balance", *(("pick", "otherwise") if pool.balance.pick else ("algorithm",)))
            message = f"{algorithm} does not balance the load, because {reason}"
            yield RuleFinding(path, message, f"{path[-1]}: least_request", Edit(path, "least_request"))


@rule("LB211")
def idle_replicas_before_weights(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report least_request on replicas of different capacity, if a proxy prefers idle replicas (LB211)."""
    titles = [target(kind).title for kind in KINDS if kind in fleet.kinds and target(kind).prefers_idle_replicas]
    for pool in fleet.pools if titles else ():
        if pool.balance.name == "least_request" and _spread(pool) >= _UNLIKE:
            message = (
                f"{titles[0]} prefers idle replicas regardless of weight, "
                f"but capacities in this pool differ by a factor of {_spread(pool):.1f}"
            )
            hint = "use one pool per GPU type, and split the requests by capacity"
            yield RuleFinding(("pools", pool.name, "balance", "algorithm"), message, hint)


@rule("LB213")
def hash_without_bounded_load(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report hash balancing without a limit on each replica's load (LB213)."""
    for pool in fleet.pools:
        if pool.balance.algorithm == "hash" and pool.balance.bounded_load is None:
            path = ("pools", pool.name, "balance", "hash", "bounded_load")
            message = "the load is not bounded, so a popular key can overload its replica"
            yield RuleFinding(path, message, "bounded_load: 1.25", Edit(path, 1.25))


@rule("LB214")
def hash_with_dynamic_weights(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report hash balancing with dynamic weights (LB214)."""
    for pool in fleet.pools:
        if pool.balance.algorithm == "hash" and pool.weighting.strategy != "static":
            path = ("pools", pool.name, "weighting", "strategy")
            message = f"{pool.weighting.strategy} weights change often, and each change moves keys to other replicas"
            yield RuleFinding(path, message, "set strategy: static, or remove weighting", Edit(path, "static"))


@rule("LB215")
def prompt_hash_despite_session_key(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report prompt hashing where a header or cookie already identifies the client (LB215)."""
    for pool in fleet.pools:
        key = pool.balance.key
        session = _session(fleet, pool) if key and key.kind == "prompt_prefix" else ""
        if session:
            message = f"the proxy buffers each body to hash its prompt, although {session} identifies the client"
            yield RuleFinding(("pools", pool.name, "balance", "hash", "key"), message, "key: {header: NAME}")


@rule("LB247")
def hash_of_named_session(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report hashing by a session ID that the replica chooses (LB247)."""
    for pool in fleet.pools:
        path, key, policy = ("pools", pool.name, "balance"), pool.balance.key, pool.balance.pick
        if key is not None and key.kind in ("header", "json_body") and key.name in _NAMED_BY_REPLICAS:
            yield _named_session((*path, "hash", "key"), key.name)
        for index, item in enumerate(policy.session if policy is not None else ()):
            name = item.header or item.body or ""
            if name in _NAMED_BY_REPLICAS:
                yield _named_session((*path, "pick", "session", index), name)


def _named_session(path: Path, name: str) -> RuleFinding:
    message = f"the replica chooses {name}, so the next request of the session may reach another replica"
    return RuleFinding(path, message, f"use affinity: {_NAMED_BY_REPLICAS[name]}")


def _session(fleet: FleetView, pool: Pool) -> str:
    if pool.affinity is not None:
        return f"the cookie {pool.affinity.cookie}"
    for route, action in fleet.forwards:
        if pool.name not in action.pools:
            continue
        if action.sticky is not None:
            return f"the {action.sticky.kind} {action.sticky.name} of route {route.name}"
        header = next((limit.header for limit in route.rate_limits if limit.header), "")
        if header:
            return f"the header {header} of route {route.name}"
    return ""


def _spread(pool: Pool) -> float:
    """Return the ratio between the largest and the smallest capacity in the pool."""
    capacities = [replica.capacity for replica in serving(pool)]
    return max(capacities) / min(capacities) if capacities else 1.0
