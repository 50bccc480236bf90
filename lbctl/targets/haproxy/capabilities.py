"""What HAProxy supports of each feature, and what is rendered where it does not."""

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
    "listener.tls": "HAProxy chooses a certificate by the names in it, and finds its key by its file name: x.crt and "
    "x.key, or one file with both",
    "listener.h2c": "by HTTP/2's preface",
    "listener.client_address": "up to four trusted balancers in a row",
    "listener.max_body": "from 3.3 on such a listener accepts HTTP/1.1 alone; a body without Content-Length, a gRPC "
    "client's stream too, is held until it is whole, and counted if it fits into the buffer: 11 KiB with its headers, "
    "more where bodies are inspected; a longer one is answered 411; a refusal of a body far above the limit can be "
    "lost to a reset",
    "listener.headers.max_count": "a request with over 50 more, and a response with as many, is a 400 or 502 for all "
    "listeners of the HAProxy; a fragment has the host's `tune.http.maxhdr` (101)",
    "listener.headers.max_bytes": "one over 16 KiB larger is a 400; a fragment has the host's `tune.bufsize` (15 KiB)",
    "listener.inspect": "at least: what else fits into the buffer is read too; `tune.bufsize` is this, "
    "`headers.max_bytes` and 16 KiB, for all listeners of the HAProxy; a request takes the memory that its body fills "
    "(docs/reference/requests.md)",
    "listener.request_id": "a trusted peer's id is kept if it is printable ASCII of at most 200 characters",
    "listener.access_log": "to /dev/stdout or /dev/stderr only",
    "route.match": "the path is matched decoded and without repeated slashes; one with dot segments is answered 400, "
    "and so is a long one on which an expression gives up",
    "route.match.model": "x-model, else the `model` of a JSON body (not of a multipart form) without escapes beyond "
    "ASCII (\\u65e5), else the query of a GET; of a repeated key the first one counts; a compressed body is answered "
    "415; where it decides about protection, 400 unless the request names one model clearly, and for bodies nested "
    "more than about a hundred deep",
    "route.sticky_split.cookie": "the cookie holds the pool's name",
    "route.sticky_split.header": "by a hash of the value: a change of the shares moves some clients",
    "route.websocket": "on any other route the request goes on without its upgrade, as plain HTTP; where the model "
    "decides about protection, a WebSocket is answered 400",
    "route.retry": "retries at once, on another replica than the last; a pool has one number, the smallest of its "
    "routes; a stream that the replica refused is not retried; before 2.8, a replica that breaks off a later request "
    "of a client's connection ends that connection without a status or a log line, and an HTTP/2 client may send the "
    "request again; after 3.0, a refused HTTP/2 connection in cleartext is a 502, and no other replica is tried",
    "route.retry.idempotent": "bodies that fit into a buffer",
    "route.retry.replica_busy": "503 alone; bodies up to 64 KiB (a fragment: what the host's tune.bufsize holds), and "
    "the request waits until its body is whole or fills a buffer; of a pool's routes that retry different things one "
    "gets what it asks for",
    "route.regions": "a separate backend with those replicas, where the pool has others too: checks and limits count "
    "there again",
    "route.rate_limit": "a sliding window of burst ÷ rate; three limits a route",
    "route.rate_limit.concurrent": "three limits a route, together with the rates",
    "route.auth.api_keys": "as hashes, in a separate file; with `forward_tenant` a body for replicas of HTTP/1 "
    "needs a Content-Length (else 411; over HTTP/2 also an empty one that has its own end), since trailers could name "
    "another tenant",
    "proxies.metrics": "`/metrics`, by the Prometheus exporter, which Debian's and the official builds have",
    "route.auth.basic": "as hashes, in a separate file; a body as with API keys",
    "route.auth.jwt": "a token must expire; RSA and ECDSA keys, PS256 and its like from 2.8 on; a key without `alg` "
    "verifies RS256 or that of its curve; no tolerance for clocks; the first 8 audiences of a token; a tenant is "
    "printable ASCII, and one with control characters is answered 403",
    "pool.balance.least_request": "idle replicas are chosen without regard to their weight",
    "pool.balance.random": "one draw by weight",
    "pool.balance.hash.bounded_load": "a dead replica looks idle to the bound: it is out after as many failed "
    "connections as a request has retries, at least 2; a connection that fails late is tried again after up to 1 s",
    "pool.balance.hash.json_body": "of what fits into `inspect`",
    "pool.balance.hash.prompt_prefix": "of `prompt`, else of the text of the first two messages, with the model",
    "pool.affinity.header": "in a table of each HAProxy, which a restart, and a reload without the Runtime API, forget",
    "pool.affinity": "the cookie holds a hash of the replica's name; its lifetime starts anew with each answer",
    "pool.replicas.priority": "as soon as none of a lower one is fit; with `locality` as that has it",
    "pool.locality": "by steps: below spill_below of a rank the next one shares by weight; a replica has its limits "
    "once more in each step, and 5xx count for ejection in the nearest alone",
    "pool.connections.idle": "HTTP/1: no idle connection is kept, each request has its own, unless servers close none "
    "(`unlimited`, or Triton); HTTP/2: half of the idle ones are closed every half of it",
    "pool.connections.max_requests": "HTTP/1: each connection carries one request",
    "pool.circuit_breaker": "requests in the queue and in flight; HAProxy has no limit of retries at once",
    "pool.circuit_breaker.per_replica": "more wait in the pool's queue; HTTP/2 connections are not counted, requests "
    "are",
    "pool.health.grpc": "an answer other than SERVING is known at the end of the check's timeout",
    "pool.health.fail_open": "by a separate backend whose replicas are not checked; limits count there again",
    "pool.load_shedding": "a drained replica counts as unfit",
    "pool.slow_start": "after a replica was down, or drained in a pool with affinity; not at HAProxy's start; a "
    "straight ramp",
    "pool.health.passive.consecutive_5xx": "only where it is written or all of the pool may be out, and never at the "
    "only replica of a pool: HAProxy knows no max_ejection; connect failures count as well; back after ejection_time "
    "without an active check, else after healthy_threshold good checks",
    "pool.health.passive.connect_failures": "where consecutive_5xx is written, that is the limit of both together",
    "pool.health.passive.max_ejection": "HAProxy has no such limit: answers eject only where consecutive_5xx is "
    "written, and then all replicas may be out at once (LB491); with 100% they eject by default",
    "pool.discovery.dns": "at most max_replicas, all with the same weight; the last addresses stay while a name is "
    "gone (NXDOMAIN)",
    "pool.discovery.file": "as the file is when it is rendered",
    "pool.tls": "an IP address is not compared with the certificate: give server_name; a separate health port is "
    "checked without TLS",
    "pool.credentials": "in the pool's backend; the key is looked up in a separate file, for checks too",
    "pool.upstream": "in the pool's backend; secrets are looked up in a separate file",
    "pool.tls.client_certificate": "the key beside its certificate, x.crt and x.key, or one file with both",
}

_UNSUPPORTED = {
    "route.auth.external": Unsupported("lbctl does not render it for HAProxy yet", "API keys, users or JWT"),
    "listener.tracing": Unsupported(
        "HAProxy does not speak OTLP",
        "nothing is traced; traceparent headers pass through untouched",
    ),
    "route.mirror": Unsupported("HAProxy cannot copy a request", "nothing is mirrored"),
    "route.timeouts.request": Unsupported(
        "HAProxy has no limit for the whole of a request, only for silence",
        "the idle timeout is at most the request timeout",
    ),
    "route.timeouts.attempt": Unsupported(
        "HAProxy has one limit for silence before an answer and within it", "the idle timeout is at most the attempt's"
    ),
    "route.retry.budget": Unsupported(
        "HAProxy counts retries for one request alone", "`attempts` bounds them; no budget"
    ),
    "route.retry.backoff": Unsupported(
        "HAProxy goes to another replica at once, without a pause", "the next replica is tried at once"
    ),
    "pool.balance.least_time": Unsupported("HAProxy does not choose by response time", "least connections (leastconn)"),
    "pool.health.passive.error_rate": Unsupported(
        "HAProxy counts consecutive errors, no rate", "consecutive_5xx alone"
    ),
    "pool.health.passive.ejection": Unsupported(
        "HAProxy ends an ejection by good checks",
        "ejection_time sets the pace of the checks where there is no active one",
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
        "with a `runtime_api`, as servers in maintenance; a new replica is added under its own name where HAProxy can "
        "do that, and takes a slot where it has a cookie. A reload remains for one of a priority or place that the "
        "pool did not have, and in pools with affinity for one whose TLS differs or for which no slot is free"
    ),
    "proxies.identity": Rendered(
        "where root starts it: haproxy, haproxy and /var/lib/haproxy by default if `config` is below /etc, as the "
        "distributions have it; otherwise it works as whoever starts it"
    ),
    "proxies.form": Rendered(
        "as a further file (`-f`): named defaults and own-named sections, no `global`; what relies on `global` "
        "is an error (LB135)"
    ),
    "proxies.include": Rendered(
        "at the end of `global`, in the frontend of a listener before it chooses the backend, in the backends of a pool"
    ),
    "proxies.weights": Rendered(
        "as a `stats socket` for the user that HAProxy runs as, or as an agent check of each replica every 2 s; with "
        "agents the weights of the file are the capacities"
    ),
}
"""Feature id → capability, for every feature."""
