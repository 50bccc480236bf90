"""The model's features, each with the YAML keys that use it. The features are the rows of the capability table.

A key pattern is a path with `*` in place of names and without list positions (`routes.*.pin.header`). A pattern covers
all keys below it that a longer pattern does not claim. `=value` restricts a pattern to one value of a scalar. Every key
in the schema belongs to a feature (a test walks the schema), and every target has a `Capability` for every feature
(another test).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Scope = Literal["listener", "route", "pool", "fleet"]


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature of the model, for which every target has a `Capability`."""

    id: str
    """Name used in the tables."""
    title: str
    """Display name."""
    keys: tuple[str, ...]
    """Key patterns that use the feature."""
    code: str
    """LB4xx code of the warning for a proxy that does not support the feature."""
    protects: bool = False
    """Whether the routes that the feature covers return 503 on a proxy that does not support it."""
    neutral: tuple[object, ...] = ()
    """Values of its keys with which the feature is not used, such as false."""

    @property
    def scope(self) -> Scope:
        """The kind of object to which the feature belongs."""
        root = self.keys[0].split(".")[0]
        scopes: dict[str, Scope] = {"listeners": "listener", "routes": "route", "pools": "pool"}
        return scopes.get(root, "fleet")


def _f(
    id_: str, title: str, code: int, *keys: str, protects: bool = False, neutral: tuple[object, ...] = ()
) -> Feature:
    return Feature(id_, title, keys, f"LB{code}", protects, neutral)


def _algorithm(name: str) -> tuple[str, str]:
    """Return the keys that select one of the proxy's own algorithms."""
    return f"pools.*.balance.algorithm={name}", f"pools.*.balance.pick.otherwise={name}"


_LISTENERS = (
    _f("listener.bind", "address and port, or a Unix socket", 401, "listeners.*.bind"),
    _f("listener.tls", "TLS with SNI", 402, "listeners.*.tls"),
    _f(
        "listener.client_certificate",
        "client certificates (mTLS)",
        403,
        "listeners.*.tls.client_ca",
        "listeners.*.tls.client_certificate",
        "listeners.*.tls.client_crl",
        protects=True,
    ),
    _f("listener.http2", "HTTP/2 from clients over TLS", 404, "listeners.*.http2"),
    _f("listener.h2c", "HTTP/2 from clients without TLS", 405, "listeners.*.http2@cleartext"),
    _f(
        "listener.client_address",
        "client address behind another load balancer",
        406,
        "listeners.*.client_address",
    ),
    _f("listener.proxy_protocol", "PROXY protocol", 407, "listeners.*.proxy_protocol", neutral=(False,)),
    _f("listener.max_connections", "connection limit", 408, "listeners.*.max_connections", protects=True),
    _f("listener.max_body", "request body size limit", 409, "listeners.*.max_body", protects=True),
    _f("listener.headers.max_count", "header line count limit", 163, "listeners.*.headers.max_count"),
    _f("listener.headers.max_bytes", "header size limit", 164, "listeners.*.headers"),
    _f("listener.inspect", "amount of the body inspected for routing", 410, "listeners.*.inspect"),
    _f("listener.timeouts", "request header and idle timeouts", 411, "listeners.*.timeouts"),
    _f("listener.access_log", "access log", 412, "listeners.*.access_log"),
    _f("listener.tracing", "OpenTelemetry traces", 413, "listeners.*.tracing"),
    _f("listener.request_id", "request id", 414, "listeners.*.request_id"),
    _f(
        "listener.access",
        "allow and deny lists of client addresses",
        415,
        "listeners.*.allow_from",
        "listeners.*.deny_from",
        protects=True,
    ),
)

_ROUTES = (
    _f("route.match", "matching by host, path, method and header", 420, "routes.*.match", "routes.*.listeners"),
    _f("route.match.model", "matching by the model in the JSON body", 421, "routes.*.match.model", protects=True),
    _f("route.pool", "one pool", 422, "routes.*.pool"),
    _f("route.split", "split by weight", 423, "routes.*.split"),
    _f("route.pin.header", "pin by header", 424, "routes.*.pin"),
    _f("route.pin.cookie", "pin by cookie", 425, "routes.*.pin.cookie"),
    _f("route.sticky_split.cookie", "sticky split by cookie", 426, "routes.*.sticky_split"),
    _f("route.sticky_split.header", "sticky split by header", 427, "routes.*.sticky_split.header"),
    _f("route.mirror", "mirror", 428, "routes.*.mirror"),
    _f("route.fallback", "fallback pool", 429, "routes.*.fallback"),
    _f("route.respond", "fixed response", 430, "routes.*.respond"),
    _f("route.redirect", "redirect to https", 431, "routes.*.respond.redirect"),
    _f("route.rewrite", "path and host rewriting", 432, "routes.*.rewrite"),
    _f("route.queue_priority", "queue priority", 433, "routes.*.queue_priority", neutral=("normal",)),
    _f("route.websocket", "WebSocket", 434, "routes.*.websocket", neutral=(False,)),
    _f("route.timeouts.request", "total timeout", 435, "routes.*.timeouts.request", neutral=("unlimited",)),
    _f("route.timeouts.attempt", "timeout of a single attempt", 158, "routes.*.timeouts.attempt"),
    _f("route.timeouts.idle", "idle timeout", 436, "routes.*.timeouts"),
    _f("route.retry", "retries on another replica", 437, "routes.*.retry"),
    _f(
        "route.retry.idempotent",
        "retry of idempotent requests after a connection reset",
        438,
        "routes.*.retry.idempotent",
        neutral=(False,),
    ),
    _f(
        "route.retry.replica_busy",
        "retry of requests that a busy replica rejected",
        154,
        "routes.*.retry.when=replica_busy",
        "routes.*.retry.busy_statuses",
    ),
    _f("route.retry.budget", "retry budget", 439, "routes.*.retry.budget"),
    _f("route.retry.backoff", "retry backoff", 440, "routes.*.retry.backoff"),
    _f("route.rate_limit", "rate limits", 441, "routes.*.rate_limit", protects=True),
    _f(
        "route.rate_limit.concurrent",
        "limits on concurrent requests",
        442,
        "routes.*.rate_limit.concurrent",
        protects=True,
    ),
    _f(
        "route.rate_limit.prompt_tokens",
        "limits on prompt tokens",
        167,
        "routes.*.rate_limit.prompt_tokens",
        protects=True,
    ),
    _f(
        "route.access",
        "allow and deny lists of client addresses for a route",
        448,
        "routes.*.allow_from",
        "routes.*.deny_from",
        protects=True,
    ),
    _f("route.auth.api_keys", "API keys", 443, "routes.*.auth", protects=True),
    _f("route.auth.basic", "users with passwords (HTTP Basic)", 418, "routes.*.auth.basic", protects=True),
    _f("route.auth.external", "authentication by an external service", 416, "routes.*.auth.external", protects=True),
    _f("route.auth.jwt", "JWT", 444, "routes.*.auth.jwt", protects=True),
    _f("route.access_log", "access log disabled for a route", 449, "routes.*.access_log", neutral=("on",)),
    _f("route.headers", "header rules", 445, "routes.*.headers"),
    _f("route.regions", "data residency", 446, "routes.*.regions", protects=True),
    _f("route.rollout", "rollout", 702, "routes.*.rollout"),
)

_POOLS = (
    _f("pool.replicas", "replicas and their capacity", 450, "pools.*.replicas"),
    _f("pool.model", "model, labels", 451, "pools.*.model", "pools.*.labels", "pools.*.replicas.labels"),
    _f("pool.protocol.http1", "HTTP/1.1 to replicas", 452, "pools.*.protocol"),
    _f("pool.protocol.http2", "HTTP/2 to replicas", 453, "pools.*.protocol=http2"),
    _f("pool.protocol.grpc", "gRPC to replicas", 454, "pools.*.protocol=grpc"),
    _f(
        "pool.balance.round_robin",
        "round robin",
        455,
        "pools.*.balance",
        *_algorithm("round_robin"),
    ),
    _f(
        "pool.balance.least_request",
        "least requests",
        456,
        *_algorithm("least_request"),
    ),
    _f(
        "pool.balance.least_time",
        "least time",
        457,
        *_algorithm("least_time"),
    ),
    _f(
        "pool.balance.random",
        "random",
        458,
        *_algorithm("random"),
    ),
    _f(
        "pool.balance.hash",
        "consistent hash of a header, cookie, query parameter or source address",
        459,
        *_algorithm("hash"),
        "pools.*.balance.hash",
    ),
    _f(
        "pool.balance.hash.json_body",
        "consistent hash of a field of the JSON body",
        460,
        "pools.*.balance.hash.key.json_body",
    ),
    _f(
        "pool.balance.hash.prompt_prefix",
        "consistent hash of the prompt prefix",
        461,
        "pools.*.balance.hash.key.prompt_prefix",
    ),
    _f("pool.balance.hash.bounded_load", "bounded load", 462, "pools.*.balance.hash.bounded_load"),
    _f(
        "pool.balance.pick",
        "the picker chooses a replica for each request",
        492,
        "pools.*.balance.algorithm=pick",
        "pools.*.balance.pick",
        "control.picker",
    ),
    _f(
        "pool.balance.pick.body",
        "the picker chooses a replica based on the request body",
        493,
        "pools.*.balance.pick.session.body",
        "pools.*.balance.pick.prefix",
        neutral=("off",),
    ),
    _f("pool.affinity", "session affinity by cookie", 463, "pools.*.affinity"),
    _f("pool.affinity.header", "session affinity by a response header", 162, "pools.*.affinity.header"),
    _f("pool.replicas.priority", "replica priority", 464, "pools.*.replicas.priority", neutral=(0,)),
    _f("pool.replicas.drain", "drain", 465, "pools.*.replicas.drain", neutral=(False,)),
    _f("pool.drain_deadline", "drain deadline", 466, "pools.*.drain_deadline"),
    _f("pool.locality", "locality: the proxy's zone or region is preferred", 467, "pools.*.locality"),
    _f("pool.connections.idle", "idle timeout of connections to replicas", 468, "pools.*.connections"),
    _f(
        "pool.connections.max_requests",
        "maximum number of requests per connection to a replica",
        469,
        "pools.*.connections.max_requests",
    ),
    _f("pool.timeouts.connect", "connect timeout", 470, "pools.*.timeouts"),
    _f("pool.timeouts.queue", "queue timeout", 471, "pools.*.timeouts.queue"),
    _f("pool.circuit_breaker", "circuit breaker for the pool", 472, "pools.*.circuit_breaker"),
    _f("pool.circuit_breaker.per_replica", "limits per replica", 473, "pools.*.circuit_breaker.per_replica"),
    _f("pool.queue", "fair queue at the picker for requests to full replicas", 166, "pools.*.queue"),
    _f("pool.slow_start", "slow start", 474, "pools.*.slow_start"),
    _f("pool.health.http", "active HTTP check", 475, "pools.*.health.active"),
    _f(
        "pool.health.http.body",
        "active HTTP check of the response body",
        476,
        "pools.*.health.active.http.body_contains",
        neutral=("",),
    ),
    _f("pool.health.grpc", "active gRPC check", 477, "pools.*.health.active.grpc"),
    _f("pool.health.tcp", "active TCP check", 478, "pools.*.health.active.tcp"),
    _f(
        "pool.health.agent",
        "active check of each replica's agent",
        168,
        "pools.*.health.agent",
        "pools.*.replicas.agent_port",
    ),
    _f(
        "pool.health.passive.consecutive_5xx",
        "passive check: consecutive 5xx",
        479,
        "pools.*.health.passive.consecutive_5xx",
    ),
    _f(
        "pool.health.passive.connect_failures",
        "passive check: consecutive connect failures",
        480,
        "pools.*.health.passive",
    ),
    _f("pool.health.passive.error_rate", "passive check: error rate", 481, "pools.*.health.passive.error_rate"),
    _f("pool.health.passive.ejection", "passive check: ejection time", 482, "pools.*.health.passive.ejection_time"),
    _f(
        "pool.health.passive.max_ejection",
        "passive check: maximum share of ejected replicas",
        491,
        "pools.*.health.passive.max_ejection",
        neutral=("100%",),
    ),
    _f("pool.health.deep", "health from telemetry", 483, "pools.*.health.deep"),
    _f(
        "pool.health.fail_open",
        "fail open: the pool is used even if all active checks fail",
        157,
        "pools.*.health.fail_open",
        neutral=(False,),
    ),
    _f("pool.load_shedding", "load shedding", 484, "pools.*.health.load_shedding"),
    _f("pool.telemetry", "telemetry", 485, "pools.*.telemetry", "pools.*.replicas.telemetry"),
    _f("pool.weighting", "live weights", 486, "pools.*.weighting", "pools.*.weighting.strategy", neutral=("static",)),
    _f("pool.discovery.dns", "discovery by DNS", 487, "pools.*.discovery.dns"),
    _f("pool.discovery.file", "discovery by file", 488, "pools.*.discovery.file"),
    _f("pool.discovery.kubernetes", "discovery by Kubernetes", 447, "pools.*.discovery.kubernetes"),
    _f("pool.credentials", "credentials for replicas", 156, "pools.*.credentials"),
    _f("pool.upstream", "hosted APIs: host, path and secrets for a pool", 159, "pools.*.upstream", protects=True),
    _f("pool.tls", "TLS to replicas", 489, "pools.*.tls", protects=True),
    _f(
        "pool.tls.client_certificate",
        "client certificate for connections to replicas",
        490,
        "pools.*.tls.certificate",
        "pools.*.tls.key",
        protects=True,
    ),
)

_FLEET = (
    _f("fleet", "the file itself", 495, "version", "defaults", "gpus"),
    _f("proxies", "the proxies to render for", 496, "proxies", "proxies.*.admin"),
    _f(
        "proxies.identity",
        "user of a proxy started as root",
        419,
        "proxies.*.user",
        "proxies.*.group",
        "proxies.*.chroot",
    ),
    _f("proxies.metrics", "the proxy's own metrics", 417, "proxies.*.metrics"),
    _f(
        "proxies.weights",
        "weights set through HAProxy's Runtime API or agent checks",
        498,
        "proxies.*.runtime_api",
        "proxies.*.agent_check",
    ),
    _f("proxies.form", "fragment for an existing configuration", 137, "proxies.*.form", neutral=("whole",)),
    _f("proxies.include", "included configuration files", 400, "proxies.*.include"),
    _f("proxies.slots", "adding and removing replicas without reloading", 494, "proxies.*.slots"),
    _f(
        "control",
        "the control plane",
        497,
        "control",
        "proxies.*.reload",
        "proxies.*.nodes",
        "proxies.*.node_san",
    ),
)

FEATURES: tuple[Feature, ...] = (*_LISTENERS, *_ROUTES, *_POOLS, *_FLEET)
BY_ID = {feature.id: feature for feature in FEATURES}
