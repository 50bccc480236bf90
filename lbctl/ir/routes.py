"""Routes: how a request that a rule has matched is handled. Durations are in milliseconds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

RetryCondition = Literal["connect_failure", "refused_stream", "reset_before_request"]


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
    name: str
    value: str
    pool: str


@dataclass(frozen=True, slots=True)
class StickySplit:
    """A cookie or header that keeps a client in one pool of a split."""

    kind: Literal["cookie", "header"]
    name: str
    ttl: int = 3_600_000


@dataclass(frozen=True, slots=True)
class Mirror:
    """A copy of requests that goes to another pool; its answers are discarded."""

    pool: str
    percent: float = 100.0


@dataclass(frozen=True, slots=True)
class Forward:
    """The request goes to one of the shares' pools: by a pin, otherwise by a weighted choice."""

    shares: tuple[Share, ...]
    pins: tuple[Pin, ...] = ()
    sticky: StickySplit | None = None
    mirror: Mirror | None = None
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


@dataclass(frozen=True, slots=True)
class Redirect:
    """A redirect with 301 (GET, HEAD) or 308 to the same host and path by https."""

    scheme: Literal["https"] = "https"


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Changes to a request before it is forwarded."""

    path_prefix: str | None = None
    """Replaces the matched prefix."""
    host: str | None = None


@dataclass(frozen=True, slots=True)
class Backoff:
    """The pauses between retries; they double from `base` up to `max`."""

    base: int = 25
    max: int = 250


@dataclass(frozen=True, slots=True)
class Retry:
    """When and how often a request is tried again."""

    attempts: int = 2
    """Further tries after the first, each on another replica; 0: none."""
    when: tuple[RetryCondition, ...] = ("connect_failure", "refused_stream", "reset_before_request")
    idempotent: bool = False
    """Whether every request of the route may be repeated safely, POST included."""
    budget: float | None = None
    """Retries as a percentage of requests; None: unlimited."""
    backoff: Backoff = Backoff()


@dataclass(frozen=True, slots=True)
class RateLimit:
    """A limit by rate or by `concurrent` requests, never both."""

    by: Literal["tenant", "client_ip", "header", "all"]
    """What the limit is counted by."""
    header: str = ""
    """The header's name, where `by` is header."""
    requests: int = 0
    per: int = 0
    """The period of the rate: `requests` in each `per`."""
    burst: int = 0
    concurrent: int = 0
    """0 for a rate."""


def retry_after(limits: Iterable[RateLimit]) -> int:
    """Seconds, at least 1, until an empty bucket admits one request, by the slowest of the limits."""
    return max((-(-limit.per // (1000 * limit.requests)) for limit in limits if limit.requests), default=1)


@dataclass(frozen=True, slots=True)
class ApiKeys:
    """API keys that are accepted, from a file."""

    file: str
    header: str = "authorization"


@dataclass(frozen=True, slots=True)
class Jwt:
    """JSON Web Tokens that are accepted."""

    issuer: str
    jwks_file: str
    audiences: tuple[str, ...] = ()
    tenant_claim: str | None = None
    """The claim that names the tenant."""


@dataclass(frozen=True, slots=True)
class Auth:
    """Authentication; with both kinds, either suffices."""

    api_keys: ApiKeys | None = None
    jwt: Jwt | None = None
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
    """With `{pool}` in the place of the pool's name."""
    max_ratio: float
    """The largest value of the new pool, relative to the old one."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """When a rollout step passes or fails."""

    interval: int = 30_000
    min_requests: int = 1000
    max_error_rate: float | None = None
    latency_metric: str | None = None
    latency_percentile: str = "p95"
    latency_ratio: float = 1.2
    """The largest latency of the new pool, relative to the old one."""
    failures: int = 3
    """How many intervals may fail before `on_failure` happens."""
    on_failure: Literal["rollback", "pause"] = "rollback"
    metrics: tuple[AnalysisMetric, ...] = ()
    """By name."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """A stepwise change of a split towards one pool."""

    to: str
    mode: Literal["manual", "timed", "analysis"]
    steps: tuple[RolloutStep, ...]
    analysis: Analysis | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """A route. `action` decides what happens; the other settings apply to `Forward` alone."""

    name: str
    action: Forward | Respond | Redirect
    listeners: tuple[str, ...] = ()
    rewrite: Rewrite | None = None
    queue_priority: Literal["high", "normal", "low"] = "normal"
    websocket: bool = False
    request_timeout: int | None = None
    idle_timeout: int | None = 300_000
    retry: Retry = Retry()
    rate_limits: tuple[RateLimit, ...] = ()
    auth: Auth | None = None
    request_headers: HeaderRules = HeaderRules()
    response_headers: HeaderRules = HeaderRules()
    regions: tuple[str, ...] = ()
    """Only replicas in these regions may answer; empty: any."""
    rollout: Rollout | None = None
