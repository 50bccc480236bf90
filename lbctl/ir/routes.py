"""Routes: how a request that a rule has matched is handled, and which clients may use it.

Durations are in milliseconds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from lbctl.ir.address import Address
from lbctl.ir.listeners import Listener
from lbctl.ir.pools import Pool

PREFLIGHT = ".OPTIONS"
"""The end of the name of a route that answers CORS preflights for another; no user's name has capitals."""
RetryCondition = Literal["connect_failure", "refused_stream", "reset_before_request", "replica_busy"]


@dataclass(frozen=True, slots=True)
class Share:
    """A pool's part of a split."""

    pool: str
    weight: int
    """A whole number ≥ 0, relative to the other shares; their sum is > 0."""


@dataclass(frozen=True, slots=True)
class Pin:
    """Requests whose header or cookie `name` equals `value` go to `pool`, before the weighted choice."""

    kind: Literal["header", "cookie"]
    """Whether `name` is a header or a cookie."""
    name: str
    """The name of the header or cookie."""
    value: str
    """The value that is compared."""
    pool: str
    """The pool that gets the requests."""


@dataclass(frozen=True, slots=True)
class StickySplit:
    """A cookie or header that keeps a client in one pool of a split."""

    kind: Literal["cookie", "header"]
    """Whether the proxy sets a cookie, or hashes a header of the client's."""
    name: str
    """The name of the cookie or header."""
    ttl: int = 3_600_000
    """How long the client keeps the cookie."""


@dataclass(frozen=True, slots=True)
class Mirror:
    """A copy of requests that goes to another pool; its answers are discarded."""

    pool: str
    """The pool that gets the copies."""
    percent: float = 100.0
    """The part of the requests that is copied, in percent."""


@dataclass(frozen=True, slots=True)
class Forward:
    """The request goes to one of the shares' pools: by a pin, otherwise by a weighted choice."""

    shares: tuple[Share, ...]
    """The split, sorted by pool."""
    pins: tuple[Pin, ...] = ()
    """The pins, in the order in which they are compared."""
    sticky: StickySplit | None = None
    """What keeps a client in one pool of the split; None: nothing does."""
    mirror: Mirror | None = None
    """Where copies of requests go; None: nowhere."""
    fallback: str | None = None
    """The pool that takes requests while the shares' pools have no healthy replica."""
    pools: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """Every pool that may answer a request of this route, sorted (not the mirror's)."""

    def __post_init__(self) -> None:
        fallback = [self.fallback] if self.fallback else []
        names = {share.pool for share in self.shares} | {pin.pool for pin in self.pins} | set(fallback)
        object.__setattr__(self, "pools", tuple(sorted(names)))


@dataclass(frozen=True, slots=True)
class Respond:
    """The proxy itself answers."""

    status: int
    body: str = ""
    content_type: str = "text/plain; charset=utf-8"
    lists_models: bool = False
    """Whether the body is the list of the models of the listener, which `targets.response_bodies` writes."""


@dataclass(frozen=True, slots=True)
class Redirect:
    """A redirect with 301 (GET, HEAD) or 308 to the same host and path by https."""

    scheme: Literal["https"] = "https"
    """The scheme that the client is redirected to."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Changes to a request before it is forwarded."""

    path_prefix: str | None = None
    """Replaces the matched prefix."""
    host: str | None = None
    """The new Host header; None: that of the client."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """The pauses between retries; they double from `base` up to `max`."""

    base: int = 25
    """The first pause."""
    max: int = 250
    """The longest pause."""


@dataclass(frozen=True, slots=True)
class Retry:
    """When and how often a request is tried again."""

    attempts: int = 2
    """Further tries after the first, each on another replica; 0: none."""
    when: tuple[RetryCondition, ...] = ("connect_failure", "refused_stream", "reset_before_request")
    """What must have happened to a try before the request is tried again."""
    busy_statuses: tuple[int, ...] = ()
    """The statuses by which a replica declines a request before it works; empty without `replica_busy`."""
    idempotent: bool = False
    """Whether every request of the route may be repeated safely, POST included."""
    budget: float | None = None
    """Retries as a percentage of requests; None: unlimited."""
    backoff: Backoff = Backoff()
    """The pauses between the tries."""


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class TenantRate:
    """A rate of one tenant, with as many requests at once."""

    tenant: str
    """The tenant's name."""
    requests: int
    """The requests in each `per`."""
    per: int
    """The period of the rate in milliseconds."""


@dataclass(frozen=True, slots=True)
class RateLimit:
    """A limit by rate or by `concurrent` requests, never both."""

    by: Literal["tenant", "client_ip", "header", "all"]
    """What the limit is counted by."""
    header: str = ""
    """The header's name, where `by` is header."""
    requests: int = 0
    """The number of requests in each period; 0 for a limit of concurrent requests."""
    per: int = 0
    """The period of the rate: `requests` in each `per`."""
    burst: int = 0
    """How many requests more are admitted at once."""
    concurrent: int = 0
    """0 for a rate."""
    tenant_rates: tuple[TenantRate, ...] = ()
    """Rates that hold for single tenants instead, sorted; of a rate by tenant alone."""

    @property
    def tenants(self) -> tuple[tuple[str, RateLimit], ...]:
        """Return each tenant with a rate of its own and the limit that holds for it."""
        return tuple(
            (own.tenant, RateLimit("tenant", requests=own.requests, per=own.per, burst=own.requests))
            for own in self.tenant_rates
        )


def retry_after(limits: Iterable[RateLimit]) -> int:
    """Seconds, at least 1, until an empty bucket admits one request, by the slowest of the limits."""
    return max((-(-limit.per // (1000 * limit.requests)) for limit in limits if limit.requests), default=1)


@dataclass(frozen=True, slots=True)
class ApiKeys:
    """API keys that are accepted, from a file."""

    file: str
    """The path of the file with the keys."""
    headers: tuple[str, ...] = ("authorization",)
    """The lower-case names of the headers that may hold the key; the first one that a request has decides."""
    websocket_protocol: bool = False
    """Whether a WebSocket may have the key in Sec-WebSocket-Protocol."""
    realm: str | None = None
    """The realm, where the keys are users with their passwords (HTTP Basic); None: they are keys."""


@dataclass(frozen=True, slots=True)
class Jwt:
    """JSON Web Tokens that are accepted."""

    issuer: str
    """The `iss` that a token must have."""
    jwks_file: str
    """The path of the file with the issuer's public keys."""
    audiences: tuple[str, ...] = ()
    """The `aud` values that are accepted; empty: any."""
    tenant_claim: str | None = None


@dataclass(frozen=True, slots=True)
class External:
    """A service that decides about each request."""

    address: Address
    """Where it listens."""
    path: str
    """The path at which it is asked."""
    timeout: int
    """The longest wait for its answer."""
    send: tuple[str, ...] = ()
    """The lower-case names of the request's headers that it gets, sorted."""
    accept: tuple[str, ...] = ()
    """The lower-case names of its answer's headers that the replica gets, sorted."""
    tenant_header: str | None = None
    """The header that names the tenant; None: none does."""


@dataclass(frozen=True, slots=True)
class Auth:
    """Authentication; with both kinds, either suffices."""

    api_keys: ApiKeys | None = None
    """The API keys; None: none are accepted."""
    jwt: Jwt | None = None
    """The tokens; None: none are accepted."""
    external: External | None = None
    """The service that decides instead; None: none does."""
    forward_tenant: str | None = None
    """The header that passes the tenant to replicas."""
    forward_credentials: bool = False
    """Whether replicas get the client's credentials."""


@dataclass(frozen=True, slots=True)
class HeaderRules:
    """Headers that are set and removed."""

    set: tuple[tuple[str, str], ...] = ()
    """(lower-case name, value), sorted."""
    remove: tuple[str, ...] = ()
    """Lower-case names, sorted."""


@dataclass(frozen=True, slots=True)
class RolloutStep:
    """One step of a rollout: the new pool's share and how long it is held."""

    percent: float
    """The share of the new pool, in percent."""
    hold: int | None = None
    """None: until it is promoted."""


@dataclass(frozen=True, slots=True)
class AnalysisMetric:
    """A PromQL query whose value of the new pool is compared with that of the old one."""

    name: str
    """Its name in reports."""
    source: str
    """URL of a Prometheus API."""
    query: str
    """The PromQL, with `{pool}` in the place of the pool's name."""
    max_ratio: float
    """The largest value of the new pool, relative to the old one."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """When a rollout step passes or fails."""

    interval: int = 30_000
    """The time between two comparisons."""
    min_requests: int = 1000
    """The number of requests of the new pool below which an interval decides nothing."""
    max_error_rate: float | None = None
    """The largest error rate of the new pool, in percent; None: it is not limited."""
    latency_metric: str | None = None
    """The signal whose latency is compared; None: latencies are not compared."""
    latency_percentile: str = "p95"
    """The percentile that is compared."""
    latency_ratio: float = 1.2
    """The largest latency of the new pool, relative to the old one."""
    failures: int = 3
    """How many intervals may fail before `on_failure` happens."""
    on_failure: Literal["rollback", "pause"] = "rollback"
    """What happens then."""
    metrics: tuple[AnalysisMetric, ...] = ()
    """The PromQL metrics that are compared too, by name."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """A stepwise change of a split towards one pool."""

    to: str
    """The pool whose share grows."""
    mode: Literal["manual", "timed", "analysis"]
    """Who or what ends a step."""
    steps: tuple[RolloutStep, ...]
    """The steps, in order."""
    analysis: Analysis | None = None
    """The criteria of the mode `analysis`; None: the defaults."""


@dataclass(frozen=True, slots=True)
class Route:
    """A route. `action` decides what happens; the other settings apply to `Forward`, and `auth` to a list of models."""

    name: str
    """The name, unique in the fleet."""
    action: Forward | Respond | Redirect
    """What the proxy does with a request."""
    listeners: tuple[str, ...] = ()
    """The names of the listeners that have the route; empty: all."""
    rewrite: Rewrite | None = None
    """Changes of path and host; None: there are none."""
    queue_priority: Literal["high", "normal", "low"] = "normal"
    """The rank of its requests while they wait for a replica."""
    websocket: bool = False
    """Whether a client may upgrade to a WebSocket."""
    request_timeout: int | None = None
    """How long a whole request may take; None: unlimited."""
    attempt_timeout: int | None = None
    """How long a try may take until its answer begins; None: as long as the other timeouts let it."""
    idle_timeout: int | None = 300_000
    """How long a request may go on without a byte in either direction; None: unlimited."""
    retry: Retry = Retry()
    """When a request is tried again."""
    rate_limits: tuple[RateLimit, ...] = ()
    allow_from: tuple[str, ...] | None = None
    """The networks of clients that may use it, sorted; None: as the listener says."""
    deny_from: tuple[str, ...] | None = None
    """The networks of clients that are refused, sorted; None: as the listener says."""
    auth: Auth | None = None
    """Who may use it; None: anybody."""
    logged: bool = True
    """Whether its requests are in the access log of the listener."""
    request_headers: HeaderRules = HeaderRules()
    """Changes of the request's headers."""
    response_headers: HeaderRules = HeaderRules()
    """Changes of the response's headers."""
    regions: tuple[str, ...] = ()
    """Only replicas in these regions may answer; empty: any."""
    rollout: Rollout | None = None
    """The rollout of its split; None: there is none."""

    @property
    def needs_credentials(self) -> bool:
        """Whether a request needs the credentials of `auth`: other answers of the proxy itself are for all clients."""
        lists_models = isinstance(self.action, Respond) and self.action.lists_models
        return self.auth is not None and (lists_models or isinstance(self.action, Forward))


@dataclass(frozen=True, slots=True)
class Access:
    """The networks of clients; `deny` comes before `allow`."""

    allow: tuple[str, ...] | None = None
    """The networks whose clients are served; None: every network."""
    deny: tuple[str, ...] = ()
    """The networks whose clients are refused."""

    @property
    def is_limited(self) -> bool:
        """Whether some client is refused."""
        return self.allow is not None or bool(self.deny)

    def of(self, route: Route) -> Access:
        """Return what holds for a route on a listener with these networks."""
        return Access(
            self.allow if route.allow_from is None else route.allow_from,
            self.deny if route.deny_from is None else route.deny_from,
        )


EVERYBODY = Access()
"""No client is refused."""


def access(listener: Listener) -> Access:
    """Return the networks of a listener, which hold for its routes without lists of their own."""
    return Access(listener.allow_from, listener.deny_from)


def busy_statuses(route: Route, pool: Pool) -> tuple[int, ...]:
    """Return the statuses after which a request of `route` goes on to another replica of `pool`.

    A gRPC server declines by the status of gRPC, not of HTTP.
    """
    return route.retry.busy_statuses if route.retry.attempts and pool.protocol != "grpc" else ()


def busy_statuses_of_pool(pool: Pool, routes: Iterable[Route]) -> tuple[int, ...]:
    """Return the statuses by which replicas of `pool` are busy for at least one of the routes, which lead there."""
    return tuple(sorted({status for route in routes for status in busy_statuses(route, pool)}))
