"""Envoy Gateway's support for each feature, through objects of the Gateway API and its own policies."""

from __future__ import annotations

from collections.abc import Mapping

from lbctl.targets.target import CONTROL_PLANE, Capability, NotYet, Rendered, Since, Unsupported

_DONE = Rendered()
_REJECTED = "lbctl rejects this setting (LB170)"


def _missing(what: str, instead: str) -> Unsupported:
    return Unsupported(f"Envoy Gateway has no setting for {what}", instead)


def _protection(what: str) -> Unsupported:
    return _missing(what, "let another component provide it and list this feature in `assume`, or use Envoy")


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
        "Only the port is used. The gateway's Service has the addresses. Routes of a loopback listener return 503",
        in_part=True,
    ),
    "listener.tls": Rendered(
        "Each certificate is a reference to a Secret. The owner of an existing Gateway decides the minimum TLS version",
        in_part=True,
    ),
    "listener.client_certificate": Rendered(
        "Revocation lists are a reference to a ConfigMap. Routes of an existing Gateway return 503", in_part=True
    ),
    "listener.http2": Rendered("The owner of an existing Gateway decides", in_part=True),
    "listener.h2c": Rendered("HTTP/2 without TLS cannot be disabled", in_part=True),
    "listener.client_address": Rendered(
        "Only the header x-forwarded-for is supported, which must contain no IPv4-mapped addresses. From trusted load "
        "balancers, other headers about the client are removed too, and replicas get only x-forwarded-for. With "
        "another header, routes with `allow_from` or `deny_from` return 503",
        in_part=True,
    ),
    "listener.proxy_protocol": Rendered("The owner of an existing Gateway decides", in_part=True),
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
        "The owner of an existing Gateway decides",
    ),
    "listener.access_log": NotYet("set `telemetry.accessLog` in an EnvoyProxy"),
    "listener.tracing": NotYet("set `telemetry.tracing` in an EnvoyProxy"),
    "listener.request_id": Rendered(
        "The header is x-request-id. With `client_address`, an ID of any client is kept", in_part=True
    ),
    "listener.access": Rendered("A request without valid credentials receives 401 before it is rejected", in_part=True),
}

_ROUTES: Mapping[str, Capability] = {
    "route.match": Rendered(
        "An HTTPRoute for each listener and host has the rules in lbctl's order. If the order of two rules with "
        "different regular expressions cannot be expressed, the fleet is rejected (LB172). Of two expressions, the "
        "longer one is compared first (LB420). Only the nine methods of the Gateway API are supported",
        in_part=True,
    ),
    "route.match.model": Rendered(
        "The model is read from the header x-model, which clients or another component set. A route that "
        "bypasses the protection of a model returns 503, unless `assume` lists this feature"
    ),
    "route.pool": _DONE,
    "route.split": Rendered(
        "All pools of a split have the same policy: the smallest limits, and all other settings of the pool with the "
        "largest share. Weights above 1,000,000 are scaled down",
        in_part=True,
    ),
    "route.pin.header": _DONE,
    "route.pin.cookie": Rendered("The cookie is matched by a regular expression on the Cookie header"),
    "route.sticky_split.cookie": _missing("a choice of the pool by a cookie", "each request is assigned at random"),
    "route.sticky_split.header": _missing("a choice of the pool by a hash", "each request is assigned at random"),
    "route.mirror": Rendered("All replicas of the pool get equal shares of the copies"),
    "route.fallback": Unsupported(
        "a fallback of Envoy Gateway gets requests as soon as less than 72 % of the other replicas are healthy",
        "requests get 503 while the pools of the route have no healthy replica",
    ),
    "route.respond": Rendered("A response with a body of more than 4 KiB is replaced with 503", in_part=True),
    "route.redirect": Since(
        (1, 8),
        Unsupported("before 1.8, its Gateway API has no status 308", "every redirect has the status 301"),
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
        "Each gateway enforces its part of one limit by all, in equal parts for the matches of the route. On an "
        "existing Gateway, the limit applies to each listener separately. Limits by tenant, header or client address "
        "need Redis, so their routes return 503",
        in_part=True,
    ),
    "route.rate_limit.concurrent": _protection("concurrent requests"),
    "route.rate_limit.prompt_tokens": _protection("prompt tokens"),
    "route.auth.api_keys": Rendered(
        "The keys are in a Secret, with one key for each tenant. `Bearer` must be written with exactly "
        "this capitalization. Routes with several keys for a tenant, with hashes of keys, or that also accept tokens "
        "return 503",
        in_part=True,
    ),
    "route.auth.jwt": Rendered(
        "The key set is in the policy. A token without an expiry time is accepted, and an expired token is still "
        "accepted for a minute",
        in_part=True,
    ),
    "route.auth.external": Rendered(
        "The service gets the header authorization even if `send` does not list it, and the client's path only as the "
        "parameter `uri`. A service on a loopback address is not reachable, so its routes return 503",
        in_part=True,
    ),
    "route.auth.basic": Rendered(
        "The users are in a Secret, as lines that `htpasswd -s` writes. The realm is the URL of the request",
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
    "route.access_log": _missing("the access log of a route", "its requests are in the gateway's access log"),
}

_POOLS: Mapping[str, Capability] = {
    "pool.replicas": Rendered(
        "Replicas of equal weight form a Backend, which has at most 256 of them (LB172), and each Backend has a "
        "weight. A pool without a replica that is not drained gets no requests",
        in_part=True,
    ),
    "pool.model": _DONE,
    "pool.protocol.http1": _DONE,
    "pool.protocol.http2": Rendered(
        "A Service of another owner needs the `appProtocol` kubernetes.io/h2c", in_part=True
    ),
    "pool.protocol.grpc": Rendered("A Service of another owner needs the `appProtocol` kubernetes.io/h2c"),
    "pool.balance.round_robin": _DONE,
    "pool.balance.least_request": Rendered(
        "The weights decide between Backends, and the number of requests only among replicas of equal weight"
    ),
    "pool.balance.least_time": Unsupported(
        "Envoy does not use response times for load balancing", "Envoy uses least_request"
    ),
    "pool.balance.random": _DONE,
    "pool.balance.hash": Rendered("The hash does not follow the weights of Backends"),
    "pool.balance.hash.json_body": _missing("hashes of the request body", "Envoy uses least_request"),
    "pool.balance.hash.prompt_prefix": _missing("hashes of the request body", "Envoy uses least_request"),
    "pool.balance.hash.bounded_load": _missing("bounded load", "only the hash decides"),
    "pool.balance.pick": Rendered(
        "The picker is queried through an EnvoyExtensionPolicy. If the query fails, `otherwise` chooses, without "
        "weights. In a split of several pools and on an existing Gateway, `otherwise` always chooses",
        in_part=True,
    ),
    "pool.balance.pick.body": Rendered(
        "The picker gets the beginning of the body. WebSocket routes and gRPC are not supported"
    ),
    "pool.affinity": Rendered(
        "A hash of the cookie chooses the replica in place of the algorithm, so adding replicas moves some clients to "
        "other replicas"
    ),
    "pool.affinity.header": _missing("sessions that replicas start", "each request is balanced independently"),
    "pool.replicas.priority": Rendered(
        "Two priorities are supported. The second priority takes a share if less than 72 % of the first are healthy. "
        "It is not used with `locality`, or in a route with both addresses and host names, or both HTTP/1.1 and HTTP/2",
        in_part=True,
    ),
    "pool.replicas.drain": Rendered("A drained replica is left out of its Backend"),
    "pool.locality": Rendered(
        "Only `prefer: zone` is supported, without `spill_below`, a hash or the picker. Replicas with one weight do not "
        "take over for replicas with another weight",
        in_part=True,
    ),
    "pool.connections.idle": _DONE,
    "pool.connections.max_requests": _DONE,
    "pool.timeouts.connect": _DONE,
    "pool.timeouts.queue": _missing(
        "the time that a request waits for a connection",
        "max_pending_requests limits the number of waiting requests; timeouts.request limits their wait",
    ),
    "pool.circuit_breaker": Rendered("The limits apply to each rule that leads to the pool"),
    "pool.circuit_breaker.per_replica": Rendered(
        "Only connections are limited. `max_requests` needs HTTP/1.1, and with TLS also a Backend", in_part=True
    ),
    "pool.queue": Unsupported("Envoy Gateway has no queue", "requests do not wait at the picker"),
    "pool.slow_start": Rendered("Only with round_robin and least_request, as a linear ramp", in_part=True),
    "pool.health.http": Rendered("Checks cannot send the key that replicas require", in_part=True),
    "pool.health.http.body": _DONE,
    "pool.health.grpc": Rendered("A pool without HTTP/2 is checked by opening a connection", in_part=True),
    "pool.health.tcp": Rendered("Since 1.8 on a separate port", in_part=True),
    "pool.health.agent": Rendered("Since 1.8, if all agents of the pool have the same port", in_part=True),
    "pool.health.passive.consecutive_5xx": _DONE,
    "pool.health.passive.connect_failures": Rendered("Resets and timeouts before a response also count"),
    "pool.health.passive.error_rate": Rendered(
        "Only replicas with at least 50 requests in an interval count, and only if the pool has at least 5 of them"
    ),
    "pool.health.passive.ejection": Rendered("The duration grows with the number of ejections"),
    "pool.health.passive.max_ejection": _DONE,
    "pool.health.fail_open": Rendered("Envoy enters panic mode if less than 1 % of the replicas are healthy"),
    "pool.load_shedding": _missing("load shedding", "requests are rejected only if no replica is healthy"),
    "pool.discovery.dns": Rendered("A Backend contains the name, which the gateway resolves"),
    "pool.discovery.file": Rendered("The file is read when the objects are rendered"),
    "pool.discovery.kubernetes": Rendered(
        "The routes refer to the Service by `service_port`, and the gateway follows its pods", in_part=True
    ),
    "pool.tls": Rendered(
        "The certificates need one name for the pool, and a Service also needs `ca`; without them, the routes return "
        "503",
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
        "One secret header is in a Secret. Routes to several pools, with a mirror or of an existing Gateway return "
        "503. Before 1.8, the API gets the name of the client's host in x-forwarded-host",
        in_part=True,
    ),
}

_FLEET: Mapping[str, Capability] = {
    "fleet": _DONE,
    "proxies": _DONE,
    "proxies.identity": Unsupported("the gateway belongs to Envoy Gateway", _REJECTED),
    "proxies.weights": Unsupported("only HAProxy has this interface", _REJECTED),
    "proxies.slots": Unsupported("only HAProxy has server slots", _REJECTED),
    "control": Unsupported(
        "`lbctl serve` does not drive the gateway", "it serves the fleet's other proxies and the picker"
    ),
    "proxies.metrics": Unsupported("the gateway belongs to Envoy Gateway", _REJECTED),
    "proxies.form": Unsupported("manifests have no fragments", _REJECTED),
    "proxies.include": Unsupported(
        "manifests have no places for included lines", f"{_REJECTED}; use a kustomize patch"
    ),
}

CAPABILITIES: Mapping[str, Capability] = {
    **CONTROL_PLANE, **_SERVED, **_LISTENERS, **_ROUTES, **_POOLS, **_FLEET
}  # fmt: skip
