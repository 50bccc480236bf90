"""Converts clusters to pools."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lbctl.base.diagnostics import Path
from lbctl.importer.draft import sane_name
from lbctl.importer.envoy import tls
from lbctl.importer.envoy.context import EnvoyImport, Handler, handle
from lbctl.importer.envoy.view import EMPTY, ConfigView
from lbctl.importer.values import duration

_POLICIES = {
    "ROUND_ROBIN": "round_robin", "LEAST_REQUEST": "least_request", "RANDOM": "random", "RING_HASH": "hash",
    "MAGLEV": "hash",
}  # fmt: skip
_TYPED_POLICIES = {
    "RoundRobin": "round_robin", "LeastRequest": "least_request", "Random": "random", "RingHash": "hash",
    "Maglev": "hash",
}  # fmt: skip
_SINGLE_TYPES = frozenset({"", "STATIC", "STRICT_DNS", "LOGICAL_DNS", "EDS"})


def pool(context: EnvoyImport, cluster: ConfigView, secrets: tuple[str, ...] = ()) -> Path | None:
    """Add the pool for a cluster. Return None if a pool cannot represent this kind of cluster.

    Routes that send different `secrets` to the same cluster get separate pools.
    """
    name = cluster.get("name").text
    if (name, secrets) in context.pools:
        return context.pools[name, secrets]
    assignment = cluster.get("load_assignment") or context.endpoints.get(name, EMPTY)
    replicas = list(_replicas(context, assignment))
    kind = cluster.get("type").text
    if kind not in _SINGLE_TYPES or (cluster.get("cluster_type") and not replicas) or not replicas:
        return None
    path = context.draft.add("pools", name, cluster.statement)
    context.pools[name, secrets] = path
    context.draft.ledger.home(cluster.statement, path)
    algorithm = _POLICIES.get(cluster.get("lb_policy").text, "round_robin")
    context.put((*path, "balance"), {"algorithm": algorithm}, cluster.get("lb_policy"))
    context.put((*path, "replicas"), _weighted(replicas), *_endpoint_parts(assignment))
    context.imply("the endpoints are the replicas", assignment.get("cluster_name"), cluster.get("eds_cluster_config"))
    handle(context, path, cluster, _HANDLERS, "name", "type", "dns_lookup_family", "alt_stat_name", "cluster_type")
    if not cluster.get("connect_timeout"):
        message = "Envoy's default connect timeout of 5s delays every request to an unreachable replica"
        context.draft.ledger.advise(cluster.statement, message, "lbctl's default for `timeouts.connect` is 2s")
    return path


def without_key(context: EnvoyImport, path: Path, cluster: ConfigView) -> None:
    """Make a pool select replicas at random, as Envoy does, if it uses a hash but no route sets a key."""
    if context.draft.get((*path, "balance")) != {"algorithm": "hash"}:
        return
    policy = cluster.get("lb_policy") or cluster.get("load_balancing_policy")
    context.put((*path, "balance"), {"algorithm": "random"}, policy)
    message = (
        f"{cluster.get('name').text} uses a hash, but no route has a `hash_policy`: Envoy selects replicas at random"
    )
    hint = (
        "set `balance: {algorithm: hash, hash: {key: …}}` with a key that identifies a session, or use `least_request`"
    )
    context.draft.ledger.advise(policy.statement, message, hint)


def aggregate(cluster: ConfigView) -> list[str]:
    """Return an aggregate cluster's clusters, in order, or none for other clusters."""
    typed = cluster.get("cluster_type", "typed_config")
    return [item.text for item in typed.get("clusters")] if typed.type.endswith(".aggregate.v3.ClusterConfig") else []


# ── Endpoints ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _replicas(context: EnvoyImport, assignment: ConfigView) -> Iterator[dict[str, Any]]:
    del context
    names: set[str] = set()
    for group in assignment.get("endpoints"):
        place = {key: group.get("locality", key).text for key in ("region", "zone") if group.get("locality", key).text}
        priority = group.get("priority").number or 0
        for item in group.get("lb_endpoints"):
            address = address_of(item.get("endpoint", "address"))
            if address is None:
                continue
            replica: dict[str, Any] = {"address": address, **place}
            hostname = sane_name(item.get("endpoint", "hostname").text, "")
            if hostname and hostname not in names:
                names.add(hostname)
                replica = {"name": hostname, **replica}
            if weight := item.get("load_balancing_weight").number:
                replica["weight"] = weight
            if priority:
                replica["priority"] = priority
            if item.get("health_status").text in {"DRAINING", "UNHEALTHY"}:
                replica["drain"] = True
            yield replica


def address_of(view: ConfigView) -> str | None:
    """Return an endpoint's address in fleet-file form, or None if it has no address."""
    if view.get("pipe", "path"):
        return f"unix:{view.get('pipe', 'path').text}"
    host, port = view.get("socket_address", "address").text, view.get("socket_address", "port_value").text
    if not host or not port:
        return None
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _weighted(replicas: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the replicas, either all with weights or all without weights."""
    if not any("weight" in item for item in replicas):
        return replicas
    return [{**item, "weight": item.get("weight", 1)} for item in replicas]


def _endpoint_parts(assignment: ConfigView) -> Iterator[ConfigView]:
    """Yield the parts of the endpoints that became replicas."""
    for group in assignment.get("endpoints"):
        yield from (group.get(name) for name in ("locality", "priority"))
        for item in group.get("lb_endpoints"):
            yield from (item.get("endpoint", name) for name in ("address", "hostname"))
            yield from (item.get(name) for name in ("load_balancing_weight", "health_status"))


def _assignment(context: EnvoyImport, path: Path, view: ConfigView) -> None:
    """Convert the endpoints' health-check port, their only setting in addition to the address."""
    ports = [
        item.get("endpoint", "health_check_config")
        for group in view.get("endpoints")
        for item in group.get("lb_endpoints")
    ]
    for item in filter(None, ports):
        if item.get("port_value").number:
            context.put((*path, "health", "active", "port"), item.get("port_value").number, item)


# ── Settings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _connect(context: EnvoyImport, path: Path, view: ConfigView) -> None:
    context.time((*path, "timeouts", "connect"), view)


def _typed_policy(context: EnvoyImport, path: Path, view: ConfigView) -> None:
    for item in view.get("policies"):
        typed = item.get("typed_extension_config", "typed_config")
        algorithm = _TYPED_POLICIES.get(typed.type.rpartition(".")[2])
        if algorithm:
            context.put((*path, "balance", "algorithm"), algorithm, view)
            return
    context.omit(view, "lbctl does not support this algorithm and uses `least_request` instead", path)
    context.draft.put((*path, "balance"), {"algorithm": "least_request"})


def _breakers(context: EnvoyImport, path: Path, view: ConfigView) -> None:
    for item in view.get("thresholds"):
        if item.get("priority").text not in {"", "DEFAULT"}:
            context.omit(item, "lbctl supports only one request priority", path)
            continue
        for name in ("max_connections", "max_pending_requests", "max_requests", "max_retries"):
            if (number := item.get(name).number) is not None and number > 0:
                context.put((*path, "circuit_breaker", name), min(number, 2**31 - 1), item.get(name))
        context.imply("limits apply to the whole pool", item.get("priority"), item.get("track_remaining"))
    for item in view.get("per_host_thresholds"):
        if (number := item.get("max_connections").number) is not None:
            context.put((*path, "circuit_breaker", "per_replica", "max_connections"), number, item)


_CHECK_PARTS = (
    "timeout", "interval", "unhealthy_threshold", "healthy_threshold", "grpc_health_check", "tcp_health_check"
)  # fmt: skip
_HTTP_PARTS = ("path", "host", "expected_statuses")


def _checks(context: EnvoyImport, path: Path, view: ConfigView) -> None:
    checks = list(view)
    for item in checks[1:]:
        context.omit(item, "a pool can have only one active health check", path)
    for item in checks[:1]:
        http = item.get("http_health_check")
        parts = [item.get(name) for name in _CHECK_PARTS] + [http.get(name) for name in _HTTP_PARTS]
        context.put((*path, "health", "active"), _check(item), *parts)


def _check(item: ConfigView) -> dict[str, Any]:
    check: dict[str, Any] = {}
    for name, key in (("timeout", "timeout"), ("interval", "interval")):
        if value := item.get(name).milliseconds:
            check[key] = duration(value)
    for name in ("unhealthy_threshold", "healthy_threshold"):
        if number := item.get(name).number:
            check[name] = number
    http, grpc = item.get("http_health_check"), item.get("grpc_health_check")
    if http:
        host = {"host": http.get("host").text} if http.get("host").text else {}
        ranges = [
            (item.get("start").number or 0, item.get("end").number or 0) for item in http.get("expected_statuses")
        ]
        statuses = [status for start, end in ranges for status in range(max(start, 100), min(end, 600))]
        expected = {"statuses": statuses} if statuses else {}
        return check | {"http": {"path": http.get("path").text or "/"} | host | expected}
    if grpc:
        return check | {"grpc": {"service": grpc.get("service_name").text} if grpc.get("service_name").text else {}}
    return check | {"tcp": {}}


def _outliers(context: EnvoyImport, path: Path, view: ConfigView) -> None:
    passive = (*path, "health", "passive")
    if (number := view.get("consecutive_5xx").number) and number > 0:
        context.put((*passive, "consecutive_5xx"), number, view.get("consecutive_5xx"))
    context.time((*passive, "ejection_time"), view.get("base_ejection_time"))
    if (percent := view.get("max_ejection_percent").number) is not None:
        context.put((*passive, "max_ejection"), f"{percent}%", view.get("max_ejection_percent"))
    if view.get("interval"):
        context.imply("lbctl ejects replicas immediately", view.get("interval"))


def _protocol(context: EnvoyImport, path: Path, view: ConfigView) -> None:
    for name, options in view.fields():
        if not name.endswith("http_protocol_options"):
            continue
        explicit = options.get("explicit_http_config")
        if explicit.get("http2_protocol_options"):
            context.put((*path, "protocol"), "http2", explicit, options.get("@type"))
        elif explicit:
            context.imply("lbctl connects to replicas over HTTP/1.1", explicit, options.get("@type"))
        common = options.get("common_http_protocol_options")
        context.time((*path, "connections", "idle"), common.get("idle_timeout"))
        if number := common.get("max_requests_per_connection").number:
            context.put((*path, "connections", "max_requests"), number, common.get("max_requests_per_connection"))


def _http2(context: EnvoyImport, path: Path, view: ConfigView) -> None:
    context.put((*path, "protocol"), "http2", view)


def _slow_start(context: EnvoyImport, path: Path, view: ConfigView) -> None:
    context.time((*path, "slow_start", "window"), view.get("slow_start_config", "slow_start_window"))
    if view.get("choice_count"):
        context.imply("lbctl selects the least busy of at least two replicas", view.get("choice_count"))


def _common(context: EnvoyImport, path: Path, view: ConfigView) -> None:
    del path
    panic = view.get("healthy_panic_threshold")
    context.imply("lbctl never sends requests to unhealthy replicas", panic)


_HANDLERS: dict[str, Handler] = {
    "connect_timeout": _connect,
    "load_assignment": _assignment,
    "load_balancing_policy": _typed_policy,
    "circuit_breakers": _breakers,
    "health_checks": _checks,
    "outlier_detection": _outliers,
    "typed_extension_protocol_options": _protocol,
    "http2_protocol_options": _http2,
    "transport_socket": tls.upstream,
    "least_request_lb_config": _slow_start,
    "round_robin_lb_config": _slow_start,
    "common_lb_config": _common,
}
