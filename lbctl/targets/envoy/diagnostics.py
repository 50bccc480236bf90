"""Limitations of Envoy that affect only some fleets, although Envoy supports each feature by itself."""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.base.diagnostics import Diagnostic, Path
from lbctl.ir.pools import GrpcCheck, Pool
from lbctl.ir.routes import Forward, Route
from lbctl.ir.snapshot import View
from lbctl.targets import key_hashes
from lbctl.targets.envoy import affinity, clusters, endpoints, tls
from lbctl.targets.envoy.cluster_names import sheds
from lbctl.targets.features import BY_ID
from lbctl.targets.locality import placeless
from lbctl.targets.queue_priority import without_queue
from lbctl.targets.replica_weights import rounded


def diagnostics(view: View, *, of_files: bool = False) -> tuple[Diagnostic, ...]:
    """Return a diagnostic for each setting of the view that Envoy implements differently or not at all.

    `of_files`: whether the diagnostics are about rendered files. An Envoy with a `config` reads them.
    """
    items = [item for name, pool in view.pools.items() for item in _pool(view, name, pool)]
    items += [key_hashes.warning("Envoy", keys) for keys in key_hashes.hash_only(view)]
    items += [item for route in view.routes.values() for item in _separate_buckets(view, route)]
    items += [item for route in view.routes.values() for item in _route(view, route)]
    if of_files or view.proxy.config is not None:
        items += _without_certificate(view)
    return (*items, *_metrics(view), *placeless(view), *without_queue(view, "Envoy"))


def _without_certificate(view: View) -> Iterator[Diagnostic]:
    """Report that an Envoy that reads files cannot use the picker, if the picker requires a client certificate."""
    if view.picker is not None and view.picker_tls:
        message = (
            f"the picker at {view.picker} requires a client certificate, but an Envoy that is configured from files "
            "has no certificate"
        )
        hint = (
            "use an Envoy configured by `lbctl bootstrap` with --tls-cert, or an address on loopback and `lbctl "
            "picker` on Envoy's machine"
        )
        yield Diagnostic("LB308", message, path=("control", "picker", "bind"), hint=hint, severity="warning")


def _metrics(view: View) -> Iterator[Diagnostic]:
    if view.proxy.metrics is not None and view.proxy.admin is None:
        path = ("proxies", view.proxy.name, "metrics")
        message = "Envoy serves no metrics, because its admin interface is not configured"
        yield _warning("proxies.metrics", path, message, 'admin: "127.0.0.1:9901"')


def _warning(feature: str, path: Path, message: str, hint: str = "") -> Diagnostic:
    return Diagnostic(BY_ID[feature].code, message, path=path, hint=hint, severity="warning")


def _pool(view: View, name: str, pool: Pool) -> Iterator[Diagnostic]:
    path = ("pools", name)
    yield from rounded("Envoy", pool, pool.replicas, endpoints.rounding(pool, view.weights[name]))
    if pool.balance.algorithm == "random" and clusters.uneven(pool):
        yield _warning(
            "pool.balance.random",
            (*path, "balance"),
            "Envoy's random algorithm ignores weights, but the weights of these replicas differ: lbctl uses "
            "round_robin instead",
        )
    if affinity.lacks_ip_addresses(pool):
        yield _warning(
            "pool.affinity",
            (*path, "affinity"),
            "Envoy supports affinity only for replicas with a known IP address",
        )
    if pool.load_shedding and not sheds(pool):
        yield _warning(
            "pool.load_shedding",
            (*path, "health", "load_shedding"),
            "Envoy sheds load only if all replicas have the same rank; here, it sheds load only if no replica is left",
        )
    if pool.active and isinstance(pool.active.probe, GrpcCheck) and pool.protocol == "http1":
        yield _warning(
            "pool.health.grpc",
            (*path, "health", "active", "grpc"),
            "Envoy's gRPC check needs HTTP/2 to the replicas: lbctl uses a TCP check instead",
            "protocol: grpc",
        )


def _route(view: View, route: Route) -> Iterator[Diagnostic]:
    if not isinstance(route.action, Forward):
        return
    balances = [view.pools[share.pool].balance for share in route.action.shares]
    keys = {balance.key for balance in balances if balance.algorithm == "hash"}
    if len(keys) > 1:
        yield _warning(
            "pool.balance.hash",
            ("routes", route.name, "split"),
            "Envoy configures hash keys per route: all pools of this split use the keys of all pools",
        )
    if keys and route.action.sticky and route.action.sticky.kind == "header":
        yield _warning(
            "route.sticky_split.header",
            ("routes", route.name, "sticky_split"),
            "Envoy uses a single hash per request: the header also determines the replica in pools with hash",
        )
    if route.action.fallback:
        yield from _fallback(view, route, route.action)


def _separate_buckets(view: View, route: Route) -> Iterator[Diagnostic]:
    """Warn about a rate limit that a client can exhaust several times.

    Token buckets belong to the routes of one filter chain. A client cannot choose between the chain for trusted
    networks and the chain for other addresses, so these two count once.
    """
    listeners = [item for item in view.listeners if route.name in {rule.route for rule in item.rules}]
    chains = sum(len(tls.server_names(item.tls)) if item.tls else 1 for item in listeners)
    if chains > 1 and any(item.requests for item in route.rate_limits):
        yield _warning(
            "route.rate_limit",
            ("routes", route.name, "rate_limit"),
            "Envoy counts requests separately for each listener and certificate, so a client can use the limit "
            f"{chains} times",
            "use one listener with one certificate for the route",
        )


def _lost_affinity(view: View, route: Route, action: Forward) -> Iterator[Diagnostic]:
    for name in action.pools:
        if view.pools[name].affinity or view.pools[name].session:
            message = f"with the fallback of route {route.name!r}, Envoy does not support affinity"
            yield _warning("pool.affinity", ("pools", name, "affinity"), message)


def _fallback(view: View, route: Route, action: Forward) -> Iterator[Diagnostic]:
    yield from _lost_affinity(view, route, action)
    if route.retry.budget is not None:
        message = "Envoy does not support a retry budget with a fallback: max_retries applies instead"
        yield _warning("route.retry.budget", ("routes", route.name, "retry", "budget"), message)
    for name in sorted({*action.pools} - {action.fallback}):
        pool = view.pools[name]
        if pool.active is None and pool.passive and pool.passive.max_ejection < 100:
            yield _warning(
                "route.fallback",
                ("pools", name, "health", "passive", "max_ejection"),
                "Envoy never ejects the last replicas of this pool, so without active checks the fallback of route "
                f"{route.name!r} is never used",
                "set max_ejection: 100%, or an active check",
            )
        if pool.locality or any(item.priority for item in pool.replicas):
            yield _warning(
                "pool.locality",
                ("pools", name),
                f"with the fallback of route {route.name!r}, Envoy spills to the next priority or zone only if no "
                "replica of the current one is left",
            )
        if pool.load_shedding:
            yield _warning(
                "pool.load_shedding",
                ("pools", name, "health", "load_shedding"),
                f"with the fallback of route {route.name!r}, Envoy sheds load only if no replica is left",
            )
