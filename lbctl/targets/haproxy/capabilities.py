"""HAProxy's support for each feature, and substitutes for unsupported features."""

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
    "listener.tls": "HAProxy selects a certificate by the names that it contains. The key is in a file with the "
    "same base name (x.crt and x.key), or in the same file",
    "listener.h2c": "The proxy detects HTTP/2 by the connection preface",
    "listener.client_address": "HAProxy supports a chain of up to four trusted load balancers",
    "listener.max_body": "As of 3.3, a listener with `max_body` accepts only HTTP/1.1. HAProxy buffers a body "
    "without a Content-Length header, such as a gRPC client's stream, until the body is complete, and checks its size "
    "if the body fits into the buffer. The buffer holds 11 KiB of headers and body, or more if bodies are inspected. "
    "A larger body receives a 411 response. If a body is far above the limit, the connection may be reset instead",
    "listener.headers.max_count": "On all listeners, a request that exceeds the limit by more than 50 header lines "
    "receives a 400 response. A response with that many header lines is replaced with a 502 response. A fragment uses "
    "the host's `tune.http.maxhdr` (101 by default)",
    "listener.headers.max_bytes": "A request whose headers exceed the limit by more than 16 KiB receives a 400 "
    "response. A fragment uses the host's `tune.bufsize` (15 KiB by default)",
    "listener.inspect": "The size is a minimum, because HAProxy reads more if it fits into the buffer. For all "
    "listeners of the HAProxy instance, `tune.bufsize` is the sum of `inspect`, `headers.max_bytes` and 16 KiB. The "
    "buffer uses only as much memory as the body fills (see docs/reference/requests.md)",
    "listener.request_id": "The ID sent by a trusted peer is kept if it consists of at most 200 printable ASCII "
    "characters",
    "listener.access_log": "HAProxy writes the log only to /dev/stdout or /dev/stderr",
    "route.match": "HAProxy decodes the path and merges repeated slashes before it matches the path. A request "
    "receives a 400 response if its path contains dot segments, or is too long to match within the limits for regular "
    "expressions",
    "route.match.model": "HAProxy reads the model from the x-model header, otherwise from `model` in a JSON body "
    "(not in a multipart form) without non-ASCII escapes (\\u65e5), and otherwise from the query of a GET "
    "request. If a key is repeated, HAProxy uses the first occurrence. A compressed body receives a 415 response. If "
    "a route's protection depends on the model, a request receives a 400 response unless it names exactly one model. "
    "A request also receives a 400 response if its body is nested more than about a hundred levels deep",
    "route.sticky_split.cookie": "The cookie contains the name of the pool",
    "route.sticky_split.header": "HAProxy selects the pool by a hash of the value, so changing the split moves some "
    "clients to another pool",
    "route.websocket": "On other routes, the request is forwarded as plain HTTP without its upgrade. If a route's "
    "protection depends on the model, a WebSocket receives a 400 response",
    "route.retry": "HAProxy retries immediately on a different replica. The smallest number of retries among a pool's "
    "routes applies to all requests to the pool. A stream that the replica refused is not retried. Before 2.8, if a "
    "replica aborts a later request on a client's connection, that connection ends without a status or a log line, "
    "and an HTTP/2 client may send the request again. After 3.0, a request receives a 502 response without a retry if "
    "the replica refuses an HTTP/2 connection in cleartext",
    "route.retry.idempotent": "Requests are retried only if their body fits into a buffer",
    "route.retry.replica_busy": "Only 503 responses are retried, and only if the request body is at most 64 KiB (in a "
    "fragment, at most the host's tune.bufsize). The request waits until its body is complete or fills a buffer. If "
    "the routes to a pool have different retry conditions, only one of them is used",
    "route.regions": "If the pool also has other replicas, HAProxy uses a separate backend for the replicas in "
    "these regions. Checks and limits apply to this backend separately",
    "route.rate_limit": "HAProxy counts requests in a sliding window of burst ÷ rate. Unlike the token buckets of "
    "nginx and Envoy, the window does not accumulate unused requests. Therefore, HAProxy rejects some requests even "
    "if the client's mean rate is below the limit. If requests arrive at random at two thirds of the rate, HAProxy "
    "rejects 1 % of them with a burst of 20, 0.2 % with 40, and almost none with 80. A route can have at most three "
    "limits",
    "route.rate_limit.concurrent": "A route can have at most three limits, including rate limits",
    "route.rate_limit.prompt_tokens": "The picker enforces the limit. While the picker does not respond, requests are "
    "not limited",
    "route.auth.api_keys": "The keys are stored as hashes in a separate file. With `forward_tenant`, a request with a "
    "body needs a Content-Length header if the replicas use HTTP/1, because trailers could name another tenant. "
    "Otherwise, the request receives a 411 response. This also applies to an HTTP/2 request with an empty body in a "
    "separate frame",
    "proxies.metrics": "The Prometheus exporter, which is included in both the Debian and the official builds, serves "
    "`/metrics`",
    "route.auth.basic": "The passwords are stored as hashes in a separate file. Bodies are subject to the same rules "
    "as with API keys",
    "route.auth.jwt": "A token must have an expiry time, which is checked with no clock tolerance. Only the first 8 "
    "audiences of a token are compared. HAProxy supports RSA and ECDSA keys, and, as of 2.8, PS256, PS384 and PS512. "
    "HAProxy uses a key without `alg` for RS256, or for the algorithm of its curve. A tenant name must be printable "
    "ASCII. A request whose tenant name contains control characters receives a 403 response",
    "pool.balance.least_request": "HAProxy chooses idle replicas regardless of their weight",
    "pool.balance.random": "HAProxy selects a single replica at random by weight",
    "pool.balance.hash.bounded_load": "A failed replica appears idle to the load bound. The number of failed "
    "connections after which HAProxy ejects the replica equals the number of retries per request, but is at least 2. "
    "A connection that fails late is retried after up to 1 s",
    "pool.balance.hash.json_body": "HAProxy reads only the part of the body that fits into `inspect`",
    "pool.balance.hash.prompt_prefix": "The hash covers the model and `prompt`, or the text of the first two "
    "messages if `prompt` is missing",
    "pool.affinity.header": "Each HAProxy instance keeps its own session table, which is lost on restart, and on "
    "reload without the Runtime API",
    "pool.affinity": "The cookie contains a hash of the replica's name. Each response renews the cookie",
    "pool.replicas.priority": "Replicas in a rank are used once no replica in a lower-numbered rank is healthy. With "
    "`locality`, the rules of `locality` apply instead",
    "pool.locality": "Traffic moves in steps. If the healthy share of a rank falls below spill_below, the next rank "
    "receives a share by weight. A replica's limits apply to each step separately, and 5xx responses count towards "
    "ejection only in the nearest step",
    "pool.connections.idle": "With HTTP/1, each request uses a new connection and idle connections are not kept, "
    "unless servers never close them (`unlimited`, or Triton). With HTTP/2, HAProxy closes half of the idle "
    "connections whenever half of the timeout has passed",
    "pool.connections.max_requests": "With HTTP/1, each connection carries a single request",
    "pool.circuit_breaker": "The limits apply to queued and in-flight requests. HAProxy does not limit "
    "concurrent retries",
    "pool.circuit_breaker.per_replica": "Requests above the limit wait in the pool's queue. With HTTP/2, HAProxy "
    "counts requests, not connections",
    "pool.queue": "A waiting request is held in its SPOE query to the picker. If the picker hangs, requests wait "
    "until its health check has failed, and then use `otherwise`. All queries of the listener use the timeout of this "
    "query. After the picker's queue, the request can also wait in HAProxy's own queue (`timeouts.queue`)",
    "pool.health.grpc": "HAProxy notices a status other than SERVING only when the check times out",
    "pool.health.agent": "HAProxy checks `/health` of the agent, and also sends agent checks to the next port. Agent "
    "checks can lower the weight of a replica with a slow GPU and drain a replica. With a `runtime_api`, agent checks "
    "only mark a replica as down. Servers in slots and servers added at run time have no agent checks. With "
    "`agent_check`, HAProxy sends the agent checks to `lbctl serve` instead",
    "pool.health.fail_open": "HAProxy uses a separate backend whose replicas are not checked. Limits apply to this "
    "backend separately",
    "pool.load_shedding": "A drained replica counts as unhealthy",
    "pool.slow_start": "Slow start applies after a replica was down, or was drained in a pool with affinity, but "
    "not when HAProxy starts. The ramp is linear",
    "pool.health.passive.consecutive_5xx": "The check applies only if it is set or if the whole pool can be ejected, "
    "and never to the only replica of a pool, because HAProxy has no max_ejection. Connect failures also count. "
    "Without an active check, the ejection ends after ejection_time. With an active check, the ejection ends after "
    "healthy_threshold successful checks",
    "pool.health.passive.connect_failures": "If consecutive_5xx is set, it limits connect failures and 5xx "
    "responses together",
    "pool.health.passive.max_ejection": "HAProxy has no such limit. Responses eject replicas only if "
    "consecutive_5xx is set, and then all replicas can be ejected at once (LB491). If max_ejection is 100%, "
    "responses eject replicas by default",
    "pool.discovery.dns": "The pool has at most max_replicas replicas, all with the same weight. If the name is "
    "removed (NXDOMAIN), HAProxy keeps the last addresses",
    "pool.discovery.file": "The file is read when the configuration is rendered",
    "pool.tls": "IP addresses are not checked against the certificate, so set server_name. A separate health port is "
    "checked without TLS",
    "pool.credentials": "The credentials are set in the pool's backend. HAProxy looks up the key in a separate file, "
    "for checks too",
    "pool.upstream": "The host, path and secrets are set in the pool's backend. HAProxy looks up secrets in a "
    "separate file",
    "pool.tls.client_certificate": "HAProxy expects the key next to its certificate (x.crt and x.key), or both in one "
    "file",
}

_UNSUPPORTED = {
    "route.auth.external": Unsupported(
        "lbctl cannot configure this for HAProxy yet", "use API keys, users with passwords, or JWT"
    ),
    "listener.tracing": Unsupported(
        "HAProxy does not support OTLP",
        "requests are not traced, but traceparent headers are forwarded unchanged",
    ),
    "route.mirror": Unsupported("HAProxy cannot copy a request", "nothing is mirrored"),
    "route.timeouts.request": Unsupported(
        "HAProxy has no timeout for the whole request, only for pauses",
        "the idle timeout is limited to the request timeout",
    ),
    "route.timeouts.attempt": Unsupported(
        "HAProxy has a single timeout for pauses before and during a response",
        "the idle timeout is limited to the attempt timeout",
    ),
    "route.retry.budget": Unsupported(
        "HAProxy counts retries only per request", "`attempts` limits the retries of each request, without a budget"
    ),
    "route.retry.backoff": Unsupported(
        "HAProxy retries on another replica without a pause", "HAProxy tries the next replica immediately"
    ),
    "pool.balance.least_time": Unsupported(
        "HAProxy does not balance by response time", "HAProxy uses least connections (leastconn)"
    ),
    "pool.health.passive.error_rate": Unsupported(
        "HAProxy counts consecutive errors, not a rate", "HAProxy uses only consecutive_5xx"
    ),
    "pool.health.passive.ejection": Unsupported(
        "HAProxy ends an ejection when checks pass",
        "ejection_time sets the interval between checks if there is no active check",
    ),
}

CAPABILITIES: dict[str, Capability] = {
    **{feature: Rendered() for feature in _RENDERED},
    **{feature: Rendered(note) for feature, note in _NOTES.items()},
    **_UNSUPPORTED,
    "pool.balance.pick": Rendered(
        "HAProxy queries the picker over SPOE and selects the replica with `use-server`. All of a listener's pools "
        "use the longest `pick.timeout`"
    ),
    "pool.balance.pick.body": Rendered("The picker reads at most the first 64 KiB of JSON bodies of POST requests"),
    **CONTROL_PLANE,
    "proxies.slots": Rendered(
        "With a `runtime_api`, slots are servers in maintenance mode. HAProxy adds a new replica under its own name "
        "if its version supports this. If the pool uses a cookie, the replica uses a slot instead. HAProxy must be "
        "reloaded if a replica's priority or locality is new in the pool. In pools with affinity, HAProxy must also "
        "be reloaded for a replica with different TLS settings, and if no slot is free"
    ),
    "proxies.identity": Rendered(
        "The settings apply if HAProxy is started as root. If `config` is below /etc, as in distributions, the "
        "defaults are haproxy, haproxy and /var/lib/haproxy. Otherwise, HAProxy runs as the user that starts it"
    ),
    "proxies.form": Rendered(
        "The fragment is an additional file (`-f`). The fragment contains named defaults and sections with unique "
        "names, but no `global`. Settings that require `global` cause an error (LB135)"
    ),
    "proxies.include": Rendered(
        "Files can be included at the end of `global`, in a listener's frontend before it chooses the backend, and in "
        "a pool's backends"
    ),
    "proxies.weights": Rendered(
        "lbctl uses a `stats socket` owned by HAProxy's user, or an agent check for each replica every 2 s. With agent "
        "checks, the weights in the file are the capacities"
    ),
}
"""Maps each feature ID to its capability, for every feature."""
