"""Routes, which determine how a request matched by a rule is handled and which clients may use it.

Durations are in milliseconds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from lbctl.ir.address import Address
from lbctl.ir.listeners import Listener
from lbctl.ir.pools import Pool, TokenLimit

PREFLIGHT = ".OPTIONS"
"""Suffix of a route that answers CORS preflights for another route. User-defined names do not contain capital
letters."""
RetryCondition = Literal["connect_failure", "refused_stream", "reset_before_request", "replica_busy"]


@dataclass(frozen=True, slots=True)
class Share:
    """A pool's share of a split."""

    pool: str
    weight: int
    """Integer of at least 0, relative to the other shares. The sum of all shares is greater than 0."""


@dataclass(frozen=True, slots=True)
class Pin:
    """Requests whose header or cookie `name` equals `value` go to `pool`, before the weighted choice is made."""

    kind: Literal["header", "cookie"]
    """Whether `name` is a header or a cookie."""
    name: str
    value: str
    pool: str


@dataclass(frozen=True, slots=True)
class StickySplit:
    """A cookie or header that keeps a client in one pool of a split."""

    kind: Literal["cookie", "header"]
    """Whether the proxy sets a cookie or hashes one of the client's headers."""
    name: str
    """The name of the cookie or header."""
    ttl: int = 3_600_000
    """Lifetime of the cookie."""


@dataclass(frozen=True, slots=True)
class Mirror:
    """A copy of requests that is sent to another pool. The responses are discarded."""

    pool: str
    percent: float = 100.0
    """Percentage of requests that are copied."""


@dataclass(frozen=True, slots=True)
class Forward:
    """Forwards the request to a pool, chosen by a pin or otherwise by the weights in `shares`."""

    shares: tuple[Share, ...]
    """The split, sorted by pool."""
    pins: tuple[Pin, ...] = ()
    """The pins, in the order in which they are compared."""
    sticky: StickySplit | None = None
    """Keeps a client in one of the split's pools, or None if disabled."""
    mirror: Mirror | None = None
    """Copies of requests that are sent to another pool, or None if disabled."""
    fallback: str | None = None
    """Pool that gets requests while the pools in `shares` have no healthy replica."""
    pools: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """Every pool that may respond to a request on this route, sorted, excluding the mirror's pool."""

    def __post_init__(self) -> None:
        fallback = [self.fallback] if self.fallback else []
        names = {share.pool for share in self.shares} | {pin.pool for pin in self.pins} | set(fallback)
        object.__setattr__(self, "pools", tuple(sorted(names)))


@dataclass(frozen=True, slots=True)
class Respond:
    """A response sent by the proxy itself."""

    status: int
    body: str = ""
    content_type: str = "text/plain; charset=utf-8"
    lists_models: bool = False
    """Whether the body lists the listener's models (see `targets.response_bodies`)."""


@dataclass(frozen=True, slots=True)
class Redirect:
    """A redirect to https, with 301 (GET, HEAD) or 308, that keeps the host and path."""

    scheme: Literal["https"] = "https"
    """Scheme of the redirect."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Changes to a request before it is forwarded."""

    path_prefix: str | None = None
    """Replaces the matched prefix."""
    host: str | None = None
    """New Host header, or None for the client's Host header."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays between retries, which double from `base` up to `max`."""

    base: int = 25
    """The first delay."""
    max: int = 250
    """The longest delay."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Conditions and number of retries."""

    attempts: int = 2
    """Number of retries after the first attempt, each on a different replica. 0 disables retries."""
    when: tuple[RetryCondition, ...] = ("connect_failure", "refused_stream", "reset_before_request")
    """Results of an attempt after which a retry is allowed."""
    busy_statuses: tuple[int, ...] = ()
    """Statuses with which a replica declines a request before processing it. Empty without `replica_busy`."""
    idempotent: bool = False
    """Whether every request on the route, including POST requests, can be repeated safely."""
    budget: float | None = None
    """Retries as a percentage of requests, or None for no limit."""
    backoff: Backoff = Backoff()
    """Delays between attempts."""


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class TenantRate:
    """One tenant's rate, with a burst of the same size."""

    tenant: str
    """The tenant's name."""
    requests: int
    """Number of requests allowed in each `per`."""
    per: int
    """The period of the rate, in milliseconds."""


@dataclass(frozen=True, slots=True)
class RateLimit:
    """A limit by rate or by `concurrent` requests, never both."""

    by: Literal["tenant", "client_ip", "header", "all"]
    """Scope of the limit. Either each tenant, client address or header value is counted separately, or all are counted
    together."""
    header: str = ""
    """The header's name if `by` is header."""
    requests: int = 0
    """Number of requests allowed in each period, or 0 for a limit on concurrent requests."""
    per: int = 0
    """Period of the rate, in milliseconds."""
    burst: int = 0
    """Number of requests above the rate that are admitted at once."""
    concurrent: int = 0
    """Maximum number of concurrent requests, or 0 for a rate."""
    tenant_rates: tuple[TenantRate, ...] = ()
    """Rates that replace this rate for individual tenants, sorted. Used only for rates by tenant."""

    @property
    def tenants(self) -> tuple[tuple[str, RateLimit], ...]:
        """Return each tenant that has a separate rate, with its limit."""
        return tuple(
            (own.tenant, RateLimit("tenant", requests=own.requests, per=own.per, burst=own.requests))
            for own in self.tenant_rates
        )


def retry_after(limits: Iterable[RateLimit]) -> int:
    """Return the seconds (at least 1) until the slowest of the limits admits a request if its bucket is empty."""
    return max((-(-limit.per // (1000 * limit.requests)) for limit in limits if limit.requests), default=1)


@dataclass(frozen=True, slots=True)
class ApiKeys:
    """API keys read from a file."""

    file: str
    """Path of the file that contains the keys."""
    headers: tuple[str, ...] = ("authorization",)
    """Lowercase names of headers that can contain the key. The first one in a request is used."""
    websocket_protocol: bool = False
    """Whether a WebSocket can send the key in Sec-WebSocket-Protocol."""
    realm: str | None = None
    """Realm for HTTP Basic authentication if the keys are users with passwords, or None if the entries are keys."""


@dataclass(frozen=True, slots=True)
class Jwt:
    """Accepted JSON Web Tokens."""

    issuer: str
    """Required `iss` value in a token."""
    jwks_file: str
    """Path of the file that contains the issuer's public keys."""
    audiences: tuple[str, ...] = ()
    """Accepted `aud` values. If empty, any value is accepted."""
    tenant_claim: str | None = None


@dataclass(frozen=True, slots=True)
class External:
    """A service that decides whether each request is allowed."""

    address: Address
    path: str
    """Path of the request to the service."""
    timeout: int
    """Timeout for the service's response."""
    send: tuple[str, ...] = ()
    """Lowercase names of request headers sent to the service, sorted."""
    accept: tuple[str, ...] = ()
    """Lowercase names of the service's response headers that are passed to the replica, sorted."""
    tenant_header: str | None = None
    """Header that contains the tenant, or None if none is used."""


@dataclass(frozen=True, slots=True)
class Auth:
    """Authentication. If both kinds are set, either is sufficient."""

    api_keys: ApiKeys | None = None
    """API key settings. If None, API keys are not accepted."""
    jwt: Jwt | None = None
    """Token settings. If None, tokens are not accepted."""
    external: External | None = None
    """External service that decides instead, or None if none is used."""
    forward_tenant: str | None = None
    """Header that passes the tenant to replicas."""
    forward_credentials: bool = False
    """Whether the client's credentials are passed to replicas."""

    @property
    def names_tenant(self) -> bool:
        """Return whether authenticated requests have a tenant."""
        if self.external is not None:
            return self.external.tenant_header is not None
        return self.api_keys is not None or (self.jwt is not None and bool(self.jwt.tenant_claim))


@dataclass(frozen=True, slots=True)
class HeaderRules:
    """Headers to set and to remove."""

    set: tuple[tuple[str, str], ...] = ()
    """(lowercase name, value) pairs, sorted."""
    remove: tuple[str, ...] = ()
    """Lowercase names, sorted."""


@dataclass(frozen=True, slots=True)
class RolloutStep:
    """One step of a rollout, with the new pool's share and the step's duration."""

    percent: float
    """The new pool's share, in percent."""
    hold: int | None = None
    """Duration of the step. If None, it lasts until it is promoted."""


@dataclass(frozen=True, slots=True)
class AnalysisMetric:
    """A PromQL query that compares the new pool with the old one."""

    name: str
    """The name of the query in reports."""
    source: str
    """URL of a Prometheus API."""
    query: str
    """PromQL with `{pool}` as the placeholder for the pool's name."""
    max_ratio: float
    """Maximum value for the new pool, relative to the old one."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """Pass and fail criteria for a rollout step."""

    interval: int = 30_000
    """Time between two comparisons."""
    min_requests: int = 1000
    """Minimum number of requests to the new pool required for a decision at the end of an interval."""
    max_error_rate: float | None = None
    """The new pool's maximum error rate, in percent, or None for no limit."""
    latency_metric: str | None = None
    """Signal whose latency is compared, or None if latencies are not compared."""
    latency_percentile: str = "p95"
    """The percentile to compare."""
    latency_ratio: float = 1.2
    """The new pool's maximum latency, relative to the old one."""
    failures: int = 3
    """Number of failed intervals that triggers `on_failure`."""
    on_failure: Literal["rollback", "pause"] = "rollback"
    """Action after `failures` failed intervals."""
    metrics: tuple[AnalysisMetric, ...] = ()
    """Additional PromQL metrics to compare, by name."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """A stepwise shift of a split towards one pool."""

    to: str
    """The pool whose share increases."""
    mode: Literal["manual", "timed", "analysis"]
    """How a step ends, which is by an operator, after its duration, or by analysis."""
    steps: tuple[RolloutStep, ...]
    """The steps, in order."""
    analysis: Analysis | None = None
    """Criteria for the `analysis` mode, or None for the defaults."""


@dataclass(frozen=True, slots=True)
class Route:
    """A route. `action` determines how requests are handled.

    All other settings apply to `Forward`. `auth` also applies to a list of models.
    """

    name: str
    """The name, unique in the fleet."""
    action: Forward | Respond | Redirect
    listeners: tuple[str, ...] = ()
    """Names of the listeners that have this route. If empty, all listeners have it."""
    rewrite: Rewrite | None = None
    """Changes to the path and host, or None for no changes."""
    queue_priority: Literal["high", "normal", "low"] = "normal"
    """Priority of the route's requests while they wait for a replica."""
    websocket: bool = False
    """Whether a client can upgrade to a WebSocket."""
    request_timeout: int | None = None
    """Timeout for the whole request, or None for no limit."""
    attempt_timeout: int | None = None
    """Timeout for an attempt until its response begins. If None, only the other timeouts apply."""
    idle_timeout: int | None = 300_000
    """Maximum time without a byte in either direction, or None for no limit."""
    retry: Retry = Retry()
    rate_limits: tuple[RateLimit, ...] = ()
    prompt_limits: tuple[TokenLimit, ...] = ()
    """Limits on prompt tokens, sorted. The picker enforces them, so all of the route's pools must use the picker."""
    allow_from: tuple[str, ...] | None = None
    """Client networks that may use the route, sorted, or None for the listener's networks."""
    deny_from: tuple[str, ...] | None = None
    """Client networks that are rejected, sorted, or None for the listener's networks."""
    auth: Auth | None = None
    """Required authentication. If None, all clients may use the route."""
    logged: bool = True
    """Whether the route's requests appear in the listener's access log."""
    request_headers: HeaderRules = HeaderRules()
    """Changes to the request's headers."""
    response_headers: HeaderRules = HeaderRules()
    """Changes to the response's headers."""
    regions: tuple[str, ...] = ()
    """Regions whose replicas may respond. If empty, all regions are used."""
    rollout: Rollout | None = None
    """Rollout for the route's split, or None if it has none."""

    @property
    def limits_by_tenant(self) -> bool:
        """Whether a limit counts by tenant, so that requests without a tenant are rejected."""
        kinds = (*(limit.by for limit in self.rate_limits), *(limit.by for limit in self.prompt_limits))
        return "tenant" in kinds

    @property
    def needs_credentials(self) -> bool:
        """Whether a request needs the credentials of `auth`.

        All clients can get other responses that the proxy itself sends.
        """
        lists_models = isinstance(self.action, Respond) and self.action.lists_models
        return self.auth is not None and (lists_models or isinstance(self.action, Forward))


@dataclass(frozen=True, slots=True)
class Access:
    """Allowed and denied client networks. `deny` takes precedence over `allow`."""

    allow: tuple[str, ...] | None = None
    """Allowed networks, or None for all networks."""
    deny: tuple[str, ...] = ()

    @property
    def is_limited(self) -> bool:
        """Whether any clients are rejected."""
        return self.allow is not None or bool(self.deny)

    def of(self, route: Route) -> Access:
        """Return the networks that apply to a route on a listener with these networks."""
        return Access(
            self.allow if route.allow_from is None else route.allow_from,
            self.deny if route.deny_from is None else route.deny_from,
        )


EVERYBODY = Access()
"""Network rules that do not reject any clients."""


def access(listener: Listener) -> Access:
    """Return a listener's networks, which apply to its routes unless the routes have their own lists."""
    return Access(listener.allow_from, listener.deny_from)


def busy_statuses(route: Route, pool: Pool) -> tuple[int, ...]:
    """Return the statuses after which a request on `route` is retried on another replica in `pool`.

    A gRPC server declines requests with a gRPC status, not an HTTP status.
    """
    return route.retry.busy_statuses if route.retry.attempts and pool.protocol != "grpc" else ()


def busy_statuses_of_pool(pool: Pool, routes: Iterable[Route]) -> tuple[int, ...]:
    """Return the statuses that indicate a busy replica for at least one of `routes`, all of which lead to `pool`."""
    return tuple(sorted({status for route in routes for status in busy_statuses(route, pool)}))
