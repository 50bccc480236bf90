"""What Envoy can do of each feature of the model."""

from __future__ import annotations

from lbctl.targets.target import CONTROL_PLANE, Capability, Rendered, Unsupported

CAPABILITIES: dict[str, Capability] = {
    "listener.bind": Rendered(),
    "listener.tls": Rendered("a filter chain for each certificate"),
    "listener.client_certificate": Rendered(),
    "listener.http2": Rendered(),
    "listener.h2c": Rendered("told from HTTP/1.1 by its preface"),
    "listener.client_address": Rendered(
        "a filter chain for the trusted networks, another for the rest; 400 if a header other than x-forwarded-for is "
        "sent twice or contains a comma"
    ),
    "listener.proxy_protocol": Rendered(),
    "listener.max_connections": Rendered(
        "for the process, all worker threads together; under `lbctl serve` each certificate, and peers within and "
        "outside the trusted networks, are counted apart"
    ),
    "listener.max_body": Rendered(
        "a request is held until it is whole, so streams are exempt: routes with WebSocket or "
        "to gRPC pools have no limit"
    ),
    "listener.headers.max_count": Rendered("an HTTP/2 request beyond it is reset, without an answer"),
    "listener.headers.max_bytes": Rendered("in KiB, rounded up; an HTTP/2 request beyond it is reset"),
    "listener.inspect": Rendered(
        "bodies are read whole: one of more bytes than `inspect`, or than `max_body` where that is more, is answered "
        "413; gzip, zstd and br are undone first, and count undone"
    ),
    "listener.timeouts": Rendered("an idle connection gets notice when its time is over, and ends 1 to 2 s later"),
    "listener.access": Rendered(),
    "listener.access_log": Rendered("written every 10 s, or at the interval of --file-flush-interval-msec"),
    "listener.tracing": Rendered("OTLP by gRPC"),
    "listener.request_id": Rendered(
        "a trusted peer's id is kept if it is printable ASCII of at most 200 characters; another header name gets a "
        "copy of x-request-id"
    ),
    "route.match": Rendered("the path goes on as it was matched: %2F as /, %41 as A; the query is untouched"),
    "route.match.model": Rendered(
        "x-model, else the `model` of a JSON body (not of a multipart form), else the query of a GET, which the access "
        "log does not show; a body that is JSON, a form or text by its content type, or has none, is held until it is "
        "whole where a route may match by its model; uploads of other types are not looked into; a body with another "
        "coding than gzip, zstd or br is answered 415; where it decides about protection, 400 unless the request names "
        "one model clearly"
    ),
    "route.pool": Rendered(),
    "route.split": Rendered(),
    "route.pin.header": Rendered(),
    "route.pin.cookie": Rendered(),
    "route.sticky_split.cookie": Rendered("the cookie names the pool"),
    "route.sticky_split.header": Rendered("by hash: a changed split moves as few clients as it must"),
    "route.mirror": Rendered("a slow mirror delays no request"),
    "route.fallback": Rendered(
        "a pool with a fallback spills to its next rank only when none of this one is left; passive health may eject "
        "all of it (max_ejection, unless written)"
    ),
    "route.respond": Rendered(),
    "route.redirect": Rendered(),
    "route.rewrite": Rendered(),
    "route.queue_priority": Unsupported(
        "requests wait at a replica in the order in which they came", "all wait as normal ones"
    ),
    "route.websocket": Rendered(
        "a WebSocket on any other route is answered 403, and so is one where the model decides about protection; other "
        "offers of an upgrade are ignored"
    ),
    "route.timeouts.request": Rendered(),
    "route.timeouts.attempt": Rendered("until the answer begins, from when the whole request is sent"),
    "route.timeouts.idle": Rendered("no byte in either direction"),
    "route.retry": Rendered(
        "a request longer than 1 MiB is tried once; where bodies are read or counted, one longer than these limits"
    ),
    "route.retry.idempotent": Rendered(),
    "route.retry.replica_busy": Rendered(
        "by the status of HTTP, as long as a retry's body is kept; the passive checks count no busy answer"
    ),
    "route.retry.budget": Rendered("per pool, the smallest of its routes, instead of max_retries; at least 3 at once"),
    "route.retry.backoff": Rendered(),
    "route.rate_limit": Rendered(
        "for each Envoy its part of the limit, for each listener, certificate and kind of peer (trusted or not) apart; "
        "up to 10,000 values"
    ),
    "route.rate_limit.concurrent": Unsupported(
        "Envoy limits requests at once per pool, not per tenant or client", "a rate, or circuit_breaker.max_requests"
    ),
    "route.auth.api_keys": Rendered(
        "keys in plain text, one of which only the hash is known is refused; the listener is in a separate file "
        "(0600), named by the directory of the proxy's `config`, without that relative to where Envoy is started: "
        "start it there"
    ),
    "route.auth.jwt": Rendered(
        "in the header authorization; a token must expire; one second of tolerance for clocks; one whose tenant has "
        "control characters is answered 403"
    ),
    "route.auth.external": Rendered("ext_authz over HTTP; of the statuses of the service only 200 lets a request in"),
    "proxies.metrics": Rendered(
        "`/metrics` for Prometheus, and nothing else of the admin interface, which must be there (`admin`); an "
        "Envoy under `serve` has it by `lbctl bootstrap --proxy-metrics`"
    ),
    "route.auth.basic": Rendered(
        "with API keys' filter: `Basic`, `basic` and `BASIC` as the scheme; the listener holds the passwords (0600)"
    ),
    "route.headers": Rendered("{pool} in a request is the pool that was drawn, also where the fallback serves"),
    "route.regions": Rendered(),
    "route.access": Rendered(),
    "route.access_log": Rendered(),
    "pool.replicas": Rendered(
        "with least_request the weight is the square of the capacity; in a pool with few slots the capacity"
    ),
    "pool.model": Rendered(),
    "pool.protocol.http1": Rendered(),
    "pool.protocol.http2": Rendered(),
    "pool.protocol.grpc": Rendered(),
    "pool.balance.round_robin": Rendered(),
    "pool.balance.least_request": Rendered(
        "the better of two where all weights are equal; else by weight ÷ (active requests + 1)"
    ),
    "pool.balance.least_time": Unsupported("Envoy measures no response times for balancing", "least_request"),
    "pool.balance.random": Rendered("among equals; where weights differ round_robin keeps the shares"),
    "pool.balance.hash": Rendered("the key is part of the route: a split over several keys uses them together"),
    "pool.balance.hash.json_body": Rendered(
        "a body that is JSON, a form or text by its content type, or has none, is held on such a listener until it is "
        "whole"
    ),
    "pool.balance.hash.prompt_prefix": Rendered(
        "of `prompt`, else of the content of the first two messages, as JSON writes it, with the model; a Lua script "
        "reads it, and a request of such a route is held until it is whole"
    ),
    "pool.balance.hash.bounded_load": Rendered(
        "by the requests that one worker thread knows: in a burst within one turn all of one key may go to one replica"
    ),
    "pool.affinity.header": Rendered(
        "the client's session ends with a dot and a hash of the replica's name, which the replica does not see; not "
        "with replicas that have a host name, nor on routes with a fallback; `ttl` has no effect"
    ),
    "pool.affinity": Rendered(
        "the cookie holds a hash of the replica's name, and lives on with each answer; not with replicas that have a "
        "host name, nor on routes with a fallback"
    ),
    "pool.replicas.priority": Rendered("below 70 % of fit replicas the next rank takes a part"),
    "pool.replicas.drain": Rendered(),
    "pool.locality": Rendered("by the zone and region of the proxy; below spill_below the next rank takes a part"),
    "pool.connections.idle": Rendered(),
    "pool.connections.max_requests": Rendered(),
    "pool.timeouts.connect": Rendered(),
    "pool.timeouts.queue": Unsupported(
        "a request that waits for a connection is ended by the route's total timeout alone",
        "max_pending_requests bounds how many wait; timeouts.request bounds how long",
    ),
    "pool.circuit_breaker": Rendered("requests whose connection is still being opened count as waiting"),
    "pool.circuit_breaker.per_replica": Rendered(
        "HTTP/1.1: the smaller of the two limits; HTTP/2: max_requests streams for each worker thread"
    ),
    "pool.slow_start": Rendered(
        "not with hash, nor random unless weights differ or `lbctl serve` drives it; from when Envoy first saw the "
        "replica"
    ),
    "pool.health.http": Rendered("host: the pool's name, unless one is given"),
    "pool.health.http.body": Rendered("within the first 64 KiB"),
    "pool.health.grpc": Rendered(),
    "pool.health.tcp": Rendered(),
    "pool.health.passive.consecutive_5xx": Rendered(),
    "pool.health.passive.connect_failures": Rendered("resets and timeouts before an answer count too"),
    "pool.health.passive.error_rate": Rendered("in windows that follow each other, per Envoy"),
    "pool.health.passive.ejection": Rendered("in whole windows of error_rate"),
    "pool.health.passive.max_ejection": Rendered(),
    "pool.health.fail_open": Rendered(
        "as panic below 1 % of healthy replicas: in a pool of more than 100 before the last one fails"
    ),
    "pool.load_shedding": Rendered(
        "where all replicas have one rank; with priorities or locality not before all are down; a drained replica "
        "does not count"
    ),
    "pool.discovery.dns": Rendered(
        "every address of the name; Envoy knows no max_replicas; a name that is gone (NXDOMAIN) or has no address "
        "empties the pool: `lbctl serve` keeps the last answer"
    ),
    "pool.discovery.file": Rendered("as the file is when it is rendered"),
    "pool.tls": Rendered(
        "without `ca` nothing is verified; an IP address is not compared with the certificate: give server_name; a "
        "separate health port is checked without TLS"
    ),
    "pool.tls.client_certificate": Rendered(),
    "pool.credentials": Rendered(
        "by filters behind the choice of the host; a check has the key in its cluster, which files hold apart and "
        "protected xDS sends"
    ),
    "pool.upstream": Rendered(
        "by filters behind the choice of the host, for each attempt; secrets come by SDS, in separate files or "
        "over protected xDS"
    ),
    "fleet": Rendered(),
    "proxies": Rendered(),
    "proxies.form": Unsupported(
        "an Envoy has one bootstrap, and gets its listeners by xDS", "`form: fragment` is an error (LB134)"
    ),
    "proxies.include": Rendered("HTTP filters, each of a known type, before the router; also for WebSockets"),
    "pool.balance.pick": Rendered(
        "`ext_authz` asks the picker; its answer counts for hosts of the cluster alone, and `otherwise` is the policy "
        "for all other requests"
    ),
    "pool.balance.pick.body": Rendered(
        "the first 64 KiB, which are held until they are there; not on routes with WebSockets and not with gRPC"
    ),
    **CONTROL_PLANE,
}
