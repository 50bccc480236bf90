"""Support for each feature by the Gateway API's standard channel, whichever class the gateway has."""

from __future__ import annotations

from collections.abc import Mapping

from lbctl.targets.target import CONTROL_PLANE, Capability, Rendered, Since, Unsupported

_DONE = Rendered()
_CLASS = "the behaviour depends on the Gateway class"


def _setting(what: str) -> Unsupported:
    return Unsupported(f"the API has no setting for {what}", f"{_CLASS}; its policies may provide this setting")


def _protection(what: str) -> Unsupported:
    return Unsupported(
        f"the API has no setting for {what}",
        "add a policy of the Gateway class and list this feature in `assume`, or use a proxy that supports it",
    )


_BALANCE = _setting("load balancing within a pool")
_CHECKS = Unsupported("the API has no health checks", "the gateway uses the readiness of pods and EndpointSlices")
_RETRIES = Unsupported(
    "retries are not part of the standard channel, and experimental retries can repeat a request that was already sent",
    _CLASS,
)

_SERVED: Mapping[str, Capability] = {
    "route.rollout": Unsupported(
        "the API cannot change a split by itself",
        "the split in the file applies; `lbctl render --server` renders the current split of a running serve",
    ),
    "pool.drain_deadline": Unsupported(
        "the API does not measure the time since a replica was drained",
        "the replica finishes its requests without a time limit",
    ),
    "pool.health.deep": Unsupported(
        "the API does not read GPU telemetry", "the gateway uses the readiness of pods and EndpointSlices"
    ),
    "pool.telemetry": Unsupported(
        "the API does not read a model server's metrics",
        "only the picker uses metrics, and only while `lbctl serve` is running",
    ),
    "pool.weighting": Unsupported(
        "the API does not adapt weights to live signals", "the weights are the capacities in the file"
    ),
}
"""Features that `lbctl serve` provides for the proxies that it drives."""

_LISTENERS: Mapping[str, Capability] = {
    "listener.bind": Rendered(
        "Only the port is used. The gateway's Service determines the addresses. Routes of a loopback listener return "
        "503",
        in_part=True,
    ),
    "listener.tls": Rendered(
        "Each certificate is a reference to a Secret. The Gateway class determines the minimum TLS version",
        in_part=True,
    ),
    "listener.client_certificate": Since(
        (1, 5),
        Unsupported(
            "before 1.5, the API does not verify client certificates",
            "the routes return 503; use a newer version of the API",
        ),
        "Only `required` without revocation lists is supported; otherwise the routes return 503 (LB403)",
    ),
    "listener.http2": _setting("HTTP/2"),
    "listener.h2c": _setting("HTTP/2 without TLS"),
    "listener.client_address": _setting("trusted load balancers"),
    "listener.proxy_protocol": _setting("the PROXY protocol"),
    "listener.max_connections": _protection("connection limits"),
    "listener.max_body": _protection("the size of request bodies"),
    "listener.headers.max_count": _setting("the number of headers"),
    "listener.headers.max_bytes": _setting("the size of headers"),
    "listener.inspect": Unsupported("the API does not read request bodies", "request bodies are not inspected"),
    "listener.timeouts": _setting("the timeouts of client connections"),
    "listener.access_log": _setting("access logs"),
    "listener.tracing": _setting("traces"),
    "listener.request_id": _setting("request IDs"),
    "listener.access": _protection("client addresses"),
}

_ROUTES: Mapping[str, Capability] = {
    "route.match": Rendered(
        "An HTTPRoute for each listener and host contains the rules in lbctl's order. If the order of two rules with "
        "different regular expressions cannot be expressed, the fleet is rejected (LB172). Only the nine methods of "
        "the API are supported",
        in_part=True,
    ),
    "route.match.model": Rendered(
        "The model is read from the header x-model, which clients or another component set. A route that "
        "bypasses the protection of a model returns 503, "
        "unless `assume` lists this feature"
    ),
    "route.pool": _DONE,
    "route.split": Rendered("Weights above 1,000,000 are scaled down"),
    "route.pin.header": _DONE,
    "route.pin.cookie": Rendered("The cookie is matched by a regular expression on the Cookie header"),
    "route.sticky_split.cookie": Unsupported(
        "the standard channel does not include session persistence", "each request is assigned to a pool at random"
    ),
    "route.sticky_split.header": Unsupported(
        "the API cannot choose a backend by a hash", "each request is assigned to a pool at random"
    ),
    "route.mirror": Rendered(
        "All replicas of the pool get equal shares of the copies. An existing InferencePool gets no copies",
        in_part=True,
    ),
    "route.fallback": Unsupported(
        "the API has no fallback", "requests get 503 while the pools of the route have no ready replica"
    ),
    "route.respond": Unsupported("a gateway cannot send its own responses with this API", "the route returns 503"),
    "route.redirect": Since(
        (1, 5),
        Unsupported("before 1.5, the API has no status 308", "every redirect has the status 301"),
    ),
    "route.rewrite": Rendered("The new host is set without a port", in_part=True),
    "route.queue_priority": Unsupported("the API has no queue", "requests have no priority"),
    "route.websocket": Rendered(
        "The ports of rendered Services are marked for WebSockets. A Service with another owner needs the "
        "`appProtocol` kubernetes.io/ws, and WebSockets on other routes are not rejected"
    ),
    "route.timeouts.request": _DONE,
    "route.timeouts.attempt": Unsupported(
        "the API's timeout for one attempt is a total timeout in some implementations",
        "only `timeouts.request` applies",
    ),
    "route.timeouts.idle": _setting("idle timeouts"),
    "route.retry": _RETRIES,
    "route.retry.idempotent": _RETRIES,
    "route.retry.replica_busy": _RETRIES,
    "route.retry.budget": _RETRIES,
    "route.retry.backoff": _RETRIES,
    "route.rate_limit": _protection("rate limits"),
    "route.rate_limit.concurrent": _protection("concurrent requests"),
    "route.rate_limit.prompt_tokens": _protection("prompt tokens"),
    "route.auth.api_keys": _protection("API keys"),
    "route.auth.jwt": _protection("JWT"),
    "route.auth.external": _protection("external authentication"),
    "route.auth.basic": _protection("passwords"),
    "route.headers": Rendered(
        "At most 16 headers can be set, and at most 16 removed. The variables {route}, {listener} and, for a route to "
        "one pool, {pool} are replaced; a header with another variable is not set (LB445)",
        in_part=True,
    ),
    "route.regions": _DONE,
    "route.access": _protection("client addresses"),
    "route.access_log": _setting("access logs"),
}

_POOLS: Mapping[str, Capability] = {
    "pool.replicas": Rendered(
        "Replicas with equal weight form a Service without a selector, and each Service has a weight. lbctl omits "
        "replicas with a host name, because EndpointSlices contain addresses",
        in_part=True,
    ),
    "pool.model": _DONE,
    "pool.protocol.http1": _DONE,
    "pool.protocol.http2": Rendered("A Service with another owner needs the `appProtocol` kubernetes.io/h2c"),
    "pool.protocol.grpc": Rendered("A Service with another owner needs the `appProtocol` kubernetes.io/h2c"),
    "pool.balance.round_robin": _BALANCE,
    "pool.balance.least_request": _BALANCE,
    "pool.balance.least_time": _BALANCE,
    "pool.balance.random": _BALANCE,
    "pool.balance.hash": _BALANCE,
    "pool.balance.hash.json_body": _BALANCE,
    "pool.balance.hash.prompt_prefix": _BALANCE,
    "pool.balance.hash.bounded_load": _BALANCE,
    "pool.balance.pick": Rendered(
        "A pool with `discovery.kubernetes` becomes an InferencePool, which needs the pool's `selector`. If its "
        "picker fails, requests are still forwarded. Either all pools of a split are InferencePools, or none of them. "
        "An existing InferencePool (`inference_pool`) has its own picker. For all other pools, the Gateway class "
        "selects the replica",
        in_part=True,
    ),
    "pool.balance.pick.body": Rendered("The gateway streams the body to the picker"),
    "pool.affinity": Unsupported(
        "the standard channel does not include session persistence", "each request is balanced independently"
    ),
    "pool.affinity.header": Unsupported(
        "the API does not learn sessions from responses", "each request is balanced independently"
    ),
    "pool.replicas.priority": Unsupported(
        "the API has no priorities", "only the replicas of the first priority get requests"
    ),
    "pool.replicas.drain": _DONE,
    "pool.locality": Rendered(
        "Only `prefer: zone` is supported, without `spill_below`, for Services that lbctl renders "
        "(trafficDistribution)",
        in_part=True,
    ),
    "pool.connections.idle": _setting("idle connections to replicas"),
    "pool.connections.max_requests": _setting("the number of requests per connection"),
    "pool.timeouts.connect": _setting("the connect timeout"),
    "pool.timeouts.queue": _setting("how long a request waits for a connection"),
    "pool.circuit_breaker": _setting("the number of connections and requests"),
    "pool.circuit_breaker.per_replica": _setting("the number of connections and requests"),
    "pool.queue": Unsupported("the API has no queue", "requests do not wait at the picker"),
    "pool.slow_start": _setting("slow start"),
    "pool.health.http": _CHECKS,
    "pool.health.http.body": _CHECKS,
    "pool.health.grpc": _CHECKS,
    "pool.health.tcp": _CHECKS,
    "pool.health.agent": _CHECKS,
    "pool.health.passive.consecutive_5xx": _CHECKS,
    "pool.health.passive.connect_failures": _CHECKS,
    "pool.health.passive.error_rate": _CHECKS,
    "pool.health.passive.ejection": _CHECKS,
    "pool.health.passive.max_ejection": _CHECKS,
    "pool.health.fail_open": _CHECKS,
    "pool.load_shedding": _setting("load shedding"),
    "pool.discovery.dns": Unsupported(
        "EndpointSlices with host names are deprecated, and a Service with an external name cannot be a backend",
        "routes to the pool return 503",
    ),
    "pool.discovery.file": Rendered("The file is read when the objects are rendered"),
    "pool.discovery.kubernetes": Rendered(
        "The routes refer to the Service by `service_port`, or to the InferencePool. The gateway watches their pods"
    ),
    "pool.tls": Rendered(
        "lbctl renders a BackendTLSPolicy, which needs `ca` and `server_name`; without them, the routes return 503",
        in_part=True,
    ),
    "pool.tls.client_certificate": Since(
        (1, 5),
        Unsupported(
            "before 1.5, the API has no client certificates for backends",
            "the routes return 503; use a newer version of the API",
        ),
        "All pools with TLS need the same certificate, and lbctl must render the Gateway; otherwise the routes return "
        "503 (LB490)",
    ),
    "pool.credentials": Unsupported("the API would contain the key in plain text", "requests are sent without the key"),
    "pool.upstream": Unsupported(
        "the API would contain the secret headers in plain text", "use a proxy that supports hosted APIs"
    ),
}

_REJECTED = "lbctl rejects this setting (LB170)"
_FLEET: Mapping[str, Capability] = {
    "fleet": _DONE,
    "proxies": _DONE,
    "proxies.identity": Unsupported("the Gateway class manages the gateway", _REJECTED),
    "proxies.weights": Unsupported("only HAProxy has this interface", _REJECTED),
    "proxies.slots": Unsupported("only HAProxy has server slots", _REJECTED),
    "control": Unsupported(
        "`lbctl serve` does not drive the gateway", "it serves the fleet's other proxies and the picker"
    ),
    "proxies.metrics": Unsupported("the Gateway class manages the gateway", _REJECTED),
    "proxies.form": Unsupported("manifests have no fragments", _REJECTED),
    "proxies.include": Unsupported("manifests cannot contain included lines", f"{_REJECTED}; use a kustomize patch"),
}

CAPABILITIES: Mapping[str, Capability] = {
    **CONTROL_PLANE, **_SERVED, **_LISTENERS, **_ROUTES, **_POOLS, **_FLEET
}  # fmt: skip
