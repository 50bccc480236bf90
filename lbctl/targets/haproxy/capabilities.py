"""Support of HAProxy for each feature, and the substitute for features without support."""

from __future__ import annotations

from lbctl.targets.target import CONTROL_PLANE, Capability, Rendered, Unsupported

_RENDERED = (
    "listener.bind",
    "listener.http2",
    "listener.proxy_protocol",
    "listener.max_connections",
    "listener.timeouts",
    "listener.access",
    "route.pool",
    "route.split",
    "route.pin.header",
    "route.pin.cookie",
    "route.fallback",
    "route.respond",
    "route.redirect",
    "route.rewrite",
    "route.timeouts.idle",
    "route.headers",
    "route.access",
    "route.access_log",
    "pool.replicas",
    "pool.model",
    "pool.protocol.http1",
    "pool.protocol.http2",
    "pool.protocol.grpc",
    "pool.balance.round_robin",
    "pool.balance.hash",
    "pool.timeouts.connect",
    "pool.timeouts.queue",
    "pool.health.http",
    "pool.health.http.body",
    "pool.health.tcp",
    "pool.replicas.drain",
    "fleet",
    "proxies",
    "route.queue_priority",
    "listener.client_certificate",
)

_NOTES = {
    "listener.tls": "HAProxy selects a certificate by the names in it, and finds the key by the file name: x.crt and "
    "x.key, or one file with both",
    "listener.h2c": "detected by the HTTP/2 preface",
    "listener.client_address": "up to four trusted balancers in a row",
    "listener.max_body": "from 3.3 on such a listener accepts only HTTP/1.1; a body without Content-Length, and also a "
    "gRPC client's stream, is buffered until it is complete, and counted if it fits into the buffer: 11 KiB with its "
    "headers, more if bodies are inspected; a longer body gets a 411; if a body is far above the limit, a connection "
    "reset may replace the response",
    "listener.headers.max_count": "on all listeners, a request with over 50 more than this gets a 400, and a response "
    "a 502; a fragment has the host's `tune.http.maxhdr` (101)",
    "listener.headers.max_bytes": "headers that exceed it by over 16 KiB get a 400; a fragment has the host's "
    "`tune.bufsize` (15 KiB)",
    "listener.inspect": "a minimum, because more is read if it fits into the buffer; `tune.bufsize` is the sum of "
    "`inspect`, `headers.max_bytes` and 16 KiB, for all listeners of the HAProxy; a request uses as much memory as its "
    "body fills (docs/reference/requests.md)",
    "listener.request_id": "a trusted peer's id is kept if it is printable ASCII of at most 200 characters",
    "listener.access_log": "only to /dev/stdout or /dev/stderr",
    "route.match": "the path is matched decoded and without repeated slashes; a path with dot segments gets a 400, and "
    "so does a long path that exceeds the limits of an expression",
    "route.match.model": "x-model, otherwise the `model` of a JSON body (not of a multipart form) without non-ASCII "
    "escapes (\\u65e5), otherwise the query of a GET. The first of repeated keys counts. A compressed body gets a 415. "
    "If the model decides about protection, a request gets a 400 unless it names exactly one model. It also gets a 400 "
    "if its body is nested more than about a hundred levels deep",
    "route.sticky_split.cookie": "the cookie contains the pool's name",
    "route.sticky_split.header": "by a hash of the value: a change of the split moves some clients",
    "route.websocket": "on other routes the request is forwarded as plain HTTP, without its upgrade; if the model "
    "decides about protection, a WebSocket gets a 400",
    "route.retry": "retries at once, on another replica than the last. A pool has one number of retries, the smallest "
    "of its routes. A stream that the replica refused is not retried. Before 2.8, if a replica aborts a later request "
    "of a client's connection, that connection ends without a status or a log line, and an HTTP/2 client may send the "
    "request again. After 3.0, a refused HTTP/2 connection in cleartext gets a 502 without a retry",
    "route.retry.idempotent": "bodies that fit into a buffer",
    "route.retry.replica_busy": "503 only; bodies of at most 64 KiB (in a fragment: of the host's tune.bufsize). The "
    "request waits until its body is complete or fills a buffer. If routes of a pool retry on different conditions, "
    "only one gets its setting",
    "route.regions": "a separate backend with those replicas if the pool also has others; checks and limits apply "
    "there separately",
    "route.rate_limit": "a sliding window of burst ÷ rate; at most three limits per route",
    "route.rate_limit.concurrent": "at most three limits per route, including rates",
    "route.auth.api_keys": "as hashes, in a separate file; with `forward_tenant` a body for HTTP/1 replicas needs a "
    "Content-Length, because trailers could name another tenant (otherwise 411; over HTTP/2 also for an empty body in "
    "a separate frame)",
    "proxies.metrics": "`/metrics`, by the Prometheus exporter, which Debian's and the official builds include",
    "route.auth.basic": "as hashes, in a separate file; bodies as with API keys",
    "route.auth.jwt": "a token must expire, without clock tolerance; only its first 8 audiences are compared. RSA and "
    "ECDSA keys, PS256/384/512 from 2.8 on; a key without `alg` verifies RS256 or its curve's algorithm. A tenant is "
    "printable ASCII, and a tenant with control characters gets a 403",
    "pool.balance.least_request": "idle replicas are chosen regardless of their weight",
    "pool.balance.random": "one draw by weight",
    "pool.balance.hash.bounded_load": "a failed replica looks idle to the load bound. It is ejected after as many "
    "failed connections as a request has retries, at least 2. A connection that fails late is retried after up to 1 s",
    "pool.balance.hash.json_body": "the part of the body that fits into `inspect`",
    "pool.balance.hash.prompt_prefix": "hash of `prompt`, otherwise of the text of the first two messages, with the "
    "model",
    "pool.affinity.header": "in a table of each HAProxy, which is lost at a restart, and at a reload without the "
    "Runtime API",
    "pool.affinity": "the cookie contains a hash of the replica's name; its lifetime restarts with each response",
    "pool.replicas.priority": "as soon as no replica with a lower number is healthy; with `locality` by its rules",
    "pool.locality": "in steps: below spill_below of a rank, the next rank takes a share by weight; a replica's limits "
    "apply separately in each step, and 5xx count for ejection only in the nearest one",
    "pool.connections.idle": "HTTP/1: each request has its own connection and idle connections are not kept, unless "
    "servers never close them (`unlimited`, or Triton); HTTP/2: after each half of the time, half of the idle "
    "connections are closed",
    "pool.connections.max_requests": "HTTP/1: each connection carries one request",
    "pool.circuit_breaker": "requests in the queue and in flight; HAProxy has no limit for concurrent retries",
    "pool.circuit_breaker.per_replica": "further requests wait in the pool's queue; for HTTP/2, requests are counted, "
    "not connections",
    "pool.health.grpc": "a status other than SERVING is detected at the end of the check's timeout",
    "pool.health.fail_open": "by a separate backend whose replicas are not checked; limits apply there separately",
    "pool.load_shedding": "a drained replica counts as unhealthy",
    "pool.slow_start": "after a replica was down, or drained in a pool with affinity; not at HAProxy's start; a linear "
    "ramp",
    "pool.health.passive.consecutive_5xx": "only if it is set or the whole pool may be ejected, and never for the only "
    "replica of a pool, because HAProxy has no max_ejection. Connect failures count too. The ejection ends after "
    "ejection_time without an active check, otherwise after healthy_threshold passed checks",
    "pool.health.passive.connect_failures": "if consecutive_5xx is set, it is the limit of both together",
    "pool.health.passive.max_ejection": "HAProxy has no such limit: responses eject only if consecutive_5xx is set, "
    "and then all replicas may be ejected at once (LB491); with 100% they eject by default",
    "pool.discovery.dns": "at most max_replicas, all with the same weight; if the name is removed (NXDOMAIN), the last "
    "addresses stay",
    "pool.discovery.file": "the content of the file at the time of rendering",
    "pool.tls": "an IP address is not compared with the certificate: set server_name; a separate health port is "
    "checked without TLS",
    "pool.credentials": "in the pool's backend; the key is looked up in a separate file, for checks too",
    "pool.upstream": "in the pool's backend; secrets are looked up in a separate file",
    "pool.tls.client_certificate": "the key next to its certificate, x.crt and x.key, or one file with both",
}

_UNSUPPORTED = {
    "route.auth.external": Unsupported("lbctl does not render it for HAProxy yet", "API keys, users or JWT"),
    "listener.tracing": Unsupported(
        "HAProxy does not support OTLP",
        "no tracing; traceparent headers are forwarded unchanged",
    ),
    "route.mirror": Unsupported("HAProxy cannot copy a request", "nothing is mirrored"),
    "route.timeouts.request": Unsupported(
        "HAProxy has no timeout for a whole request, only for silence",
        "the idle timeout is at most the request timeout",
    ),
    "route.timeouts.attempt": Unsupported(
        "HAProxy has one timeout for silence before a response and within it",
        "the idle timeout is at most the attempt's",
    ),
    "route.retry.budget": Unsupported("HAProxy counts retries only per request", "`attempts` limits them; no budget"),
    "route.retry.backoff": Unsupported(
        "HAProxy retries on another replica without a pause", "the next replica is tried at once"
    ),
    "pool.balance.least_time": Unsupported("HAProxy does not choose by response time", "least connections (leastconn)"),
    "pool.health.passive.error_rate": Unsupported(
        "HAProxy counts consecutive errors, not a rate", "consecutive_5xx only"
    ),
    "pool.health.passive.ejection": Unsupported(
        "HAProxy ends an ejection after passed checks",
        "ejection_time sets the interval of the checks if there is no active check",
    ),
}

CAPABILITIES: dict[str, Capability] = {
    **{feature: Rendered() for feature in _RENDERED},
    **{feature: Rendered(note) for feature, note in _NOTES.items()},
    **_UNSUPPORTED,
    "pool.balance.pick": Rendered("by SPOE, which queries the picker, and `use-server`"),
    "pool.balance.pick.body": Rendered("of JSON bodies by POST, at most the first 64 KiB"),
    **CONTROL_PLANE,
    "proxies.slots": Rendered(
        "with a `runtime_api`, as servers in maintenance. A new replica is added under its own name if HAProxy "
        "supports it, and takes a slot if it has a cookie. A reload is needed for a replica with a priority or "
        "locality that is new in the pool. In pools with affinity, it is also needed for a replica with other TLS "
        "settings, and if no slot is free"
    ),
    "proxies.identity": Rendered(
        "if root starts it: haproxy, haproxy and /var/lib/haproxy by default if `config` is below /etc, as in "
        "distributions; otherwise it runs as the user that starts it"
    ),
    "proxies.form": Rendered(
        "as a further file (`-f`): named defaults and sections with unique names, no `global`; settings that need "
        "`global` are an error (LB135)"
    ),
    "proxies.include": Rendered(
        "at the end of `global`, in the frontend of a listener before it chooses the backend, in the backends of a pool"
    ),
    "proxies.weights": Rendered(
        "by a `stats socket` for the user that HAProxy runs as, or by an agent check of each replica every 2 s; with "
        "agents, the weights in the file are the capacities"
    ),
}
"""Feature id → capability, for every feature."""
