"""Support of Envoy for each feature."""

from __future__ import annotations

from lbctl.targets.target import CONTROL_PLANE, Capability, Rendered, Unsupported

CAPABILITIES: dict[str, Capability] = {
    "listener.bind": Rendered(),
    "listener.tls": Rendered("a filter chain for each certificate"),
    "listener.client_certificate": Rendered(),
    "listener.http2": Rendered(),
    "listener.h2c": Rendered("detected by the HTTP/2 preface"),
    "listener.client_address": Rendered(
        "one filter chain for the trusted networks, another for all others; 400 if a header other than x-forwarded-for "
        "is sent twice or contains a comma"
    ),
    "listener.proxy_protocol": Rendered(),
    "listener.max_connections": Rendered(
        "for the process, all worker threads together; under `lbctl serve`, each certificate, and peers within and "
        "outside the trusted networks, are counted separately"
    ),
    "listener.max_body": Rendered(
        "a request is buffered until it is complete, so streams are exempt: routes with WebSocket or to gRPC pools "
        "have no limit"
    ),
    "listener.headers.max_count": Rendered("an HTTP/2 request above it is reset without a response"),
    "listener.headers.max_bytes": Rendered("in KiB, rounded up; an HTTP/2 request above it is reset"),
    "listener.inspect": Rendered(
        "bodies are read completely: a body larger than `inspect` and `max_body` gets a 413; gzip, zstd and br are "
        "decompressed first, and the decompressed size counts"
    ),
    "listener.timeouts": Rendered("an idle connection gets a notice at the timeout, and is closed 1 to 2 s later"),
    "listener.access": Rendered(),
    "listener.access_log": Rendered("written every 10 s, or at Envoy's --file-flush-interval-msec"),
    "listener.tracing": Rendered("OTLP over gRPC"),
    "listener.request_id": Rendered(
        "a trusted peer's id is kept if it is printable ASCII of at most 200 characters; another header name gets a "
        "copy of x-request-id"
    ),
    "route.match": Rendered("the path is forwarded as it was matched: %2F as /, %41 as A; the query is unchanged"),
    "route.match.model": Rendered(
        "x-model, otherwise the `model` of a JSON body (not of a multipart form), otherwise the query of a GET, which "
        "is not in the access log. If a route may match by model, bodies whose content type is JSON, a form, text or "
        "missing are buffered until they are complete. Uploads of other types are not inspected. A body with an "
        "encoding other than gzip, zstd or br gets a 415. If the model decides about protection, a request gets a 400 "
        "unless it names exactly one model"
    ),
    "route.pool": Rendered(),
    "route.split": Rendered(),
    "route.pin.header": Rendered(),
    "route.pin.cookie": Rendered(),
    "route.sticky_split.cookie": Rendered("the cookie contains the pool's name"),
    "route.sticky_split.header": Rendered(
        "by a hash of the header: a change of the split moves as few clients as possible"
    ),
    "route.mirror": Rendered("a slow mirror does not delay requests"),
    "route.fallback": Rendered(
        "a pool with a fallback spills to its next rank only if no replica of the current one is left; passive health "
        "may eject the whole pool (unless max_ejection is set)"
    ),
    "route.respond": Rendered(),
    "route.redirect": Rendered(),
    "route.rewrite": Rendered(),
    "route.queue_priority": Unsupported(
        "requests wait at a replica in order of arrival", "all requests wait with normal priority"
    ),
    "route.websocket": Rendered(
        "a WebSocket on another route gets a 403, and so does a WebSocket if the model decides about protection; other "
        "upgrades are ignored"
    ),
    "route.timeouts.request": Rendered(),
    "route.timeouts.attempt": Rendered("from the end of the request to the beginning of the response"),
    "route.timeouts.idle": Rendered("no byte in either direction"),
    "route.retry": Rendered(
        "a request longer than 1 MiB is tried once; if bodies are inspected or limited, a request longer than these "
        "limits"
    ),
    "route.retry.idempotent": Rendered(),
    "route.retry.replica_busy": Rendered(
        "by the HTTP status, if the body for a retry is still buffered; passive checks do not count busy responses"
    ),
    "route.retry.budget": Rendered(
        "per pool, the smallest of its routes, in place of max_retries; at least 3 concurrent retries"
    ),
    "route.retry.backoff": Rendered(),
    "route.rate_limit": Rendered(
        "each Envoy has its part of the limit, separately for each listener, certificate and kind of peer (trusted or "
        "not); up to 10,000 values"
    ),
    "route.rate_limit.concurrent": Unsupported(
        "Envoy limits concurrent requests per pool, not per tenant or client", "a rate, or circuit_breaker.max_requests"
    ),
    "route.auth.api_keys": Rendered(
        "keys in plain text; a key that is configured only as a hash is rejected. The listener is in a separate file "
        "(0600) in the directory of the proxy's `config`. Without `config`, start Envoy in the directory of this file"
    ),
    "route.auth.jwt": Rendered(
        "in the header authorization; a token must expire; one second of clock tolerance; a tenant with control "
        "characters gets a 403"
    ),
    "route.auth.external": Rendered("ext_authz over HTTP; only status 200 of the service accepts a request"),
    "proxies.metrics": Rendered(
        "`/metrics` for Prometheus, and nothing else of the admin interface, which must be enabled (`admin`); for an "
        "Envoy under `serve`, use `lbctl bootstrap --proxy-metrics`"
    ),
    "route.auth.basic": Rendered(
        "by the filter for API keys, with the scheme `Basic`, `basic` or `BASIC`; the listener's file contains the "
        "passwords (0600)"
    ),
    "route.headers": Rendered("{pool} in a request is the pool that the split chose, even if the fallback answers"),
    "route.regions": Rendered(),
    "route.access": Rendered(),
    "route.access_log": Rendered(),
    "pool.replicas": Rendered(
        "with least_request the weight is the square of the capacity; in a pool with few slots it is the capacity"
    ),
    "pool.model": Rendered(),
    "pool.protocol.http1": Rendered(),
    "pool.protocol.http2": Rendered(),
    "pool.protocol.grpc": Rendered(),
    "pool.balance.round_robin": Rendered(),
    "pool.balance.least_request": Rendered(
        "the better of two random replicas if all weights are equal; otherwise by weight ÷ (active requests + 1)"
    ),
    "pool.balance.least_time": Unsupported("Envoy does not use response times for load balancing", "least_request"),
    "pool.balance.random": Rendered("if all weights are equal; otherwise round_robin, which keeps the shares"),
    "pool.balance.hash": Rendered(
        "the key is part of the route: if the pools of a split have different keys, the route hashes all of them"
    ),
    "pool.balance.hash.json_body": Rendered(
        "on such a listener, a body is buffered until it is complete if its content type is JSON, a form or text, or "
        "missing"
    ),
    "pool.balance.hash.prompt_prefix": Rendered(
        "hash of `prompt`, otherwise of the JSON content of the first two messages, with the model; a Lua script reads "
        "it, and requests of such a route are buffered until they are complete"
    ),
    "pool.balance.hash.bounded_load": Rendered(
        "by the requests that one worker thread knows: all requests of a burst with the same key may go to one replica"
    ),
    "pool.affinity.header": Rendered(
        "the client's session ends with a dot and a hash of the replica's name, which is removed for the replica. Not "
        "for replicas with a host name, nor on routes with a fallback. `ttl` has no effect"
    ),
    "pool.affinity": Rendered(
        "the cookie contains a hash of the replica's name, and each response renews it; not for replicas with a host "
        "name or on routes with a fallback"
    ),
    "pool.replicas.priority": Rendered("below 70 % of healthy replicas, the next rank takes a share"),
    "pool.replicas.drain": Rendered(),
    "pool.locality": Rendered("by the zone and region of the proxy; below spill_below, the next rank takes a share"),
    "pool.connections.idle": Rendered(),
    "pool.connections.max_requests": Rendered(),
    "pool.timeouts.connect": Rendered(),
    "pool.timeouts.queue": Unsupported(
        "a request that waits for a connection ends only at the route's total timeout",
        "max_pending_requests limits the number of waiting requests; timeouts.request limits their wait",
    ),
    "pool.circuit_breaker": Rendered("requests whose connection is being established count as pending"),
    "pool.circuit_breaker.per_replica": Rendered(
        "HTTP/1.1: the smaller of the two limits; HTTP/2: max_requests streams for each worker thread"
    ),
    "pool.slow_start": Rendered(
        "not with hash, and with random only if weights differ or under `lbctl serve`; from the time at which Envoy "
        "first saw the replica"
    ),
    "pool.health.http": Rendered("the Host header is the pool's name unless `host` is set"),
    "pool.health.http.body": Rendered("within the first 64 KiB"),
    "pool.health.grpc": Rendered(),
    "pool.health.tcp": Rendered(),
    "pool.health.passive.consecutive_5xx": Rendered(),
    "pool.health.passive.connect_failures": Rendered("resets and timeouts before a response count too"),
    "pool.health.passive.error_rate": Rendered("in consecutive windows, per Envoy"),
    "pool.health.passive.ejection": Rendered("in whole windows of error_rate"),
    "pool.health.passive.max_ejection": Rendered(),
    "pool.health.fail_open": Rendered(
        "panic mode below 1 % of healthy replicas: in a pool of more than 100 replicas already before the last one "
        "fails"
    ),
    "pool.load_shedding": Rendered(
        "if all replicas have the same rank; with priorities or locality only if all are down; drained replicas do not "
        "count"
    ),
    "pool.discovery.dns": Rendered(
        "every address of the name, because Envoy has no max_replicas; a removed name (NXDOMAIN), or a name without an "
        "address, empties the pool, but `lbctl serve` keeps the last answer"
    ),
    "pool.discovery.file": Rendered("the content of the file at the time of rendering"),
    "pool.tls": Rendered(
        "without `ca` the certificate is not verified; an IP address is not compared with the certificate: set "
        "server_name; a separate health port is checked without TLS"
    ),
    "pool.tls.client_certificate": Rendered(),
    "pool.credentials": Rendered(
        "by filters after the choice of the host; for checks the key is in the cluster, which is in a separate file or "
        "sent over protected xDS"
    ),
    "pool.upstream": Rendered(
        "by filters after the choice of the host, for each attempt; secrets use SDS, in separate files or over "
        "protected xDS"
    ),
    "fleet": Rendered(),
    "proxies": Rendered(),
    "proxies.form": Unsupported(
        "an Envoy has a single bootstrap file, and gets its listeners by xDS", "`form: fragment` is an error (LB134)"
    ),
    "proxies.include": Rendered("HTTP filters of known types, in front of the router; also for WebSockets"),
    "pool.balance.pick": Rendered(
        "`ext_authz` asks the picker; its answer is used only for hosts of the cluster, and `otherwise` is the policy "
        "for all other requests"
    ),
    "pool.balance.pick.body": Rendered(
        "the first 64 KiB, for which the request waits; not on routes with WebSockets and not with gRPC"
    ),
    **CONTROL_PLANE,
}
