"""Envoy's support for each feature."""

from __future__ import annotations

from lbctl.targets.target import CONTROL_PLANE, Capability, Rendered, Unsupported

CAPABILITIES: dict[str, Capability] = {
    "listener.bind": Rendered(),
    "listener.tls": Rendered("Envoy has a filter chain for each certificate"),
    "listener.client_certificate": Rendered(),
    "listener.http2": Rendered(),
    "listener.h2c": Rendered("The proxy detects HTTP/2 by the connection preface"),
    "listener.client_address": Rendered(
        "Envoy has one filter chain for the trusted networks, and another for all other peers. A request receives "
        "a 400 response if a client address header other than x-forwarded-for is sent twice or contains a comma"
    ),
    "listener.proxy_protocol": Rendered(),
    "listener.max_connections": Rendered(
        "The limit applies to the whole process, across all worker threads. With `lbctl serve`, connections are "
        "counted separately for each certificate, and for peers inside and outside the trusted networks"
    ),
    "listener.max_body": Rendered(
        "Envoy buffers a request until it is complete, so streams are exempt. Routes with WebSocket and routes to "
        "gRPC pools have no limit"
    ),
    "listener.headers.max_count": Rendered("An HTTP/2 request above the limit is reset without a response"),
    "listener.headers.max_bytes": Rendered(
        "The limit is rounded up to whole KiB. An HTTP/2 request above the limit is reset"
    ),
    "listener.inspect": Rendered(
        "Envoy reads bodies completely, so a body larger than `inspect` and `max_body` receives a 413 response. "
        "Envoy first decompresses bodies in gzip, zstd and br, and the limit applies to the decompressed size"
    ),
    "listener.timeouts": Rendered(
        "When the timeout expires, Envoy announces that it will close the idle connection, and closes it 1 to 2 s later"
    ),
    "listener.access": Rendered(),
    "listener.access_log": Rendered(
        "Envoy writes the log every 10 s, or at the interval set with --file-flush-interval-msec"
    ),
    "listener.tracing": Rendered("Envoy sends traces as OTLP over gRPC"),
    "listener.request_id": Rendered(
        "The ID sent by a trusted peer is kept if it consists of at most 200 printable ASCII characters. A header "
        "with another name contains a copy of x-request-id"
    ),
    "route.match": Rendered("The path is forwarded as it was matched: %2F as /, and %41 as A. The query is unchanged"),
    "route.match.model": Rendered(
        "Envoy reads the model from the header x-model, otherwise from `model` in a JSON body (not in a multipart "
        "form), and otherwise from the query of a GET request. A model in the query is not in the access log. If a "
        "route can match by model, Envoy buffers complete bodies whose content type is JSON, a form, text or missing. "
        "Uploads of other types are not inspected. A body with an encoding other than gzip, zstd or br receives a 415 "
        "response. If a route's protection depends on the model, a request receives a 400 response unless it names "
        "exactly one model"
    ),
    "route.pool": Rendered(),
    "route.split": Rendered(),
    "route.pin.header": Rendered(),
    "route.pin.cookie": Rendered(),
    "route.sticky_split.cookie": Rendered("The cookie contains the name of the pool"),
    "route.sticky_split.header": Rendered(
        "Envoy selects the pool by a hash of the header, so changing the split moves as few clients as possible to "
        "another pool"
    ),
    "route.mirror": Rendered("A slow mirror does not delay requests"),
    "route.fallback": Rendered(
        "A pool with a fallback spills to its next rank only if no replica of the current rank is left. Passive "
        "checks can eject the whole pool, unless max_ejection is set"
    ),
    "route.respond": Rendered(),
    "route.redirect": Rendered(),
    "route.rewrite": Rendered(),
    "route.queue_priority": Rendered(
        "Priorities have an effect only in pools with `queue`. In other pools, requests wait for a replica in order of "
        "arrival",
        in_part=True,
    ),
    "route.websocket": Rendered(
        "On other routes, and if a route's protection depends on the model, a WebSocket receives a 403 response. "
        "Other upgrades are ignored"
    ),
    "route.timeouts.request": Rendered(),
    "route.timeouts.attempt": Rendered("The timeout runs from the end of the request to the beginning of the response"),
    "route.timeouts.idle": Rendered("The timeout expires if no byte is sent in either direction"),
    "route.retry": Rendered(
        "A request longer than 1 MiB is tried only once. If bodies are inspected or limited, the configured size "
        "applies instead of 1 MiB"
    ),
    "route.retry.idempotent": Rendered(),
    "route.retry.replica_busy": Rendered(
        "Envoy retries based on the HTTP status, if the request body is still buffered. Passive checks do not count "
        "busy responses"
    ),
    "route.retry.budget": Rendered(
        "The smallest budget of a pool's routes applies to the whole pool and replaces max_retries. At least 3 "
        "concurrent retries are always allowed"
    ),
    "route.retry.backoff": Rendered(),
    "route.rate_limit": Rendered(
        "Each Envoy instance enforces its part of the limit separately for each listener, certificate and kind of "
        "peer (trusted or not). Envoy counts up to 10,000 distinct values"
    ),
    "route.rate_limit.concurrent": Unsupported(
        "Envoy limits concurrent requests per pool, not per tenant or client",
        "limit the rate, or set circuit_breaker.max_requests",
    ),
    "route.rate_limit.prompt_tokens": Rendered(
        "The picker enforces the limit. While the picker does not respond, requests are not limited"
    ),
    "route.auth.api_keys": Rendered(
        "The keys are stored in plain text. Keys that are configured only as hashes are rejected. The listener is "
        "in a separate file (mode 0600) in the directory of the proxy's `config`. Without `config`, start Envoy in the "
        "directory that contains this file"
    ),
    "route.auth.jwt": Rendered(
        "The token must be in the Authorization header. The token must have an expiry time, which is checked with a "
        "clock tolerance of one second. A request whose tenant name contains control characters receives a 403 response"
    ),
    "route.auth.external": Rendered(
        "Envoy calls the service with ext_authz over HTTP. A request is accepted only if the service returns status 200"
    ),
    "proxies.metrics": Rendered(
        "Envoy serves `/metrics` for Prometheus, and nothing else from its admin interface, which must be enabled "
        "(`admin`). For an Envoy that `serve` manages, use `lbctl bootstrap --proxy-metrics`"
    ),
    "route.auth.basic": Rendered(
        "Envoy uses its filter for API keys, and accepts the scheme `Basic`, `basic` or `BASIC`. The listener's "
        "file contains the passwords (mode 0600)"
    ),
    "route.headers": Rendered("In a request, {pool} is the pool that the split chose, even if the fallback responds"),
    "route.regions": Rendered(),
    "route.access": Rendered(),
    "route.access_log": Rendered(),
    "pool.replicas": Rendered(
        "With least_request, the weight is the square of the capacity, or the capacity itself in a pool with few slots"
    ),
    "pool.model": Rendered(),
    "pool.protocol.http1": Rendered(),
    "pool.protocol.http2": Rendered(),
    "pool.protocol.grpc": Rendered(),
    "pool.balance.round_robin": Rendered(),
    "pool.balance.least_request": Rendered(
        "If all weights are equal, Envoy uses the better of two random replicas. Otherwise, Envoy selects a replica "
        "by weight ÷ (active requests + 1)"
    ),
    "pool.balance.least_time": Unsupported(
        "Envoy does not use response times for load balancing", "Envoy uses least_request"
    ),
    "pool.balance.random": Rendered(
        "Envoy uses this algorithm only if all weights are equal. Otherwise, Envoy uses round_robin, which preserves "
        "the shares"
    ),
    "pool.balance.hash": Rendered(
        "The key is part of the route. If the pools of a split have different keys, the route hashes all of them"
    ),
    "pool.balance.hash.json_body": Rendered(
        "On a listener with such a route, Envoy buffers complete bodies whose content type is JSON, a form, text or "
        "missing"
    ),
    "pool.balance.hash.prompt_prefix": Rendered(
        "The hash covers the model and `prompt`, or the JSON content of the first two messages if there is no "
        "`prompt`. A Lua script reads the body, and Envoy buffers complete requests of such a route"
    ),
    "pool.balance.hash.bounded_load": Rendered(
        "The bound considers only the requests of a single worker thread, so all requests of a burst with the same "
        "key may go to one replica"
    ),
    "pool.affinity.header": Rendered(
        "Envoy appends a dot and a hash of the replica's name to the session ID, and removes them from requests to "
        "the replica. Replicas with a host name and routes with a fallback are not supported. `ttl` has no effect"
    ),
    "pool.affinity": Rendered(
        "The cookie contains a hash of the replica's name, and each response renews it. Replicas with a host name "
        "and routes with a fallback are not supported"
    ),
    "pool.replicas.priority": Rendered("If fewer than 70 % of the replicas are healthy, the next rank takes a share"),
    "pool.replicas.drain": Rendered(),
    "pool.locality": Rendered(
        "Envoy uses the zone and region of the proxy. If the healthy share of a rank falls below spill_below, the "
        "next rank takes a share"
    ),
    "pool.connections.idle": Rendered(),
    "pool.connections.max_requests": Rendered(),
    "pool.timeouts.connect": Rendered(),
    "pool.timeouts.queue": Unsupported(
        "a request that waits for a connection ends only when the route's total timeout expires",
        "max_pending_requests limits the number of waiting requests; timeouts.request limits their wait",
    ),
    "pool.circuit_breaker": Rendered("Requests whose connection is being established count as pending"),
    "pool.circuit_breaker.per_replica": Rendered(
        "With HTTP/1.1, the smaller of the two limits applies. With HTTP/2, each worker thread can have max_requests "
        "streams"
    ),
    "pool.queue": Rendered(
        "If a request has to wait, Envoy sends the picker a second query, in which the request waits. If the picker "
        "hangs during this query, the request uses `otherwise` after `max_wait`"
    ),
    "pool.slow_start": Rendered(
        "Slow start has no effect with hash. With random, slow start has an effect only if weights differ or `lbctl "
        "serve` drives Envoy. Slow start begins when Envoy first sees the replica"
    ),
    "pool.health.http": Rendered("The Host header is the name of the pool unless `host` is set"),
    "pool.health.http.body": Rendered("Envoy searches only the first 64 KiB of the response body"),
    "pool.health.grpc": Rendered(),
    "pool.health.tcp": Rendered(),
    "pool.health.agent": Rendered(
        "Envoy checks `/health` of the agent. Envoy ignores the weight that the agent reports for a slow GPU"
    ),
    "pool.health.passive.consecutive_5xx": Rendered(),
    "pool.health.passive.connect_failures": Rendered("Resets and timeouts before a response also count"),
    "pool.health.passive.error_rate": Rendered("Each Envoy instance measures the rate in consecutive windows"),
    "pool.health.passive.ejection": Rendered("An ejection always lasts for a whole number of error_rate windows"),
    "pool.health.passive.max_ejection": Rendered(),
    "pool.health.fail_open": Rendered(
        "Envoy enters panic mode if fewer than 1 % of the replicas are healthy. In a pool of more than 100 "
        "replicas, this happens before the last replica fails"
    ),
    "pool.load_shedding": Rendered(
        "Envoy sheds load if all replicas have the same rank. With priorities or locality, Envoy sheds load only if "
        "all replicas are down. Drained replicas do not count"
    ),
    "pool.discovery.dns": Rendered(
        "The pool contains every address of the name, because Envoy does not support max_replicas. If the name is "
        "removed (NXDOMAIN) or has no address, the pool becomes empty, but `lbctl serve` keeps the last response"
    ),
    "pool.discovery.file": Rendered("The file is read when the configuration is rendered"),
    "pool.tls": Rendered(
        "Without `ca`, the certificate is not verified. IP addresses are not checked against the certificate, so "
        "set server_name. A separate health port is checked without TLS"
    ),
    "pool.tls.client_certificate": Rendered(),
    "pool.credentials": Rendered(
        "Filters set the credentials after Envoy has selected the host. For checks, the cluster contains the key. The "
        "cluster is in a separate file or is sent over protected xDS"
    ),
    "pool.upstream": Rendered(
        "Filters set the host, path and secrets for each attempt, after Envoy has selected the replica. Envoy "
        "receives secrets by SDS, from separate files or over protected xDS"
    ),
    "fleet": Rendered(),
    "proxies": Rendered(),
    "proxies.form": Unsupported(
        "Envoy has a single bootstrap file and receives its listeners over xDS", "`form: fragment` is an error (LB134)"
    ),
    "proxies.include": Rendered(
        "HTTP filters of known types can be included in front of the router. The filters also apply to WebSockets"
    ),
    "pool.balance.pick": Rendered(
        "`ext_authz` queries the picker. Envoy uses the response only if it names hosts in the cluster, and uses "
        "`otherwise` for all other requests"
    ),
    "pool.balance.pick.body": Rendered(
        "The request waits while the picker reads the first 64 KiB of the body. WebSocket routes and gRPC are "
        "not supported"
    ),
    **CONTROL_PLANE,
}
