"""Envoy Gateway's support for each feature, through objects of the Gateway API and its own policies."""

from __future__ import annotations

from collections.abc import Mapping

from lbctl.targets.target import CONTROL_PLANE, Capability, NotYet, Rendered, Since, Unsupported

_DONE = Rendered()
_REJECTED = "lbctl rejects this setting (LB170)"


def _missing(what: str, instead: str) -> Unsupported:
    return Unsupported(f"Envoy Gateway has no setting for {what}", instead)


def _protection(what: str) -> Unsupported:
    return _missing(what, "provide this feature with another component and list it in `assume`, or use Envoy")


_SERVED: Mapping[str, Capability] = {
    "route.rollout": Unsupported(
        "Envoy Gateway cannot change a split by itself",
        "the split in the file applies; `lbctl render --server` renders the current split of a running serve",
    ),
    "pool.drain_deadline": Unsupported(
        "Envoy Gateway does not measure the time since a replica was drained",
        "the replica finishes its requests without a time limit",
    ),
    "pool.health.deep": Unsupported(
        "Envoy Gateway does not read GPU telemetry", "active and passive health checks apply"
    ),
    "pool.telemetry": Unsupported(
        "Envoy Gateway does not read a model server's metrics",
        "only the picker uses metrics, and only while `lbctl serve` is running",
    ),
    "pool.weighting": Unsupported(
        "Envoy Gateway does not adapt weights to live signals", "the weights are the capacities in the file"
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
        "Each certificate is a reference to a Secret. The owner of an existing Gateway sets the minimum TLS version",
        in_part=True,
    ),
    "listener.client_certificate": Rendered(
        "Revocation lists are stored in a ConfigMap. Routes of an existing Gateway return 503", in_part=True
    ),
    "listener.http2": Rendered("The owner of an existing Gateway controls this setting", in_part=True),
    "listener.h2c": Rendered("HTTP/2 without TLS cannot be disabled", in_part=True),
    "listener.client_address": Rendered(
        "Only the header x-forwarded-for is supported, and it must not contain IPv4-mapped addresses. The gateway "
        "also removes other client headers that trusted load balancers send, so replicas get only x-forwarded-for. "
        "With another header, routes with `allow_from` or `deny_from` return 503",
        in_part=True,
    ),
    "listener.proxy_protocol": Rendered("The owner of an existing Gateway controls this setting", in_part=True),
    "listener.max_connections": Rendered(
        "Connections are counted separately for each certificate. Routes of an existing Gateway return 503",
        in_part=True,
    ),
    "listener.max_body": Rendered(
        "Envoy buffers a request until it is complete, so streams are exempt. Routes with WebSocket and routes to "
        "gRPC pools have no limit"
    ),
    "listener.headers.max_count": _missing("the number of headers", "Envoy's limit of 100 headers applies"),
    "listener.headers.max_bytes": _missing("the size of headers", "Envoy's limit of 60 KiB applies"),
    "listener.inspect": Unsupported(
        "Envoy Gateway does not read request bodies to choose a route", "request bodies are not inspected"
    ),
    "listener.timeouts": Since(
        (1, 9),
        Unsupported("before 1.9, Envoy Gateway has no timeout for request headers", "only `idle` applies"),
        "The owner of an existing Gateway controls this setting",
    ),
    "listener.access_log": NotYet("set `telemetry.accessLog` in an EnvoyProxy"),
    "listener.tracing": NotYet("set `telemetry.tracing` in an EnvoyProxy"),
    "listener.request_id": Rendered(
        "The header is x-request-id. With `client_address`, the gateway keeps IDs from all clients", in_part=True
    ),
    "listener.access": Rendered("A request without valid credentials receives 401 before it is rejected", in_part=True),
}

_ROUTES: Mapping[str, Capability] = {
    "route.match": Rendered(
        "An HTTPRoute for each listener and host contains the rules in lbctl's order. If the order of two rules with "
        "different regular expressions cannot be expressed, the fleet is rejected (LB172). Longer expressions are "
        "compared first (LB420). Only the nine methods of the Gateway API are supported",
        in_part=True,
    ),
    "route.match.model": Rendered(
        "The model is read from the header x-model, which clients or another component set. A route that "
        "bypasses the protection of a model returns 503, unless `assume` lists this feature"
    ),
    "route.pool": _DONE,
    "route.split": Rendered(
        "All pools of a split share one policy, which has their smallest limits and all other settings of the pool "
        "with the largest share. Weights above 1,000,000 are scaled down",
        in_part=True,
    ),
    "route.pin.header": _DONE,
    "route.pin.cookie": Rendered("The cookie is matched by a regular expression on the Cookie header"),
    "route.sticky_split.cookie": _missing("choosing the pool by a cookie", "each request is assigned at random"),
    "route.sticky_split.header": _missing("choosing the pool by a hash", "each request is assigned at random"),
    "route.mirror": Rendered("All replicas of the pool get equal shares of the copies"),
    "route.fallback": Unsupported(
        "an Envoy Gateway fallback gets requests as soon as fewer than 72 % of the other replicas are healthy",
        "requests get 503 while the pools of the route have no healthy replica",
    ),
    "route.respond": Rendered("A response with a body of more than 4 KiB is replaced with 503", in_part=True),
    "route.redirect": Since(
        (1, 8),
        Unsupported("before 1.8, Envoy Gateway's API has no status 308", "every redirect has the status 301"),
    ),
    "route.rewrite": Rendered("The new host is set without a port", in_part=True),
    "route.queue_priority": Unsupported("Envoy Gateway has no queue", "requests have no priority"),
    "route.websocket": Rendered("WebSockets on other routes are not rejected"),
    "route.timeouts.request": _DONE,
    "route.timeouts.attempt": Rendered("The timeout runs from the end of the request to the beginning of the response"),
    "route.timeouts.idle": Since(
        (1, 8),
        Unsupported(
            "before 1.8, Envoy Gateway has one idle timeout for each listener",
            "the longest idle timeout of the listener's routes applies, except on an existing Gateway",
        ),
    ),
    "route.retry": Rendered(
        "A request longer than 1 MiB is tried only once; on an existing Gateway, its owner's limit applies"
    ),
    "route.retry.idempotent": _DONE,
    "route.retry.replica_busy": Rendered("A gRPC replica declines a request with the status UNAVAILABLE"),
    "route.retry.budget": Since(
        (1, 8),
        Unsupported("before 1.8, Envoy Gateway has no retry budget", "`circuit_breaker.max_retries` applies"),
        "At least 3 concurrent retries are always allowed",
    ),
    "route.retry.backoff": _DONE,
    "route.rate_limit": Rendered(
        "Each gateway enforces its part of a limit with `by: all`, divided equally among the route's matches. On an "
        "existing Gateway, the limit applies to each listener separately. Limits by tenant, header or client address "
        "need Redis, so their routes return 503",
        in_part=True,
    ),
    "route.rate_limit.concurrent": _protection("concurrent requests"),
    "route.rate_limit.prompt_tokens": _protection("prompt tokens"),
    "route.auth.api_keys": Rendered(
        "The keys are in a Secret, with one key for each tenant. `Bearer` must be written with exactly this "
        "capitalization. A route returns 503 if a tenant has several keys, if keys are hashed, or if the route also "
        "accepts tokens",
        in_part=True,
    ),
    "route.auth.jwt": Rendered(
        "The key set is in the policy. A token without an expiry time is accepted, and an expired token is still "
        "accepted for a minute",
        in_part=True,
    ),
    "route.auth.external": Rendered(
        "The service always receives the authorization header, even if `send` does not list it. It receives the "
        "client's path only in the parameter `uri`. A service on a loopback address is not reachable, so its routes "
        "return 503",
        in_part=True,
    ),
    "route.auth.basic": Rendered(
        "A Secret contains the users in the format of `htpasswd -s`. The realm is the URL of the request",
        in_part=True,
    ),
    "route.headers": Rendered(
        "At most 16 headers can be set, and at most 16 removed. The variables {route}, {listener} and, for a route to "
        "one pool, {pool} are replaced; a header with another variable, or with two spaces in a row, is not set "
        "(LB445)",
        in_part=True,
    ),
    "route.regions": _DONE,
    "route.access": Rendered("A request without valid credentials receives 401 before it is rejected", in_part=True),
    "route.access_log": _missing("the access log of a route", "the gateway's access log includes the route's requests"),
}

_POOLS: Mapping[str, Capability] = {
    "pool.replicas": Rendered(
        "Replicas with equal weight form a Backend of at most 256 replicas (LB172), and each Backend has a weight. A "
        "pool gets no requests if all of its replicas are drained",
        in_part=True,
    ),
    "pool.model": _DONE,
    "pool.protocol.http1": _DONE,
    "pool.protocol.http2": Rendered(
        "A Service with another owner needs the `appProtocol` kubernetes.io/h2c", in_part=True
    ),
    "pool.protocol.grpc": Rendered("A Service with another owner needs the `appProtocol` kubernetes.io/h2c"),
    "pool.balance.round_robin": _DONE,
    "pool.balance.least_request": Rendered(
        "Weights select the Backend, and the number of requests only selects among replicas with equal weight"
    ),
    "pool.balance.least_time": Unsupported(
        "Envoy does not use response times for load balancing", "Envoy uses least_request"
    ),
    "pool.balance.random": _DONE,
    "pool.balance.hash": Rendered("The hash ignores the weights of Backends"),
    "pool.balance.hash.json_body": _missing("hashes of the request body", "Envoy uses least_request"),
    "pool.balance.hash.prompt_prefix": _missing("hashes of the request body", "Envoy uses least_request"),
    "pool.balance.hash.bounded_load": _missing("bounded load", "the hash alone selects the replica"),
    "pool.balance.pick": Rendered(
        "The picker is queried through an EnvoyExtensionPolicy. If the query fails, the gateway uses `otherwise`, "
        "without weights. For a split of several pools, and on an existing Gateway, the gateway always uses "
        "`otherwise`",
        in_part=True,
    ),
    "pool.balance.pick.body": Rendered(
        "The picker receives the beginning of the body. WebSocket routes and gRPC are not supported"
    ),
    "pool.affinity": Rendered(
        "A hash of the cookie selects the replica instead of the algorithm, so adding replicas moves some clients to "
        "other replicas"
    ),
    "pool.affinity.header": _missing("sessions that replicas create", "each request is balanced independently"),
    "pool.replicas.priority": Rendered(
        "Two priorities are supported. The second priority takes a share if fewer than 72 % of the first are healthy. "
        "It has no effect with `locality`, or in a route that mixes addresses and host names, or HTTP/1.1 and HTTP/2",
        in_part=True,
    ),
    "pool.replicas.drain": Rendered("A drained replica is omitted from its Backend"),
    "pool.locality": Rendered(
        "Only `prefer: zone` is supported, without `spill_below`, a hash or the picker. Replicas with one weight do "
        "not take over for replicas with another weight",
        in_part=True,
    ),
    "pool.connections.idle": _DONE,
    "pool.connections.max_requests": _DONE,
    "pool.timeouts.connect": _DONE,
    "pool.timeouts.queue": _missing(
        "how long a request waits for a connection",
        "max_pending_requests limits the number of waiting requests; timeouts.request limits their wait",
    ),
    "pool.circuit_breaker": Rendered("The limits apply separately to each rule that routes to the pool"),
    "pool.circuit_breaker.per_replica": Rendered(
        "Only connections are limited. `max_requests` requires HTTP/1.1, and also a Backend if TLS is used",
        in_part=True,
    ),
    "pool.queue": Unsupported("Envoy Gateway has no queue", "requests do not wait at the picker"),
    "pool.slow_start": Rendered(
        "Slow start is supported only with round_robin and least_request, as a linear ramp", in_part=True
    ),
    "pool.health.http": Rendered("Checks cannot send the key that replicas require", in_part=True),
    "pool.health.http.body": _DONE,
    "pool.health.grpc": Rendered("A pool without HTTP/2 is checked by opening a connection", in_part=True),
    "pool.health.tcp": Rendered("A separate port is supported since 1.8", in_part=True),
    "pool.health.agent": Rendered(
        "Agents are supported since 1.8, if all agents of the pool use the same port", in_part=True
    ),
    "pool.health.passive.consecutive_5xx": _DONE,
    "pool.health.passive.connect_failures": Rendered("Resets and timeouts before a response also count"),
    "pool.health.passive.error_rate": Rendered(
        "Only replicas with at least 50 requests in an interval count, and only if the pool has at least 5 of them"
    ),
    "pool.health.passive.ejection": Rendered("The duration grows with the number of ejections"),
    "pool.health.passive.max_ejection": _DONE,
    "pool.health.fail_open": Rendered("Envoy enters panic mode if fewer than 1 % of the replicas are healthy"),
    "pool.load_shedding": _missing("load shedding", "requests are rejected only if no replica is healthy"),
    "pool.discovery.dns": Rendered("A Backend contains the name, which the gateway resolves"),
    "pool.discovery.file": Rendered("The file is read when the objects are rendered"),
    "pool.discovery.kubernetes": Rendered(
        "The routes refer to the Service by `service_port`, and the gateway watches its pods", in_part=True
    ),
    "pool.tls": Rendered(
        "All certificates of a pool must be valid for one host name, and a Service also needs `ca`; otherwise the "
        "routes return 503",
        in_part=True,
    ),
    "pool.tls.client_certificate": Rendered(
        "Supported since 1.8 for pods of a Service, if all such pools use the same certificate; otherwise their routes "
        "return 503",
        in_part=True,
    ),
    "pool.credentials": Rendered(
        "The key is in a Secret. In a split or with a mirror, requests are sent without the key", in_part=True
    ),
    "pool.upstream": Rendered(
        "A Secret contains one secret header. Routes to several pools, routes with a mirror, and routes of an "
        "existing Gateway return 503. Before 1.8, the API receives the client's Host header in x-forwarded-host",
        in_part=True,
    ),
}

_FLEET: Mapping[str, Capability] = {
    "fleet": _DONE,
    "proxies": _DONE,
    "proxies.identity": Unsupported("Envoy Gateway manages the gateway", _REJECTED),
    "proxies.weights": Unsupported("only HAProxy has this interface", _REJECTED),
    "proxies.slots": Unsupported("only HAProxy has server slots", _REJECTED),
    "control": Unsupported(
        "`lbctl serve` does not drive the gateway", "it serves the fleet's other proxies and the picker"
    ),
    "proxies.metrics": Unsupported("Envoy Gateway manages the gateway", _REJECTED),
    "proxies.form": Unsupported("manifests have no fragments", _REJECTED),
    "proxies.include": Unsupported("manifests cannot contain included lines", f"{_REJECTED}; use a kustomize patch"),
}

CAPABILITIES: Mapping[str, Capability] = {
    **CONTROL_PLANE, **_SERVED, **_LISTENERS, **_ROUTES, **_POOLS, **_FLEET
}  # fmt: skip
