"""Support of open-source nginx for each feature, by version, and the substitute for features without support."""

from __future__ import annotations

from collections.abc import Mapping

from lbctl.targets.target import CONTROL_PLANE, Capability, Rendered, Since, Unsupported

_NO_CHECKS = "nginx has active checks only in its commercial edition"
_BY_CONNECT = (
    "a request that cannot connect is tried on another replica, and a replica with failures is left out for a while "
    "(max_fails); `lbctl serve` does the checks"
)
_DONE = Rendered()
_ACCESS = Rendered("if nginx cannot tell a load balancer from the client (see LB406), the routes answer 503")

_LISTENERS: Mapping[str, Capability] = {
    "listener.bind": _DONE,
    "listener.tls": _DONE,
    "listener.client_certificate": Rendered("clients without a certificate, or with an invalid one, get a 400"),
    "listener.http2": _DONE,
    "listener.h2c": Since(
        (1, 25, 1),
        Unsupported(
            "before 1.25.1 a cleartext address accepts either HTTP/2 or HTTP/1.1, not both",
            "it accepts HTTP/2 if all its routes lead to gRPC pools, otherwise HTTP/1.1",
        ),
    ),
    "listener.client_address": Rendered(
        "from untrusted peers the usual x-forwarded-* headers are removed, one by one; before 1.23 only "
        "x-forwarded-for is accepted; from 1.23 on a header that is sent twice or contains a comma gets a 400"
    ),
    "listener.proxy_protocol": _DONE,
    "listener.max_connections": Rendered("counts connections with a request in progress; idle ones do not count"),
    "listener.max_body": _DONE,
    "listener.headers.max_count": Unsupported(
        "nginx does not count header lines", "any number within max_bytes; versions with a limit stop at 1,000"
    ),
    "listener.headers.max_bytes": Rendered(
        "for the request line and for each header line; twice as much for all of them together"
    ),
    "listener.inspect": Unsupported("nginx's core cannot read JSON", "bodies are not read"),
    "listener.timeouts": _DONE,
    "listener.access": _ACCESS,
    "listener.access_log": Rendered(
        "the path is cut at its first byte that is not ASCII; replica is null if several replicas of a pool have host "
        "names and the same port, or if DNS discovers them"
    ),
    "listener.tracing": Unsupported(
        "the OpenTelemetry module is not part of nginx's core or of Debian's packages",
        "the client's traceparent header is forwarded to the replica",
    ),
    "listener.request_id": Rendered("a trusted peer's id is kept if it is printable ASCII of at most 200 characters"),
}

_ROUTES: Mapping[str, Capability] = {
    "route.match": Rendered("a long path that exceeds the limits of an expression gets a 400"),
    "route.match.model": Rendered(
        "by the header x-model, or the query of a GET, because nginx's core cannot read JSON; a route that bypasses "
        "the protection of a model answers 503"
    ),
    "route.pool": _DONE,
    "route.split": Rendered("in hundredths of a percent"),
    "route.pin.header": _DONE,
    "route.pin.cookie": _DONE,
    "route.sticky_split.cookie": _DONE,
    "route.sticky_split.header": Rendered("by a hash of the header: a change of the split moves some clients"),
    "route.mirror": Rendered(
        "the client's connection is busy until the copy is answered, or silent for 30 s; WebSockets are not copied; a "
        "gRPC call is forwarded after the client has sent everything"
    ),
    "route.fallback": Rendered("after a try on every replica, and only for requests that were not sent to any of them"),
    "route.respond": _DONE,
    "route.redirect": _DONE,
    "route.rewrite": Rendered("400 if the client encodes the prefix differently (for example /a%3Ab for /a:b)"),
    "route.queue_priority": Unsupported("nginx has no queue", "requests are served in order of arrival"),
    "route.websocket": Rendered(
        "on other routes a WebSocket is rejected (400), and an upgrade to another protocol is forwarded as plain HTTP; "
        "a replica that nevertheless answers 101 gets a tunnel to the client"
    ),
    "route.timeouts.request": Unsupported(
        "nginx has no timeout for a whole request", "the idle timeout is at most the request timeout"
    ),
    "route.timeouts.attempt": Unsupported(
        "nginx has one timeout for silence before a response and within it", "the idle timeout is at most the attempt's"
    ),
    "route.timeouts.idle": _DONE,
    "route.retry": Rendered("a POST that was sent is never repeated; a GET may be, within the connect timeout"),
    "route.retry.idempotent": _DONE,
    "route.retry.replica_busy": Rendered(
        "429 and 503 only. After a failed connection, the response of a busy replica is final. Connect failures do not "
        "eject replicas of such a pool. A picked request is retried on the next replicas in the file"
    ),
    "route.retry.budget": Unsupported(
        "nginx does not count retries across requests", "each request has its own number of attempts"
    ),
    "route.retry.backoff": Unsupported("nginx tries the next replica at once", "no pause between attempts"),
    "route.rate_limit": Rendered("whole requests per second or per minute"),
    "route.rate_limit.concurrent": Rendered(
        "such a route also answers 429 if the pool's circuit breaker refuses a request"
    ),
    "route.auth.api_keys": Rendered("keys in plain text; a key that is configured only as a hash is rejected"),
    "route.auth.jwt": Unsupported(
        "nginx verifies JWTs only in its commercial edition", "API keys, or another proxy for this route"
    ),
    "route.auth.external": Rendered("auth_request"),
    "proxies.metrics": Rendered("stub_status: connections and requests of the whole nginx, as `/stub_status`"),
    "route.auth.basic": Rendered("passwords in a separate file (0600), because nginx compares them in plain text"),
    "route.headers": Rendered("the Server and Date headers of a response are nginx's own"),
    "route.regions": _DONE,
    "route.access": _ACCESS,
    "route.access_log": _DONE,
}

_BALANCE: Mapping[str, Capability] = {
    "pool.balance.round_robin": _DONE,
    "pool.balance.least_request": _DONE,
    "pool.balance.least_time": Since(
        (1, 31),
        Unsupported("before 1.31.0 nginx has least_time only in its commercial edition", "least_conn"),
        "not tested with nginx 1.31",
    ),
    "pool.balance.random": _DONE,
    "pool.balance.hash": _DONE,
    "pool.balance.hash.json_body": Unsupported("nginx's core cannot read JSON", "least_conn"),
    "pool.balance.hash.prompt_prefix": Unsupported("nginx's core cannot read JSON", "least_conn"),
    "pool.balance.hash.bounded_load": Unsupported("nginx's consistent hash has no load bound", "plain consistent hash"),
    "pool.affinity.header": Since(
        (1, 29, 6),
        Unsupported(
            "before 1.29.6 nginx does not learn sessions from responses", "every request is balanced independently"
        ),
        "in a table of each nginx, for about 8,000 sessions; not with header names that nginx drops",
    ),
    "pool.affinity": Since(
        (1, 29, 6),
        Unsupported("before 1.29.6 nginx has no sticky sessions", "every request is balanced independently"),
        "the cookie contains a hash of the replica's name, or the MD5 of its address if DNS discovered it",
    ),
}

_HEALTH: Mapping[str, Capability] = {
    "pool.health.http": Unsupported(_NO_CHECKS, _BY_CONNECT),
    "pool.health.http.body": Unsupported(_NO_CHECKS, _BY_CONNECT),
    "pool.health.grpc": Unsupported(_NO_CHECKS, _BY_CONNECT),
    "pool.health.tcp": Unsupported(_NO_CHECKS, _BY_CONNECT),
    "pool.health.passive.consecutive_5xx": Unsupported(
        "nginx counts a response as a failure only if it also repeats the request, which it never does for a POST",
        "failed connections and incomplete responses are counted",
    ),
    "pool.health.passive.connect_failures": Rendered(
        "counted within the ejection time, not in a row, together with requests that the replica aborted; not in a "
        "pool with one replica"
    ),
    "pool.health.passive.error_rate": Unsupported(
        "nginx does not count rates", "failed connections and incomplete responses are counted"
    ),
    "pool.health.passive.ejection": Rendered("in whole seconds"),
    "pool.health.passive.max_ejection": Rendered(
        "all replicas may be ejected, and then all get requests again; with hash and random only the first replicas of "
        "the pool, up to the limit, can be ejected"
    ),
    "pool.health.fail_open": Rendered("`lbctl serve`, which does the checks, then keeps all replicas"),
    "pool.load_shedding": Unsupported("nginx does not know how many replicas are healthy", "503 if no replica is left"),
}

_POOLS: Mapping[str, Capability] = {
    "pool.replicas": _DONE,
    "pool.model": _DONE,
    "pool.protocol.http1": _DONE,
    "pool.protocol.http2": Since(
        (1, 29, 4),
        Unsupported("before 1.29.4 nginx uses HTTP/2 to replicas only for gRPC", "HTTP/1.1"),
    ),
    "pool.protocol.grpc": Rendered(
        "clients need HTTP/2: a listener with TLS, or nginx 1.25.1; for responses of nginx itself the log has 204"
    ),
    "pool.replicas.priority": Rendered("two ranks; with hash and random a lower priority gets no requests"),
    "pool.replicas.drain": _DONE,
    "pool.locality": Rendered(
        "replicas of all other zones together, only if no replica in the proxy's zone is left; not with hash and random"
    ),
    "pool.connections.idle": _DONE,
    "pool.connections.max_requests": _DONE,
    "pool.timeouts.connect": _DONE,
    "pool.timeouts.queue": Unsupported("nginx has no queue", "above its limits it answers 503 at once"),
    "pool.circuit_breaker": Rendered(
        "requests in flight, without requests that reach the pool as fallback; nginx has no queue, so "
        "max_pending_requests and max_retries have no effect"
    ),
    "pool.circuit_breaker.per_replica": _DONE,
    "pool.slow_start": Unsupported(
        "nginx has slow start only in its commercial edition",
        "a new replica gets its full share at once; `lbctl serve` raises its weight in steps",
    ),
    "pool.discovery.dns": Since(
        (1, 27, 3),
        Unsupported("before 1.27.3 nginx resolves names only at start", "the name is resolved at start and reload"),
        "by the configured resolvers, or without any at start; a removed name (NXDOMAIN) empties the pool, but `lbctl "
        "serve` keeps the last answer",
    ),
    "pool.discovery.file": Rendered("the content of the file at the time of rendering"),
    "pool.credentials": Rendered("in the pool's locations; the key is in a separate included file"),
    "pool.upstream": Rendered("in the pool's locations; secrets are in separate included files"),
    "pool.tls": Rendered("one name for all replicas of the pool"),
    "pool.tls.client_certificate": _DONE,
}

_FLEET: Mapping[str, Capability] = {
    "fleet": _DONE,
    "proxies": _DONE,
    "proxies.form": Rendered(
        "within an `http` block: maps, zones, upstreams and servers with unique names and complete settings; settings "
        "that are possible only in the host's main file are reported"
    ),
    "proxies.include": Rendered(
        "in `http` above the servers, in the servers of a listener, in the locations of a route"
    ),
}

CAPABILITIES: Mapping[str, Capability] = {
    **_LISTENERS,
    **_ROUTES,
    **_POOLS,
    **_BALANCE,
    **_HEALTH,
    **_FLEET,
    "pool.balance.pick": Rendered("by `auth_request`, with one upstream for each replica"),
    "pool.balance.pick.body": Rendered("the first 64 KiB of JSON bodies of at most 256 KiB; not with gRPC"),
    **CONTROL_PLANE,
    "pool.drain_deadline": Unsupported(
        "nginx cannot end the requests of a single replica",
        "the replica finishes its requests, at most 30 minutes after a reload; `lbctl serve` removes it after the "
        "deadline",
    ),
}
