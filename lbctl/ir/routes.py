"""What happens to a request that a rule has matched."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

RetryCondition = Literal["connect_failure", "refused_stream", "reset_before_request"]


@dataclass(frozen=True, slots=True)
class Share:
    """A pool's part of a split; weights are relative whole numbers ≥ 0, their sum is > 0."""

    pool: str
    weight: int


@dataclass(frozen=True, slots=True)
class Pin:
    """A request whose header or cookie `name` equals `value` goes to `pool`, before the draw."""

    kind: Literal["header", "cookie"]
    name: str
    value: str
    pool: str


@dataclass(frozen=True, slots=True)
class StickySplit:
    kind: Literal["cookie", "header"]
    name: str
    ttl: int = 3_600_000


@dataclass(frozen=True, slots=True)
class Mirror:
    pool: str
    percent: float = 100.0


@dataclass(frozen=True, slots=True)
class Forward:
    """The request goes to one of the shares' pools: pins first, then the draw."""

    shares: tuple[Share, ...]
    pins: tuple[Pin, ...] = ()
    sticky: StickySplit | None = None
    mirror: Mirror | None = None
    fallback: str | None = None
    pools: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """Every pool that a request of this route may reach, sorted (the mirror's not)."""

    def __post_init__(self) -> None:
        extra = [self.fallback] if self.fallback else []
        found = {share.pool for share in self.shares} | {pin.pool for pin in self.pins} | set(extra)
        object.__setattr__(self, "pools", tuple(sorted(found)))


@dataclass(frozen=True, slots=True)
class Respond:
    """The proxy answers by itself."""

    status: int
    body: str = ""
    content_type: str = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Redirect:
    """301 (GET, HEAD) or 308 to the same host and path by https."""

    scheme: Literal["https"] = "https"


@dataclass(frozen=True, slots=True)
class Rewrite:
    path_prefix: str | None = None
    """Replaces the matched prefix."""
    host: str | None = None


@dataclass(frozen=True, slots=True)
class Backoff:
    base: int = 25
    max: int = 250


@dataclass(frozen=True, slots=True)
class Retry:
    attempts: int = 2
    """Further tries after the first, each on another replica; 0: none."""
    when: tuple[RetryCondition, ...] = ("connect_failure", "refused_stream", "reset_before_request")
    idempotent: bool = False
    budget: float | None = None
    backoff: Backoff = Backoff()


@dataclass(frozen=True, slots=True)
class RateLimit:
    """`by` is tenant, client_ip, all, or header (then `header` names it). Either a rate or `concurrent`."""

    by: Literal["tenant", "client_ip", "header", "all"]
    header: str = ""
    requests: int = 0
    per: int = 0
    """The rate's period in ms: `requests` in each `per`."""
    burst: int = 0
    concurrent: int = 0


def retry_after(limits: Iterable[RateLimit]) -> int:
    """Seconds, at least 1, until a bucket that is empty lets one request through, by the slowest of the limits."""
    return max((-(-item.per // (1000 * item.requests)) for item in limits if item.requests), default=1)


@dataclass(frozen=True, slots=True)
class ApiKeys:
    file: str
    header: str = "authorization"


@dataclass(frozen=True, slots=True)
class Jwt:
    issuer: str
    jwks_file: str
    audiences: tuple[str, ...] = ()
    tenant_claim: str | None = None


@dataclass(frozen=True, slots=True)
class Auth:
    """With both, either suffices."""

    api_keys: ApiKeys | None = None
    jwt: Jwt | None = None
    forward_tenant: str | None = None
    forward_credentials: bool = False


@dataclass(frozen=True, slots=True)
class HeaderRules:
    """`set`: (lower-case name, value); `remove`: names; both sorted."""

    set: tuple[tuple[str, str], ...] = ()
    remove: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RolloutStep:
    percent: float
    hold: int | None = None


@dataclass(frozen=True, slots=True)
class Analysis:
    interval: int = 30_000
    min_requests: int = 1000
    max_error_rate: float | None = None
    latency_metric: str | None = None
    latency_percentile: str = "p95"
    latency_ratio: float = 1.2
    failures: int = 3
    on_failure: Literal["rollback", "pause"] = "rollback"


@dataclass(frozen=True, slots=True)
class Rollout:
    to: str
    mode: Literal["manual", "timed", "analysis"]
    steps: tuple[RolloutStep, ...]
    analysis: Analysis | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """`action` decides what happens; the rest applies to `Forward` alone, where it makes sense."""

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
    rollout: Rollout | None = None
