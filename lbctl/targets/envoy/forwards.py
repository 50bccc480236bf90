"""Destinations of a matched request: pins, sticky variants and the weighted draw, with timeouts and retries.

A route has one or more alternative ways. Each way consists of additional header conditions and the clusters to draw
from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from envoy.config.route.v3 import route_components_pb2
from envoy.extensions.retry.host.previous_hosts.v3 import previous_hosts_pb2
from envoy.extensions.retry.priority.previous_priorities.v3 import previous_priorities_config_pb2

from lbctl.ir.listeners import Rule
from lbctl.ir.pools import Pool
from lbctl.ir.routes import Forward, Retry, Route, Share, StickySplit
from lbctl.ir.snapshot import View
from lbctl.targets.envoy import affinity, escapes, hashing, limits, matches, picking
from lbctl.targets.envoy.cluster_names import ClusterPlan
from lbctl.targets.envoy.protos import duration, extension, metadata, percent

_WHEN = {
    "connect_failure": "connect-failure",
    "refused_stream": "refused-stream",
    "reset_before_request": "reset-before-request",
    "replica_busy": "retriable-status-codes",
}
_ANOTHER_HOST = 128
"""Number of attempts to choose a host that has not been tried yet.

If two of three replicas are down, power of two choices finds the third in only one of nine attempts, because the dead
ones look idle. (8/9)^128 is one in three million.
"""
_TRIES_IN_A_RANK = 2
HOST = "host"


@dataclass(frozen=True, slots=True)
class VariantDraw:
    """The shares to draw from, and a cookie for the drawn variant, if there is one.

    `secure` restricts the cookie to HTTPS.
    """

    shares: tuple[Share, ...]
    sticky: StickySplit | None = None
    """The cookie, or None."""
    secure: bool = False


Way = tuple[list[dict[str, object]], VariantDraw]


def targets(action: Forward, *, secure: bool) -> Iterator[Way]:
    """Yield the ways of a route, in order of precedence.

    If the cookie names a variant that no longer gets traffic, it is ignored, and the client gets a new cookie. A
    variant that gets traffic again later therefore starts without clients.
    """
    for pin in action.pins:
        yield [matches.pinned(pin)], VariantDraw((Share(pin.pool, 1),))
    shares = tuple(share for share in action.shares if share.weight > 0)
    sticky = action.sticky
    if sticky and sticky.kind == "cookie":
        for share in action.shares:
            if share.weight > 0 and len(shares) > 1:
                yield [matches.cookie(sticky.name, share.pool)], VariantDraw((share,))
            elif share.weight == 0 and len(shares) == 1:
                yield [matches.cookie(sticky.name, share.pool)], VariantDraw(shares, sticky, secure)
    yield [], VariantDraw(shares, sticky if len(shares) > 1 else None, secure)


def marks(route: Route, action: Forward) -> dict[str, object] | None:
    """Return the metadata of a route.

    For the access log, it states whether the route's pools are variants. It also names the counters of the route's
    limits.
    """
    values: dict[str, str | bool] = {**limits.marks(route), **({"split": True} if len(action.shares) > 1 else {})}
    return metadata(values) if values else None


def only_pool(view: View, draw: VariantDraw) -> Pool | None:
    """Return the pool of a way that has only one pool. The shares of a draw configure cookie affinity themselves."""
    return view.pools[draw.shares[0].pool] if _has_one_cluster(draw) else None


def _has_one_cluster(draw: VariantDraw) -> bool:
    return len(draw.shares) == 1 and draw.sticky is None


def route_action(
    view: View, plan: ClusterPlan, route: Route, rule: Rule, draw: VariantDraw
) -> route_components_pb2.RouteAction:
    """Return the action of a route: its clusters, timeouts, retries, hash policies, rewrites and mirror."""
    idle, retries = route.idle_timeout, retry_policy(route.retry, _ranked(view, draw), route.attempt_timeout)
    wait = _longest_wait(view, draw)
    if idle is not None and idle <= wait:
        retries = {**(retries or {}), "per_try_idle_timeout": duration(idle)}
        idle += wait
    return route_components_pb2.RouteAction(
        timeout=duration(route.request_timeout or 0),
        idle_timeout=duration(idle or 0),
        hash_policy=_hash_policies(view, route, draw),
        retry_policy=retries,
        upgrade_configs=[{"upgrade_type": "websocket", "enabled": {"value": True}}] if route.websocket else None,
        request_mirror_policies=_mirror(plan, route),
        **_clusters(view, plan, route, draw),
        **_rewrite(route, rule),
    )


def _longest_wait(view: View, draw: VariantDraw) -> int:
    """Return the maximum time that a request can wait in a picker queue, in milliseconds; 0 without a queue.

    Envoy's idle timeout also runs during this time, so a shorter timeout would end waiting requests. The idle timeout
    of an attempt starts when the request is sent.
    """
    policies = (view.pools[share.pool].balance.pick for share in draw.shares)
    return max(
        (policy.longest_wait for policy in policies if policy is not None and policy.queue is not None), default=0
    )


def _mirror(plan: ClusterPlan, route: Route) -> list[dict[str, object]]:
    if not isinstance(route.action, Forward) or not route.action.mirror:
        return []
    mirror = route.action.mirror
    fraction = {"default_value": percent(mirror.percent)}
    cluster = plan.names[route.name, mirror.pool]
    return [{"cluster": cluster, "runtime_fraction": fraction, "disable_shadow_host_suffix_append": True}]


def retry_policy(retry: Retry, ranked: bool, attempt: int | None) -> dict[str, object] | None:
    """Return the retry policy, or None without retries.

    The only statuses that are retried are the statuses of busy replicas. `attempt` limits the time until an attempt's
    response begins; in Envoy, this timeout is part of the retry policy.

    A request that may have reached a replica is retried only if the fleet declares it idempotent. Otherwise, it is
    retried only if nothing of it was sent or accepted, or if the replica declined it. `ranked` means that the only
    replica left to try may have another priority.
    """
    conditions = [_WHEN[item] for item in retry.when] + (["reset"] if retry.idempotent else [])
    one_try: dict[str, object] = {} if attempt is None else {"per_try_timeout": duration(attempt)}
    if not retry.attempts or not conditions:
        return one_try or None
    previous = extension("envoy.retry_host_predicates.previous_hosts", previous_hosts_pb2.PreviousHostsPredicate())
    return {
        **one_try,
        "retry_on": ",".join(conditions),
        "retriable_status_codes": retry.busy_statuses,
        "num_retries": {"value": retry.attempts},
        "retry_back_off": {
            "base_interval": duration(max(1, retry.backoff.base)),
            "max_interval": duration(max(1, retry.backoff.base, retry.backoff.max)),
        },
        "retry_host_predicate": [previous],
        "host_selection_retry_max_attempts": _ANOTHER_HOST,
        "retry_priority": _another_rank() if ranked else None,
    }


def _another_rank() -> dict[str, object]:
    config = previous_priorities_config_pb2.PreviousPrioritiesConfig(update_frequency=_TRIES_IN_A_RANK)
    return extension("envoy.retry_priorities.previous_priorities", config)


def _ranked(view: View, draw: VariantDraw) -> bool:
    return any(len({item.priority for item in view.pools[share.pool].replicas}) > 1 for share in draw.shares)


def _clusters(view: View, plan: ClusterPlan, route: Route, draw: VariantDraw) -> dict[str, object]:
    if _has_one_cluster(draw):
        return {"cluster": plan.names[route.name, draw.shares[0].pool]}
    weighted: dict[str, object] = {"clusters": [_weighted(view, plan, route, draw, share) for share in draw.shares]}
    if draw.sticky and draw.sticky.kind == "header":
        weighted["use_hash_policy"] = {"value": True}
    return {"weighted_clusters": weighted}


def _weighted(view: View, plan: ClusterPlan, route: Route, draw: VariantDraw, share: Share) -> dict[str, object]:
    pool = view.pools[share.pool]
    item: dict[str, object] = {
        "name": plan.names[route.name, share.pool],
        "weight": {"value": share.weight},
        "typed_per_filter_config": {**affinity.per_route(pool, route), **picking.per_route(pool, route)},
    }
    headers = affinity.response_headers(pool, route)
    if draw.sticky and draw.sticky.kind == "cookie":
        cookie = f"{draw.sticky.name}={share.pool}; Path=/; Max-Age={max(1, draw.sticky.ttl // 1000)}"
        cookie += "; HttpOnly; SameSite=Lax" + ("; Secure" if draw.secure else "")
        headers.append(
            {
                "header": {"key": "set-cookie", "value": cookie.replace("%", "%%")},
                "append_action": "APPEND_IF_EXISTS_OR_ADD",
            }
        )
    item["response_headers_to_add"] = headers
    return item


def _hash_policies(view: View, route: Route, draw: VariantDraw) -> list[dict[str, object]]:
    """Return the hash policies of a route. In Envoy, the key is part of the route.

    A header that keeps a client on its variant comes first and ends the list.
    """
    if draw.sticky and draw.sticky.kind == "header":
        return [{"header": {"header_name": draw.sticky.name}, "terminal": True}]
    return [hashing.policy(key, route) for key in hashing.keys(view, [share.pool for share in draw.shares])]


def _rewrite(route: Route, rule: Rule) -> dict[str, object]:
    """Return the rewrites of host and path. A header rule that sets the host is included and takes precedence."""
    fields: dict[str, object] = {}
    host = dict(route.request_headers.set).get(HOST) or (route.rewrite.host if route.rewrite else None)
    if host:
        fields["host_rewrite_literal"] = host
    if route.rewrite and route.rewrite.path_prefix is not None:
        fields |= _path_rewrite(rule, route.rewrite.path_prefix)
    return fields


def _path_rewrite(rule: Rule, replacement: str) -> dict[str, object]:
    """Return the rewrite of a path prefix in whole segments.

    The slash between the prefix and the rest is neither lost nor doubled.
    """
    if rule.path.kind != "prefix":
        return {"prefix_rewrite": replacement}
    matched, stripped = rule.path.value.rstrip("/"), replacement.rstrip("/")
    if not matched:
        return {"prefix_rewrite": f"{stripped}/"}
    if stripped and escapes.is_plain(matched):
        return {"prefix_rewrite": stripped}
    pattern = f"^{escapes.literal(matched)}{'' if stripped else '/?'}"
    return {"regex_rewrite": {"pattern": {"regex": pattern}, "substitution": stripped or "/"}}
