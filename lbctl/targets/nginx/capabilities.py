"""What the open-source nginx supports of each feature, from which version, and what is rendered where it does not."""

from __future__ import annotations

from collections.abc import Mapping

from lbctl.targets.target import CONTROL_PLANE, Capability, Rendered, Since, Unsupported

_NO_CHECKS = "nginx has active checks in its commercial edition only"
_BY_CONNECT = (
    "a request that cannot connect is tried on another replica, and one that fails is left out for a "
    "while (max_fails); `lbctl serve` does the checks"
)
_DONE = Rendered()
_ACCESS = Rendered("where nginx takes a balancer for the client (see LB406), the routes answer 503")

_LISTENERS: Mapping[str, Capability] = {
    "listener.bind": _DONE,
    "listener.tls": _DONE,
    "listener.client_certificate": Rendered("who shows none, or a wrong one, is answered 400"),
    "listener.http2": _DONE,
    "listener.h2c": Since(
        (1, 25, 1),
        Unsupported(
            "before 1.25.1 a cleartext address speaks HTTP/2 or HTTP/1.1, never both",
            "it speaks HTTP/2 if all its routes lead to gRPC pools, else HTTP/1.1",
        ),
    ),
    "listener.client_address": Rendered(
        "from strangers the usual x-forwarded-* names are removed, one by one; before 1.23 another header than "
        "x-forwarded-for is not believed, from 1.23 on 400 if it is sent twice or contains a comma"
    ),
    "listener.proxy_protocol": _DONE,
    "listener.max_connections": Rendered("counts connections with a request in progress; idle ones do not count"),
    "listener.max_body": _DONE,
    "listener.headers.max_count": Unsupported(
        "nginx does not count header lines", "any number within max_bytes; versions that count stop at 1,000"
    ),
    "listener.headers.max_bytes": Rendered(
        "for the request line and for each header line; for all of them twice as much"
    ),
    "listener.inspect": Unsupported("nginx's core reads no JSON", "nothing of the body is read"),
    "listener.timeouts": _DONE,
    "listener.access": _ACCESS,
    "listener.access_log": Rendered(
        "a path up to its first byte that is no plain ASCII; replica is null where several of a pool have host names "
        "and the same port, or where DNS discovers them"
    ),
    "listener.tracing": Unsupported(
        "the OpenTelemetry module is no part of nginx's core nor of Debian's packages",
        "the client's traceparent header goes on to the replica",
    ),
    "listener.request_id": Rendered("a trusted peer's id is kept if it is printable ASCII of at most 200 characters"),
}

_ROUTES: Mapping[str, Capability] = {
    "route.match": Rendered("a long path on which an expression gives up is answered 400"),
    "route.match.model": Rendered(
        "by the header x-model, or the query of a GET: nginx's core reads no JSON; a route that leads around the "
        "protection of a model answers 503"
    ),
    "route.pool": _DONE,
    "route.split": Rendered("in hundredths of a percent"),
    "route.pin.header": _DONE,
    "route.pin.cookie": _DONE,
    "route.sticky_split.cookie": _DONE,
    "route.sticky_split.header": Rendered("by a hash of the header: a moved split moves some clients"),
    "route.mirror": Rendered(
        "until the copy is answered, or silent for 30 s, the client's connection serves no other request; WebSockets "
        "are not copied; all that the client of a gRPC call sends is read before the call goes on"
    ),
    "route.fallback": Rendered("after a try on every replica; only a request that none of them got"),
    "route.respond": _DONE,
    "route.redirect": _DONE,
    "route.rewrite": Rendered("400 where the client wrote the prefix in another way (as /a%3Ab for /a:b)"),
    "route.queue_priority": Unsupported("nginx has no queue", "who comes first is served first"),
    "route.websocket": Rendered(
        "on any other route a WebSocket is refused (400), and a request for another protocol goes on as plain HTTP: a "
        "replica that answers it with 101, unasked, gets a tunnel to the client"
    ),
    "route.timeouts.request": Unsupported(
        "nginx knows no limit of a whole request", "the idle timeout is made no longer than it"
    ),
    "route.timeouts.attempt": Unsupported(
        "nginx has one limit for silence before an answer and within it", "the idle timeout is at most the attempt's"
    ),
    "route.timeouts.idle": _DONE,
    "route.retry": Rendered(
        "a POST that was sent is never repeated; a GET may be, within the time that connecting may take"
    ),
    "route.retry.idempotent": _DONE,
    "route.retry.replica_busy": Rendered(
        "429 and 503 alone; where a try cannot connect, the request goes on as others do, and a replica that is busy "
        "then answers it; connect failures leave no replica of such a pool out; a picked request goes on to the "
        "next replicas of the file"
    ),
    "route.retry.budget": Unsupported("nginx counts no retries across requests", "each request has its own attempts"),
    "route.retry.backoff": Unsupported("nginx tries the next replica at once", "no wait between tries"),
    "route.rate_limit": Rendered("whole requests a second or a minute"),
    "route.rate_limit.concurrent": Rendered("such a route answers 429 also where the pool's breaker refuses"),
    "route.auth.api_keys": Rendered("keys in plain text; one of which only the hash is known is refused"),
    "route.auth.jwt": Unsupported(
        "nginx verifies JWTs in its commercial edition only", "API keys, or another proxy for this route"
    ),
    "route.auth.external": Rendered("auth_request"),
    "proxies.metrics": Rendered("stub_status: connections and requests of the whole nginx, as `/stub_status`"),
    "route.auth.basic": Rendered("passwords in a separate file (0600), since nginx compares them in clear text"),
    "route.headers": Rendered("the Server and Date of an answer are nginx's own"),
    "route.regions": _DONE,
    "route.access": _ACCESS,
    "route.access_log": _DONE,
}

_BALANCE: Mapping[str, Capability] = {
    "pool.balance.round_robin": _DONE,
    "pool.balance.least_request": _DONE,
    "pool.balance.least_time": Since(
        (1, 31),
        Unsupported("before 1.31.0 nginx knows no least_time outside its commercial edition", "least_conn"),
        "not tested with nginx 1.31",
    ),
    "pool.balance.random": _DONE,
    "pool.balance.hash": _DONE,
    "pool.balance.hash.json_body": Unsupported("nginx's core reads no JSON", "least_conn"),
    "pool.balance.hash.prompt_prefix": Unsupported("nginx's core reads no JSON", "least_conn"),
    "pool.balance.hash.bounded_load": Unsupported("nginx's consistent hash has no bound", "plain consistent hash"),
    "pool.affinity.header": Since(
        (1, 29, 6),
        Unsupported("before 1.29.6 nginx does not learn sessions from answers", "every request is balanced for itself"),
        "in a table of each nginx, for about 8,000 sessions; not with headers whose names nginx drops",
    ),
    "pool.affinity": Since(
        (1, 29, 6),
        Unsupported("before 1.29.6 nginx knows no sticky sessions", "every request is balanced for itself"),
        "the cookie holds a hash of the replica's name; that of a replica that DNS discovers, the MD5 of its address",
    ),
}

_HEALTH: Mapping[str, Capability] = {
    "pool.health.http": Unsupported(_NO_CHECKS, _BY_CONNECT),
    "pool.health.http.body": Unsupported(_NO_CHECKS, _BY_CONNECT),
    "pool.health.grpc": Unsupported(_NO_CHECKS, _BY_CONNECT),
    "pool.health.tcp": Unsupported(_NO_CHECKS, _BY_CONNECT),
    "pool.health.passive.consecutive_5xx": Unsupported(
        "nginx counts an answer as failure only where it also repeats the request, and a POST never",
        "failed connections and broken answers are counted",
    ),
    "pool.health.passive.connect_failures": Rendered(
        "counted within the ejection time, not in a row, with requests that the replica received and broke off; not in "
        "a pool of one"
    ),
    "pool.health.passive.error_rate": Unsupported(
        "nginx counts no rates", "failed connections and broken answers are counted"
    ),
    "pool.health.passive.ejection": Rendered("in whole seconds"),
    "pool.health.passive.max_ejection": Rendered(
        "all may be left out, and then all serve again; beside hash and random the first of the pool, that many"
    ),
    "pool.health.fail_open": Rendered("`lbctl serve`, which does the checks, then leaves no replica out"),
    "pool.load_shedding": Unsupported("nginx does not know how many replicas are fit", "503 when none is left"),
}

_POOLS: Mapping[str, Capability] = {
    "pool.replicas": _DONE,
    "pool.model": _DONE,
    "pool.protocol.http1": _DONE,
    "pool.protocol.http2": Since(
        (1, 29, 4),
        Unsupported("before 1.29.4 nginx speaks HTTP/2 to replicas for gRPC alone", "HTTP/1.1"),
    ),
    "pool.protocol.grpc": Rendered(
        "clients need HTTP/2: a listener with TLS, or 1.25.1; where nginx itself answers, the log has 204"
    ),
    "pool.replicas.priority": Rendered("two ranks; beside hash and random a lower priority gets nothing"),
    "pool.replicas.drain": _DONE,
    "pool.locality": Rendered(
        "all others together, only when no replica of the own zone is left; not beside hash and random"
    ),
    "pool.connections.idle": _DONE,
    "pool.connections.max_requests": _DONE,
    "pool.timeouts.connect": _DONE,
    "pool.timeouts.queue": Unsupported("nginx has no queue", "beyond its limits it answers 503 at once"),
    "pool.circuit_breaker": Rendered(
        "requests at once, not those that come to the pool as fallback; nothing waits, so max_pending_requests and "
        "max_retries do not count"
    ),
    "pool.circuit_breaker.per_replica": _DONE,
    "pool.slow_start": Unsupported(
        "nginx ramps in its commercial edition only",
        "a new replica gets its whole share at once; `lbctl serve` raises its weight in steps",
    ),
    "pool.discovery.dns": Since(
        (1, 27, 3),
        Unsupported(
            "before 1.27.3 nginx resolves names only when it starts", "the name is resolved at start and reload"
        ),
        "by the resolvers that are named; without them at start; a name that is gone (NXDOMAIN) empties the pool: "
        "`lbctl serve` keeps the last answer",
    ),
    "pool.discovery.file": Rendered("as the file is when it is rendered"),
    "pool.credentials": Rendered("in the pool's locations; the key is in a separate file, which is included"),
    "pool.upstream": Rendered("in the pool's locations; secrets are in separate files, which are included"),
    "pool.tls": Rendered("one name for all replicas of the pool"),
    "pool.tls.client_certificate": _DONE,
}

_FLEET: Mapping[str, Capability] = {
    "fleet": _DONE,
    "proxies": _DONE,
    "proxies.form": Rendered(
        "within an `http` block: own-named maps, zones, upstreams and servers, whose settings are all their own; what "
        "only the host's main file can set is reported"
    ),
    "proxies.include": Rendered(
        "in `http` before the servers, in the servers of a listener, in the locations of a route"
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
    "pool.balance.pick.body": Rendered("of JSON bodies of at most 256 KiB, the first 64 KiB; not with gRPC"),
    **CONTROL_PLANE,
    "pool.drain_deadline": Unsupported(
        "nginx cannot end the requests of one replica alone",
        "it finishes what it has, at most 30 minutes after a reload; `lbctl serve` takes it out after the deadline",
    ),
}
