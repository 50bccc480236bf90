"""Support for each feature by Istio's own API."""

from __future__ import annotations

from collections.abc import Mapping

from lbctl.targets.target import CONTROL_PLANE, Capability, Rendered, Unsupported

_DONE = Rendered()
_MESH = "the mesh's settings apply"


def _setting(what: str, instead: str = _MESH) -> Unsupported:
    return Unsupported(f"Istio's API has no setting for {what} on a gateway", instead)


def _protection(what: str) -> Unsupported:
    return Unsupported(
        f"Istio's API has no setting for {what} on a route",
        "provide this feature with another component and list it in `assume`, or use a proxy that supports it",
    )


_CHECKS = Unsupported(
    "Istio has no active health checks", "the gateway uses the readiness of pods and the passive checks"
)
_STICKY = Unsupported("a VirtualService does not support sticky splits", "each request is assigned to a pool at random")
_PLAIN = "hash keys come from the request line and headers, not from the body"

_SERVED: Mapping[str, Capability] = {
    "route.rollout": Unsupported(
        "Istio cannot change a split by itself",
        "the split in the file applies; `lbctl render --server` renders the current split of a running serve",
    ),
    "pool.drain_deadline": Unsupported(
        "Istio does not measure the time since a replica was drained",
        "the replica finishes its requests without a time limit",
    ),
    "pool.health.deep": Unsupported(
        "Istio does not read GPU telemetry", "the gateway uses the readiness of pods and the passive checks"
    ),
    "pool.telemetry": Unsupported("Istio does not read a model server's metrics", "no metrics are used"),
    "pool.weighting": Unsupported(
        "Istio does not adapt weights to live signals", "the weights are the capacities in the file"
    ),
}
"""Features that `lbctl serve` provides for the proxies that it drives."""

_LISTENERS: Mapping[str, Capability] = {
    "listener.bind": Rendered(
        "Only the port is used. The gateway's Service determines the addresses. Routes of a loopback listener return "
        "503",
        in_part=True,
    ),
    "listener.tls": Rendered("Each certificate is a reference to a Secret in the namespace of the gateway's pods"),
    "listener.client_certificate": Rendered(
        "The listener's Secret also contains the CA bundle and the revocation lists. With an existing `gateway`, the "
        "routes return 503 (LB403)",
        in_part=True,
    ),
    "listener.http2": _setting("HTTP/2", "clients can use HTTP/2"),
    "listener.h2c": _DONE,
    "listener.client_address": _setting("trusted load balancers", "the mesh's `gatewayTopology` applies"),
    "listener.proxy_protocol": _setting("the PROXY protocol", "the mesh's `gatewayTopology` applies"),
    "listener.max_connections": _protection("connection limits"),
    "listener.max_body": _protection("the size of request bodies"),
    "listener.headers.max_count": _setting("the number of headers"),
    "listener.headers.max_bytes": _setting("the size of headers"),
    "listener.inspect": Unsupported("Istio does not read request bodies", "request bodies are not inspected"),
    "listener.timeouts": _setting("the timeouts of client connections"),
    "listener.access_log": _setting("access logs"),
    "listener.tracing": _setting("traces"),
    "listener.request_id": Rendered("The header is always x-request-id", in_part=True),
    "listener.access": Rendered(
        "lbctl renders an AuthorizationPolicy in the namespace of the gateway's pods. The policy applies to all ports "
        "of the pods, including TCP servers, and to the hosts of the routes. With wildcards, or with routes for any "
        "host, the policy applies to all hosts and needs `gateway_labels` that select the fleet's own pods. The "
        "routes return 503 (LB415) if the lists of listeners or routes differ, or if `client_address` or an existing "
        "`gateway` is set",
        in_part=True,
    ),
}

_ROUTES: Mapping[str, Capability] = {
    "route.match": Rendered(
        "A VirtualService for each listener and host contains the rules in lbctl's order. lbctl rejects an IP address "
        "as a host (LB171)",
        in_part=True,
    ),
    "route.match.model": Rendered(
        "The model is read from the header x-model, which clients or another component set. A route that bypasses the "
        "protection of a model returns 503, unless `assume` lists this feature"
    ),
    "route.pool": _DONE,
    "route.split": _DONE,
    "route.pin.header": _DONE,
    "route.pin.cookie": Rendered("The cookie is matched by a regular expression on the Cookie header"),
    "route.sticky_split.cookie": _STICKY,
    "route.sticky_split.header": _STICKY,
    "route.mirror": Rendered("Before 1.28, Istio adds `-shadow` to the Host header of copies"),
    "route.fallback": Unsupported(
        "a VirtualService has no fallback", "requests get 503 while the pools of the route have no ready replica"
    ),
    "route.respond": _DONE,
    "route.redirect": Rendered(
        "Istio keeps a port in the Host header, except port 80. Therefore, lbctl reports a redirect on a listener "
        "with another port (LB431)",
        in_part=True,
    ),
    "route.rewrite": _DONE,
    "route.queue_priority": Unsupported("Istio has no queue", "requests have no priority"),
    "route.websocket": Rendered("Gateways accept WebSockets on all routes"),
    "route.timeouts.request": _DONE,
    "route.timeouts.attempt": Rendered("The timeout is supported only for requests that can be retried", in_part=True),
    "route.timeouts.idle": _setting("the idle timeout", "requests have no idle timeout"),
    "route.retry": Rendered("Without retries, `attempts: 0` is rendered, because Istio retries by default"),
    "route.retry.idempotent": _DONE,
    "route.retry.replica_busy": Rendered("The status 529 is not supported", in_part=True),
    "route.retry.budget": Rendered("If the routes to a pool have different budgets, the smallest one applies"),
    "route.retry.backoff": Rendered("The longest pause is always ten times the first pause", in_part=True),
    "route.rate_limit": _protection("rate limits"),
    "route.rate_limit.concurrent": _protection("concurrent requests"),
    "route.rate_limit.prompt_tokens": _protection("prompt tokens"),
    "route.auth.api_keys": _protection("API keys"),
    "route.auth.jwt": _protection("JWT"),
    "route.auth.external": _protection("external authentication"),
    "route.auth.basic": _protection("passwords"),
    "route.headers": Rendered(
        "lbctl does not set a header with {tenant}, with {pool} in a route to several pools, or with {host} in a "
        "response if the route changes the host (LB445)",
        in_part=True,
    ),
    "route.regions": _DONE,
    "route.access": _protection("client addresses"),
    "route.access_log": _setting("access logs"),
}

_POOLS: Mapping[str, Capability] = {
    "pool.replicas": Rendered(
        "Replicas outside the cluster are the endpoints of a ServiceEntry. With least_request, the weight is the "
        "square of the capacity, or the capacity itself in a pool with few slots"
    ),
    "pool.model": _DONE,
    "pool.protocol.http1": _DONE,
    "pool.protocol.http2": _DONE,
    "pool.protocol.grpc": _DONE,
    "pool.balance.round_robin": _DONE,
    "pool.balance.least_request": _DONE,
    "pool.balance.least_time": Unsupported("Istio does not measure response times", "lbctl uses least_request"),
    "pool.balance.random": Rendered("With different weights, lbctl uses round_robin", in_part=True),
    "pool.balance.hash": Rendered("All pools of a split use the same keys", in_part=True),
    "pool.balance.hash.json_body": Unsupported(_PLAIN, "lbctl uses least_request"),
    "pool.balance.hash.prompt_prefix": Unsupported(_PLAIN, "lbctl uses least_request"),
    "pool.balance.hash.bounded_load": Unsupported("Istio's hash has no bound", "the hash alone selects the replica"),
    "pool.balance.pick": Unsupported(
        "only routes of the Gateway API can use the picker",
        "the gateway uses `otherwise`; use the kind gateway-api with `gateway_class: istio`",
    ),
    "pool.balance.pick.body": Unsupported("the picker is not used", "the gateway uses `otherwise`"),
    "pool.affinity": Rendered("The cookie selects the replica instead of the pool's algorithm"),
    "pool.affinity.header": Unsupported(
        "Istio does not learn sessions from responses", "each request is balanced independently"
    ),
    "pool.replicas.priority": Rendered(
        "Endpoint labels set the replicas' priorities. The next priority gets requests if fewer than 72 % of the "
        "replicas are healthy"
    ),
    "pool.replicas.drain": Rendered("lbctl omits a drained replica"),
    "pool.locality": Rendered(
        "Locality is supported without `spill_below`, and only in pools with one priority", in_part=True
    ),
    "pool.connections.idle": _DONE,
    "pool.connections.max_requests": _DONE,
    "pool.timeouts.connect": _DONE,
    "pool.timeouts.queue": Unsupported(
        "Istio has no setting for how long a request waits for a connection", "only `timeouts.request` applies"
    ),
    "pool.circuit_breaker": _DONE,
    "pool.circuit_breaker.per_replica": Unsupported(
        "Istio has no limits for single replicas", "only the limits of the pool apply"
    ),
    "pool.queue": Unsupported("Istio has no queue", "requests do not wait at the picker"),
    "pool.slow_start": Rendered("The minimum `aggression` is 1", in_part=True),
    "pool.health.http": _CHECKS,
    "pool.health.http.body": _CHECKS,
    "pool.health.grpc": _CHECKS,
    "pool.health.tcp": _CHECKS,
    "pool.health.agent": _CHECKS,
    "pool.health.passive.consecutive_5xx": Rendered(
        "The statuses of a busy replica also count as errors", in_part=True
    ),
    "pool.health.passive.connect_failures": _DONE,
    "pool.health.passive.error_rate": Unsupported(
        "Istio has no error rates", "only consecutive errors eject a replica"
    ),
    "pool.health.passive.ejection": Rendered("A repeated ejection is longer, up to 5 minutes"),
    "pool.health.passive.max_ejection": _DONE,
    "pool.health.fail_open": _CHECKS,
    "pool.load_shedding": Unsupported("Istio has no load shedding", "requests get 503 only if no replica is available"),
    "pool.discovery.dns": Rendered("The name servers of the gateway's pods resolve the name", in_part=True),
    "pool.discovery.file": Rendered("The file is read when the objects are rendered"),
    "pool.discovery.kubernetes": Rendered(
        "The routes refer to the Service by `service_port`, and the gateway watches its pods"
    ),
    "pool.tls": Rendered(
        "The CA bundle is in a Secret in the namespace of the gateway's pods. IP addresses and the pods of a Service "
        "are not checked against the certificate, so set server_name"
    ),
    "pool.tls.client_certificate": Rendered("The certificate is in the same Secret as the CA bundle"),
    "pool.credentials": Unsupported(
        "the objects would contain the key in plain text", "requests are sent without the key"
    ),
    "pool.upstream": Rendered(
        "A hosted API with secret headers or with `path_prefix` is not supported: its routes return 503 (LB159)",
        in_part=True,
    ),
}

_REJECTED = "lbctl rejects this setting (LB170)"
_FLEET: Mapping[str, Capability] = {
    "fleet": _DONE,
    "proxies": _DONE,
    "proxies.identity": Unsupported("the mesh manages the gateway", _REJECTED),
    "proxies.weights": Unsupported("only HAProxy has this interface", _REJECTED),
    "proxies.slots": Unsupported("only HAProxy has server slots", _REJECTED),
    "control": Unsupported("`lbctl serve` does not drive the gateway", "it serves the fleet's other proxies"),
    "proxies.metrics": Unsupported("the mesh manages the gateway", _REJECTED),
    "proxies.form": Unsupported("manifests have no fragments", _REJECTED),
    "proxies.include": Unsupported("manifests cannot contain included lines", f"{_REJECTED}; use a kustomize patch"),
}

CAPABILITIES: Mapping[str, Capability] = {
    **CONTROL_PLANE, **_SERVED, **_LISTENERS, **_ROUTES, **_POOLS, **_FLEET
}  # fmt: skip
