"""Open-source nginx's support for each feature, by version, and substitutes for unsupported features."""

from __future__ import annotations

from collections.abc import Mapping

from lbctl.targets.target import CONTROL_PLANE, Capability, Rendered, Since, Unsupported

_NO_CHECKS = "nginx has active checks only in its commercial edition"
_BY_CONNECT = (
    "nginx retries a request on another replica if it cannot connect, and temporarily avoids a replica with "
    "failures (max_fails); `lbctl serve` runs the checks"
)
_DONE = Rendered()
_ACCESS = Rendered("If nginx cannot distinguish a load balancer from the client (see LB406), the routes return 503")

_LISTENERS: Mapping[str, Capability] = {
    "listener.bind": _DONE,
    "listener.tls": _DONE,
    "listener.client_certificate": Rendered("Clients without a valid certificate receive a 400 response"),
    "listener.http2": _DONE,
    "listener.h2c": Since(
        (1, 25, 1),
        Unsupported(
            "before 1.25.1, a cleartext address accepts either HTTP/2 or HTTP/1.1, but not both",
            "the address accepts HTTP/2 if all its routes lead to gRPC pools, and HTTP/1.1 otherwise",
        ),
    ),
    "listener.client_address": Rendered(
        "nginx removes a fixed list of x-forwarded-* headers from requests of untrusted peers. Before 1.23, only "
        "x-forwarded-for is accepted. From 1.23 on, a request receives a 400 response if another client address "
        "header is sent twice or contains a comma"
    ),
    "listener.proxy_protocol": _DONE,
    "listener.max_connections": Rendered(
        "nginx counts only connections with a request in progress, not idle connections"
    ),
    "listener.max_body": _DONE,
    "listener.headers.max_count": Unsupported(
        "nginx does not count header lines",
        "nginx accepts any number of header lines within max_bytes, or at most 1,000 in nginx versions that have a "
        "limit",
    ),
    "listener.headers.max_bytes": Rendered(
        "The limit applies to the request line and to each header line. All lines together can have up to twice that "
        "size"
    ),
    "listener.inspect": Unsupported("nginx's core cannot read JSON", "nginx does not inspect request bodies"),
    "listener.timeouts": _DONE,
    "listener.access": _ACCESS,
    "listener.access_log": Rendered(
        "The path is truncated at its first non-ASCII byte. `replica` is null if several replicas of a pool have "
        "host names and the same port, or if they are discovered by DNS"
    ),
    "listener.tracing": Unsupported(
        "the OpenTelemetry module is not part of nginx's core or of Debian's packages",
        "the client's traceparent header is forwarded to the replica",
    ),
    "listener.request_id": Rendered(
        "The ID sent by a trusted peer is kept if it consists of at most 200 printable ASCII characters"
    ),
}

_ROUTES: Mapping[str, Capability] = {
    "route.match": Rendered(
        "A request receives a 400 response if its path is too long for the limits of regular expressions"
    ),
    "route.match.model": Rendered(
        "nginx reads the model from the header x-model or from the query of a GET request, because its core cannot "
        "read JSON. A route that bypasses the protection of a model returns 503"
    ),
    "route.pool": _DONE,
    "route.split": Rendered("Shares have a precision of 0.01 %"),
    "route.pin.header": _DONE,
    "route.pin.cookie": _DONE,
    "route.sticky_split.cookie": _DONE,
    "route.sticky_split.header": Rendered(
        "nginx selects the pool by a hash of the header, so changing the split moves some clients to another pool"
    ),
    "route.mirror": Rendered(
        "The client's connection stays busy until the mirror has responded, or has sent nothing for 30 s. WebSockets "
        "are not mirrored. A gRPC call is forwarded only after the client has sent the complete request"
    ),
    "route.fallback": Rendered(
        "The fallback is used after all replicas have been tried, and only for requests that were not sent to any "
        "replica"
    ),
    "route.respond": _DONE,
    "route.redirect": _DONE,
    "route.rewrite": Rendered(
        "A request receives a 400 response if the client encodes the prefix differently (for example /a%3Ab for /a:b)"
    ),
    "route.queue_priority": Rendered(
        "Priorities have an effect only in pools with `queue`, because nginx itself has no queue", in_part=True
    ),
    "route.websocket": Rendered(
        "On other routes, a WebSocket is rejected with a 400 response, and an upgrade to another protocol is "
        "forwarded as plain HTTP. If a replica still returns 101, nginx opens a tunnel to the client"
    ),
    "route.timeouts.request": Unsupported(
        "nginx has no timeout for a whole request", "the idle timeout is limited to the request timeout"
    ),
    "route.timeouts.attempt": Unsupported(
        "nginx has a single timeout for pauses before and during a response",
        "the idle timeout is limited to the attempt timeout",
    ),
    "route.timeouts.idle": _DONE,
    "route.retry": Rendered(
        "nginx never repeats a POST request that was sent. It can repeat a GET request within the connect timeout"
    ),
    "route.retry.idempotent": _DONE,
    "route.retry.replica_busy": Rendered(
        "Only responses with status 429 or 503 are retried. After a failed connection, a busy response is not "
        "retried. Connect failures do not eject replicas of such a pool. A request that the picker assigned is "
        "retried on the next replicas in the file"
    ),
    "route.retry.budget": Unsupported(
        "nginx does not count retries across requests", "nginx limits the attempts of each request separately"
    ),
    "route.retry.backoff": Unsupported("nginx tries the next replica immediately", "nginx retries without a pause"),
    "route.rate_limit": Rendered("Limits are whole numbers of requests per second or per minute"),
    "route.rate_limit.concurrent": Rendered(
        "A route with such a limit also returns 429 if the pool's circuit breaker rejects a request"
    ),
    "route.rate_limit.prompt_tokens": Rendered(
        "The picker enforces the limit. While the picker does not respond, requests are not limited. If nginx drops "
        "the header in `by` because of its name, all requests share one limit"
    ),
    "route.auth.api_keys": Rendered(
        "The keys are stored in plain text. Keys that are configured only as hashes are rejected"
    ),
    "route.auth.jwt": Unsupported(
        "nginx verifies JWTs only in its commercial edition", "use API keys, or another proxy for this route"
    ),
    "route.auth.external": Rendered("nginx calls the service with `auth_request`"),
    "proxies.metrics": Rendered("`/stub_status` reports the connections and requests of the whole nginx instance"),
    "route.auth.basic": Rendered(
        "The passwords are in a separate file (mode 0600), because nginx compares them in plain text"
    ),
    "route.headers": Rendered("nginx sets the Server and Date headers of responses itself"),
    "route.regions": _DONE,
    "route.access": _ACCESS,
    "route.access_log": _DONE,
}

_BALANCE: Mapping[str, Capability] = {
    "pool.balance.round_robin": _DONE,
    "pool.balance.least_request": _DONE,
    "pool.balance.least_time": Since(
        (1, 31),
        Unsupported("before 1.31.0, nginx has least_time only in its commercial edition", "nginx uses least_conn"),
        "This algorithm is not tested with nginx 1.31",
    ),
    "pool.balance.random": _DONE,
    "pool.balance.hash": _DONE,
    "pool.balance.hash.json_body": Unsupported("nginx's core cannot read JSON", "nginx uses least_conn"),
    "pool.balance.hash.prompt_prefix": Unsupported("nginx's core cannot read JSON", "nginx uses least_conn"),
    "pool.balance.hash.bounded_load": Unsupported(
        "nginx has no load bound for consistent hashing", "nginx uses plain consistent hashing"
    ),
    "pool.affinity.header": Since(
        (1, 29, 6),
        Unsupported(
            "before 1.29.6, nginx does not learn sessions from responses", "nginx balances every request independently"
        ),
        "Each nginx instance keeps a separate table of about 8,000 sessions. Header names that nginx drops are not "
        "supported",
    ),
    "pool.affinity": Since(
        (1, 29, 6),
        Unsupported("before 1.29.6, nginx has no sticky sessions", "nginx balances every request independently"),
        "The cookie contains a hash of the replica's name, or the MD5 hash of its address if the replica was "
        "discovered by DNS",
    ),
}

_HEALTH: Mapping[str, Capability] = {
    "pool.health.http": Unsupported(_NO_CHECKS, _BY_CONNECT),
    "pool.health.http.body": Unsupported(_NO_CHECKS, _BY_CONNECT),
    "pool.health.grpc": Unsupported(_NO_CHECKS, _BY_CONNECT),
    "pool.health.tcp": Unsupported(_NO_CHECKS, _BY_CONNECT),
    "pool.health.agent": Unsupported(_NO_CHECKS, _BY_CONNECT),
    "pool.health.passive.consecutive_5xx": Unsupported(
        "nginx counts a response as a failure only if it also retries the request, which it never does for a POST",
        "nginx counts failed connections and incomplete responses",
    ),
    "pool.health.passive.connect_failures": Rendered(
        "nginx counts all failures within the ejection time, even if they are not consecutive, and requests that the "
        "replica aborted. In a pool with a single replica, failures are not counted"
    ),
    "pool.health.passive.error_rate": Unsupported(
        "nginx does not measure error rates", "nginx counts failed connections and incomplete responses"
    ),
    "pool.health.passive.ejection": Rendered("The time is rounded up to whole seconds"),
    "pool.health.passive.max_ejection": Rendered(
        "If all replicas are ejected, all of them receive requests again. With `hash` and `random`, only the first "
        "replicas of the pool, up to the limit, can be ejected"
    ),
    "pool.health.fail_open": Rendered(
        "If all checks fail, `lbctl serve`, which runs the checks, keeps all replicas in use"
    ),
    "pool.load_shedding": Unsupported(
        "nginx cannot determine how many replicas are healthy", "nginx returns 503 if no replica is left"
    ),
}

_POOLS: Mapping[str, Capability] = {
    "pool.replicas": _DONE,
    "pool.model": _DONE,
    "pool.protocol.http1": _DONE,
    "pool.protocol.http2": Since(
        (1, 29, 4),
        Unsupported("before 1.29.4, nginx uses HTTP/2 to replicas only for gRPC", "nginx uses HTTP/1.1"),
    ),
    "pool.protocol.grpc": Rendered(
        "Clients need HTTP/2, which requires a listener with TLS, or nginx 1.25.1. For responses that nginx "
        "generates itself, the access log shows the status 204"
    ),
    "pool.replicas.priority": Rendered(
        "nginx supports two ranks. With `hash` and `random`, replicas with a lower priority receive no requests"
    ),
    "pool.replicas.drain": _DONE,
    "pool.locality": Rendered(
        "If no replica in the proxy's zone is available, nginx distributes requests over the replicas of all other "
        "zones. Locality has no effect with `hash` and `random`"
    ),
    "pool.connections.idle": _DONE,
    "pool.connections.max_requests": _DONE,
    "pool.timeouts.connect": _DONE,
    "pool.timeouts.queue": Unsupported("nginx has no queue", "nginx immediately returns 503 if a limit is reached"),
    "pool.circuit_breaker": Rendered(
        "The limit applies to requests in flight, except requests that reach the pool as a fallback. nginx has no "
        "queue, so max_pending_requests and max_retries have no effect"
    ),
    "pool.circuit_breaker.per_replica": _DONE,
    "pool.queue": Rendered(
        "If a request has to wait, nginx sends the picker a second query, in which the request waits. If the picker "
        "hangs during this query, the request uses `otherwise` after `max_wait`. Headers that nginx drops because of "
        "their names have no effect. lbctl raises the pool's `circuit_breaker` limits by twice `max_requests`, "
        "because nginx also counts waiting requests"
    ),
    "pool.slow_start": Unsupported(
        "nginx has slow start only in its commercial edition",
        "a new replica immediately receives its full share; `lbctl serve` raises its weight in steps",
    ),
    "pool.discovery.dns": Since(
        (1, 27, 3),
        Unsupported(
            "before 1.27.3, nginx resolves names only at start", "nginx resolves the name at start and at each reload"
        ),
        "nginx uses the configured resolvers. Without resolvers, nginx resolves the name only at start. If the name "
        "is removed (NXDOMAIN), the pool becomes empty, but `lbctl serve` keeps the last response",
    ),
    "pool.discovery.file": Rendered("The file is read when the configuration is rendered"),
    "pool.credentials": Rendered(
        "The credentials are set in the pool's locations. The key is in a separate included file"
    ),
    "pool.upstream": Rendered(
        "The host, path and secrets are set in the pool's locations. Secrets are in separate included files"
    ),
    "pool.tls": Rendered("nginx verifies the same name for all replicas of the pool"),
    "pool.tls.client_certificate": _DONE,
}

_FLEET: Mapping[str, Capability] = {
    "fleet": _DONE,
    "proxies": _DONE,
    "proxies.form": Rendered(
        "The fragment belongs in an `http` block. The fragment contains maps, zones, upstreams and servers with "
        "unique names and complete settings. lbctl reports settings that are possible only in the host's main file"
    ),
    "proxies.include": Rendered(
        "Files can be included in `http` before the servers, in the servers of a listener, and in the locations of "
        "a route"
    ),
}

CAPABILITIES: Mapping[str, Capability] = {
    **_LISTENERS,
    **_ROUTES,
    **_POOLS,
    **_BALANCE,
    **_HEALTH,
    **_FLEET,
    "pool.balance.pick": Rendered(
        "nginx queries the picker with `auth_request`, and has one upstream for each replica"
    ),
    "pool.balance.pick.body": Rendered(
        "The picker reads the first 64 KiB of JSON bodies of at most 256 KiB. gRPC is not supported"
    ),
    **CONTROL_PLANE,
    "pool.drain_deadline": Unsupported(
        "nginx cannot end the requests of a single replica",
        "the replica finishes its requests, at most 30 minutes after a reload; `lbctl serve` removes it after the "
        "deadline",
    ),
}
